//! Compression between groups of workers alone: links inside a host are fast, those between hosts
//! are not.
//!
//! Workers that are close add up their gradients as they are, on the first of them. The first ones
//! exchange what they have written of these sums, and tell their groups the result. So what the
//! slow links carry is written once for a group, and nothing is left out of it that need not be.

use lockstep_comm::{Comm, CommError, Reduction, Traffic};
use lockstep_mesh::Group;

/// Who exchanges what with whom.
pub(super) struct Tiers {
    /// Those that write to each other: all workers, or the first of every group.
    pub(super) between: Comm,
    /// Those that are close, where there are groups.
    close: Option<Comm>,
}

impl Tiers {
    /// For groups of `size` consecutive workers; below 2 everybody writes to everybody.
    pub(super) fn new(data: &Comm, size: usize) -> Result<Self, CommError> {
        let num_workers = data.group_size();
        if size < 2 {
            let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
            let between = data.summing(&each, "compressed")?.canonical();
            return Ok(Self { between, close: None });
        }
        let group = |members: &mut dyn Iterator<Item = usize>| {
            Group::new(members.map(|worker| data.ranks()[worker]).collect())
        };
        let firsts = (0..num_workers).step_by(size);
        let close: Vec<_> = firsts.map(|first| group(&mut (first..first + size))).collect();
        let places = 0..size;
        let between: Vec<_> =
            places.map(|place| group(&mut (place..num_workers).step_by(size))).collect();
        Ok(Self {
            close: Some(data.split(&close, "close")?.canonical()),
            between: data.split(&between, "compressed")?.canonical(),
        })
    }

    /// Whether this worker writes for its group.
    pub(super) fn writes(&self) -> bool {
        self.close.as_ref().is_none_or(|close| close.group_rank() == 0)
    }

    /// Adds up what those have that are close. Who does not write has nothing left.
    pub(super) fn gather(&self, values: &mut [f32]) -> Result<(), CommError> {
        let Some(close) = &self.close else { return Ok(()) };
        close.reduce(values, 0, Reduction::Sum)?;
        if close.group_rank() > 0 {
            values.fill(0.0);
        }
        Ok(())
    }

    /// Tells those that are close what has come of it.
    pub(super) fn spread(&self, values: &mut [f32]) -> Result<(), CommError> {
        self.close.as_ref().map_or(Ok(()), |close| close.broadcast(values, 0))
    }

    /// What it has weighed on this worker's wires.
    pub(super) fn traffic(&self) -> Traffic {
        let of = |comm: &Comm| comm.counters().total().traffic;
        crate::local::both(of(&self.between), self.close.as_ref().map_or(Traffic::default(), of))
    }
}

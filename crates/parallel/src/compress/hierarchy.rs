//! Hierarchical compression: uncompressed within a group, compressed between groups.
//!
//! Links inside a host are fast, those between hosts are slow. The ranks of a group reduce their
//! gradients uncompressed to the group's first rank. The first ranks exchange these sums compressed
//! and broadcast the result within their groups. So the slow links carry one message per group, and
//! compression loses nothing within a group.

use lockstep_comm::{Comm, CommError, Counters};
use lockstep_mesh::Group;

/// Communicators of the two levels.
pub(super) struct Hierarchy {
    /// Ranks that exchange compressed gradients: all ranks, or the first of every group.
    pub(super) leaders: Comm,
    /// Ranks of this group, if there are groups.
    pub(super) group: Option<Comm>,
}

impl Hierarchy {
    /// For groups of `size` consecutive ranks; below 2 every rank exchanges with every other.
    pub(super) fn new(data: &Comm, size: usize) -> Result<Self, CommError> {
        let num_workers = data.group_size();
        if size < 2 {
            let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
            let leaders = data.summing(&each, "compressed")?.canonical();
            return Ok(Self { leaders, group: None });
        }
        let group_of = |workers: &mut dyn Iterator<Item = usize>| {
            Group::new(workers.map(|worker| data.ranks()[worker]).collect())
        };
        let firsts = (0..num_workers).step_by(size);
        let groups: Vec<_> = firsts.map(|first| group_of(&mut (first..first + size))).collect();
        let places = 0..size;
        let leaders: Vec<_> =
            places.map(|place| group_of(&mut (place..num_workers).step_by(size))).collect();
        Ok(Self {
            group: Some(data.split(&groups, "group")?.canonical()),
            leaders: data.split(&leaders, "compressed")?.canonical(),
        })
    }

    /// Whether this rank compresses for its group.
    pub(super) fn is_writer(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.group_rank() == 0)
    }

    /// Calls of this rank on both levels.
    pub(super) fn counters(&self) -> Counters {
        let of_group = self.group.as_ref().map_or_else(Counters::default, Comm::counters);
        self.leaders.counters().and(&of_group)
    }
}

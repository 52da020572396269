//! The best that any all-reduce in shared memory could do: the sweep alone.
//!
//! Every member reads its part of all members' buffers, adds, and stores into all of them, without
//! a word to anybody. The result is worthless unless all have met before; the time is what
//! measurements of the real thing are held against, taken in the same run on the same memory.

use lockstep_platform::{Source, Target};
use lockstep_schedule::SumTree;

use crate::buffer::ArenaBuffer;
use crate::comm::Comm;
use crate::element::{Element, Reduction};
use crate::error::CommError;
use crate::kernel::{Job, Order, reduce};

/// A sweep over one buffer of every member.
pub struct Sweep {
    comm: Comm,
    /// Where each member's buffer begins in its segment.
    offsets: Vec<u64>,
    order: Order,
}

impl Sweep {
    /// Tells all members where this one's buffer lies; they do the same.
    pub fn prepare<T: Element>(comm: &Comm, buffer: &ArenaBuffer<T>) -> Result<Self, CommError> {
        let Some(shared) = comm.core.node.shared() else {
            return Err(comm.invalid("sweep", "this transport shares no memory"));
        };
        let offset = shared.own().offset_of(buffer).expect("the arena is in the segment");
        let mut offsets = vec![0; comm.group_size()];
        comm.all_gather(&[offset as u64], &mut offsets)?;
        let order = Order::new(SumTree::canonical(comm.group_size()));
        Ok(Self { comm: comm.clone(), offsets, order })
    }

    /// Lets all members go at the same moment, as nearly as there is such a thing.
    pub fn start_together(&self) {
        let shared = self.comm.core.node.shared().expect("prepared where memory is shared");
        shared.start_together(self.comm.ranks()[0], self.comm.group_size());
    }

    /// Sweeps over this member's part of the first `count` elements.
    pub fn run<T: Element>(&self, count: usize) {
        let node = &self.comm.core.node;
        let shared = node.shared().expect("prepared where memory is shared");
        let part = self.comm.part_of(count, self.comm.group_rank());
        let window = |(member, &offset): (usize, &u64)| {
            let start = offset as usize + part.start * size_of::<T>();
            let segment = shared.segment(self.comm.ranks()[member]);
            segment.target::<u8>(start, part.len() * size_of::<T>())
        };
        let targets: Vec<Target<'_, u8>> = self.offsets.iter().enumerate().map(window).collect();
        let sources: Vec<Source<'_, u8>> = targets.iter().map(Target::as_source).collect();
        let (reduction, divide_by) = (Reduction::Sum, None);
        let job =
            Job { reduction, divide_by, order: &self.order, sources: &sources, targets: &targets };
        reduce(node.isa(), T::DTYPE, &job);
    }
}

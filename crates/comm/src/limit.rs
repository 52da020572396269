//! Lower bound of an all-reduce in shared memory: the reduction pass without synchronization.
//!
//! Every rank reads its part of all ranks' buffers, adds, and stores into all of them, without any
//! signal. The result is undefined unless the ranks have synchronized before; the time is the bound
//! that measurements in the same run on the same memory are compared with.
#![expect(unsafe_code, reason = "measurements of memory that other ranks own")]

use lockstep_platform::{Source, Target};
use lockstep_schedule::SumTree;
use lockstep_tensor::Isa;

use crate::buffer::ArenaBuffer;
use crate::comm::Comm;
use crate::element::{Dtype, Element, Reduction};
use crate::error::CommError;
use crate::kernel::{Job, Order, reduce};
use crate::segment_window::target;

/// A reduction pass over one buffer of every rank.
pub struct Sweep {
    comm: Comm,
    /// Offset of each rank's buffer in its segment.
    offsets: Vec<u64>,
    order: Order,
}

impl Sweep {
    /// Exchanges the offsets of the buffers; a collective call.
    pub fn prepare<T: Element>(comm: &Comm, buffer: &ArenaBuffer<T>) -> Result<Self, CommError> {
        let Some(shared) = comm.core.endpoint.shared() else {
            return Err(comm.invalid("sweep", "this transport shares no memory"));
        };
        let offset = shared.own().offset_of(buffer).expect("the arena is in the segment");
        let mut offsets = vec![0; comm.group_size()];
        comm.all_gather(&[offset as u64], &mut offsets)?;
        let order = Order::new(SumTree::canonical(comm.group_size()));
        Ok(Self { comm: comm.clone(), offsets, order })
    }

    /// Starts all ranks at about the same moment.
    pub fn start_together(&self) {
        let shared = self.comm.core.endpoint.shared().expect("prepared where memory is shared");
        shared.start_together(self.comm.ranks()[0], self.comm.group_size());
    }

    /// Reduces this rank's part of the first `count` elements.
    ///
    /// # Safety
    /// The buffers of all ranks exist, no rank has a slice of its buffer, and ranks that run at the
    /// same time have the same `count`.
    pub unsafe fn run<T: Element>(&self, count: usize) {
        let endpoint = &self.comm.core.endpoint;
        let shared = endpoint.shared().expect("prepared where memory is shared");
        let part = self.comm.part_of(count, self.comm.group_rank());
        let window = |(rank, &offset): (usize, &u64)| {
            let start = offset as usize + part.start * size_of::<T>();
            let segment = shared.segment(self.comm.ranks()[rank]);
            target(segment, start, part.len() * size_of::<T>())
        };
        let targets: Vec<Target<'_, u8>> = self.offsets.iter().enumerate().map(window).collect();
        let sources: Vec<Source<'_, u8>> = targets.iter().map(Target::as_source).collect();
        let (reduction, divide_by) = (Reduction::Sum, None);
        let job =
            Job { reduction, divide_by, order: &self.order, sources: &sources, targets: &targets };
        reduce(endpoint.isa(), T::DTYPE, &job);
    }
}

/// Sum of two windows, stored into both: the memory traffic of an all-reduce of two ranks.
pub struct PairSum {
    order: Order,
    isa: Isa,
    dtype: Dtype,
}

impl PairSum {
    /// For elements of type `T`, with the instruction set that `comm` uses.
    pub fn new<T: Element>(comm: &Comm) -> Self {
        let order = Order::new(SumTree::canonical(2));
        Self { order, isa: comm.core.endpoint.isa(), dtype: T::DTYPE }
    }

    /// Reads both windows, adds, and stores the sums into both.
    pub fn run(&self, windows: &[Target<'_, u8>; 2]) {
        let sources: [Source<'_, u8>; 2] = [windows[0].as_source(), windows[1].as_source()];
        let (reduction, divide_by) = (Reduction::Sum, None);
        let (order, targets) = (&self.order, windows);
        reduce(
            self.isa,
            self.dtype,
            &Job { reduction, divide_by, order, sources: &sources, targets },
        );
    }
}

/// Offset of an [`ArenaBuffer`]'s elements in this rank's shared segment; `None` where the
/// transport shares no memory.
pub fn arena_offset<T: Element>(comm: &Comm, elements: &[T]) -> Option<usize> {
    let shared = comm.core.endpoint.shared()?;
    Some(shared.own().offset_of(elements).expect("the elements are in the arena"))
}

/// Window on the shared segment of a rank of the group. The transport must share memory.
///
/// # Safety
/// While the window is accessed, no rank has a slice of the memory, and no other writes to it.
pub unsafe fn arena_window(
    comm: &Comm,
    group_rank: usize,
    offset: usize,
    bytes: usize,
) -> Target<'_, u8> {
    let shared = comm.core.endpoint.shared().expect("the transport shares memory");
    target(shared.segment(comm.ranks()[group_rank]), offset, bytes)
}

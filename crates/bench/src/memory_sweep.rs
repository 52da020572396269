//! Memory bound of an all-reduce: the traffic of two ranks, without synchronization.
//!
//! Every rank reads its part of two buffers, its own and that of the next rank, adds them and
//! stores the sum into both: two reads and two writes per element. The time is the lower bound for
//! calls of the same size. Before each sweep the ranks rewrite their buffers, as before a call, so
//! that half of the reads hit the cache of another core.
#![expect(unsafe_code, reason = "the sweep writes to the buffers of other ranks")]

use lockstep_comm::limit::{PairSum, arena_offset, arena_window};
use lockstep_comm::{Comm, Element};
use lockstep_platform::Target;

use super::{BenchError, Buffers, Coordinator};

/// MemorySweep over one buffer of every rank.
pub(super) struct MemorySweep<'a> {
    /// Buffers that this rank rewrites: its own, and both in a world of one rank.
    own: Vec<Target<'a, u8>>,
    /// Part of this rank in the two buffers.
    parts: [Target<'a, u8>; 2],
    sum: PairSum,
}

impl<'a> MemorySweep<'a> {
    /// MemorySweep over the measured buffers if all ranks share them, else over buffers of the same
    /// size in the segment of the coordinator.
    pub(super) fn new<T: Element>(
        comm: &'a Comm,
        coordinator: &'a Coordinator,
        buffers: Buffers,
        measured: &[T],
    ) -> Result<Self, BenchError> {
        let (rank, n) = (comm.group_rank(), comm.group_size());
        let bytes = size_of_val(measured);
        let part = comm.part_of(measured.len(), rank);
        let part = part.start * size_of::<T>()..part.end * size_of::<T>();
        let offset = match buffers {
            Buffers::Arena if n > 1 => arena_offset(comm, measured),
            Buffers::Arena | Buffers::Private => None,
        };
        let whole: [Target<'a, u8>; 2] = match offset {
            Some(offset) => {
                let offsets = coordinator.exchange(rank, offset as u64)?;
                [rank, (rank + 1) % n].map(|other| {
                    // SAFETY: the measurement calls `refresh` and `run` between the coordinator's
                    // barriers, where no rank has a slice of its buffer, and each rank writes its
                    // own part.
                    unsafe { arena_window(comm, other, offsets[other] as usize, bytes) }
                })
            }
            None => [rank, (rank + 1) % n.max(2)].map(|other| coordinator.buffer(other, bytes)),
        };
        let own = if n > 1 { vec![whole[0]] } else { whole.to_vec() };
        let parts = whole.map(|window| window.part(part.clone()));
        Ok(Self { own, parts, sum: PairSum::new::<T>(comm) })
    }

    /// Rewrites the buffers of this rank.
    pub(super) fn refresh(&self, byte: u8) {
        for window in &self.own {
            window.fill(byte);
        }
    }

    pub(super) fn run(&self) {
        self.sum.run(&self.parts);
    }
}

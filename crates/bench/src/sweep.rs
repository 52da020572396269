//! The best that memory allows: the work of an all-reduce of two, without a word to anybody.
//!
//! Every rank takes its part of two buffers, its own and its neighbour's, reads both, adds, and
//! stores the sum into both: two reads and two writes an element. The time that takes is what
//! measured calls of the same size are held against. Before each sweep the ranks rewrite their
//! buffers, as they do before a call, so that half of what is read lies in another core's cache.

use lockstep_comm::limit::{PairSum, arena_offset, arena_window};
use lockstep_comm::{Comm, Element};
use lockstep_platform::Target;

use super::{BenchError, Board, Buffers};

/// A sweep over one buffer of every rank.
pub(super) struct Sweep<'a> {
    /// What this rank rewrites: its own buffer, and where it is alone the second one too.
    own: Vec<Target<'a, u8>>,
    /// This rank's part of two buffers.
    parts: [Target<'a, u8>; 2],
    sum: PairSum,
}

impl<'a> Sweep<'a> {
    /// Sweeps over the measured buffers themselves where all ranks see them, else over room of
    /// the same size on the board.
    pub(super) fn new<T: Element>(
        comm: &'a Comm,
        board: &'a Board,
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
                let offsets = board.exchange(rank, offset as u64)?;
                [rank, (rank + 1) % n]
                    .map(|other| arena_window(comm, other, offsets[other] as usize, bytes))
            }
            None => [rank, (rank + 1) % n.max(2)].map(|other| board.room(other, bytes)),
        };
        let own = if n > 1 { vec![whole[0]] } else { whole.to_vec() };
        let parts = whole.map(|window| window.part(part.clone()));
        Ok(Self { own, parts, sum: PairSum::new::<T>(comm) })
    }

    /// Rewrites what this rank owns.
    pub(super) fn refresh(&self, byte: u8) {
        for window in &self.own {
            window.fill(byte);
        }
    }

    pub(super) fn run(&self) {
        self.sum.run(&self.parts);
    }
}

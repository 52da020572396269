//! The best that memory allows: the work of an all-reduce of two, without a word to anybody.
//!
//! Every rank takes its part of two buffers, its own and its neighbour's, reads both, adds, and
//! stores the sum into both: two reads and two writes an element. The time that takes is what
//! measured calls of the same size are held against. Before each sweep the ranks rewrite their
//! buffers, as they do before a call, so that half of what is read lies in another core's cache.

use std::sync::Arc;

use lockstep_platform::{Source, Target};
use lockstep_schedule::SumTree;
use lockstep_tensor::Isa;

use super::{BenchError, Board, Buffers};
use crate::comm::Comm;
use crate::element::{Dtype, Element, Reduction};
use crate::kernel::{Job, Order, reduce};
use crate::transport::shared::SharedWorld;

/// A sweep over one buffer of every rank.
pub(super) struct Sweep<'a> {
    /// What this rank rewrites: its own buffer, and where it is alone the second one too.
    own: Vec<Target<'a, u8>>,
    /// This rank's part of two buffers.
    parts: [Target<'a, u8>; 2],
    order: Order,
    isa: Isa,
    dtype: Dtype,
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
        let whole: [Target<'a, u8>; 2] = match (buffers, comm.core.node.shared()) {
            (Buffers::Arena, Some(shared)) if n > 1 => {
                let offset = shared.own().offset_of(measured).expect("it is in the arena");
                let offsets = board.exchange(rank, offset as u64)?;
                [rank, (rank + 1) % n].map(|position| {
                    window(shared, comm.ranks()[position].0, offsets[position], bytes)
                })
            }
            _ => [rank, (rank + 1) % n.max(2)].map(|position| board.room(position, bytes)),
        };
        let own = if n > 1 { vec![whole[0]] } else { whole.to_vec() };
        let parts = whole.map(|window| window.part(part.clone()));
        let order = Order::new(SumTree::canonical(2));
        Ok(Self { own, parts, order, isa: comm.core.node.isa(), dtype: T::DTYPE })
    }

    /// Rewrites what this rank owns.
    pub(super) fn refresh(&self, byte: u8) {
        for window in &self.own {
            window.fill(byte);
        }
    }

    pub(super) fn run(&self) {
        let sources: [Source<'_, u8>; 2] = [self.parts[0].as_source(), self.parts[1].as_source()];
        let (reduction, divide_by) = (Reduction::Sum, None);
        let (order, targets) = (&self.order, &self.parts);
        reduce(
            self.isa,
            self.dtype,
            &Job { reduction, divide_by, order, sources: &sources, targets },
        );
    }
}

fn window(shared: &Arc<SharedWorld>, rank: usize, offset: u64, bytes: usize) -> Target<'_, u8> {
    shared.segment(lockstep_mesh::Rank(rank)).target(offset as usize, bytes)
}

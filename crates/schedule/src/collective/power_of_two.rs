//! Reduction of a group to a power of two, for algorithms that need one (Thakur, Rabenseifner and
//! Gropp 2005).
//!
//! With n = p + s ranks (p the largest power of two), the first 2s ranks form s pairs. The odd rank
//! of a pair sends its vector to the even one, stays idle, and receives the result at the end. Each
//! step takes one round and sends the vector once.
//!
//! *Order of the sum:* a pair counts as one leaf. That happens to be canonical for some n (3, 6, 7
//! …) and not for others (5), so nothing is promised unless n is a power of two.

use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Place, Side};

/// Active ranks of a group of any size.
pub(crate) struct PowerOfTwoGroup {
    power: usize,
    surplus: usize,
}

impl PowerOfTwoGroup {
    /// Active ranks of `num_ranks`.
    pub(crate) fn new(num_ranks: usize) -> Self {
        let power = 1 << num_ranks.ilog2();
        Self { power, surplus: num_ranks - power }
    }

    /// Number of doubling rounds among the active ranks.
    pub(crate) fn num_doublings(&self) -> usize {
        self.power.trailing_zeros() as usize
    }

    /// Adds the vectors of the surplus ranks at slot `start`. Returns the active ranks, each with
    /// the buffer of its partial sum, and the next slot.
    pub(crate) fn fold_in(
        &self,
        builder: &mut Builder,
        start: usize,
        chunks: Chunks,
    ) -> (Vec<Place>, usize) {
        let stays = |index| {
            if index >= self.surplus {
                return Buffer::INPUT.on(index + self.surplus);
            }
            let (even, odd) = (2 * index, 2 * index + 1);
            let (from, into) = (Buffer::INPUT.on(odd), Buffer::Output.on(even));
            builder.message_sum(start, chunks, from, into, Buffer::INPUT, Side::Right);
            into
        };
        ((0..self.power).map(stays).collect(), start + 1)
    }

    /// Sends the result to the surplus ranks.
    pub(crate) fn return_result(&self, builder: &mut Builder, start: usize, chunks: Chunks) {
        for index in 0..self.surplus {
            let (even, odd) = (2 * index, 2 * index + 1);
            builder.message(start, chunks, Buffer::Output.on(even), Buffer::Output.on(odd));
        }
    }
}

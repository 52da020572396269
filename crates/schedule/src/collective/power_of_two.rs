//! PowerOfTwoGroup: brings any number of ranks down to a power of two, for algorithms that need one.
//!
//! With n = p + s ranks (p the largest power of two), the first 2s ranks form s pairs. The odd rank
//! of a pair hands its vector to the even one, sits out, and is given the result at the end. Each
//! group costs the vector once more on the way in and once more on the way out.
//!
//! *Order of the sum:* a folded pair counts as one leaf. That is canonical by luck for some n (3,
//! 6, 7 …) and not for others (5), so nothing is promised unless n is a power of two.

use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::step::{Buffer, Place, Side};

/// Which ranks stay when `num_ranks` are folded.
pub(crate) struct PowerOfTwoGroup {
    power: usize,
    surplus: usize,
}

impl PowerOfTwoGroup {
    /// The group of `num_ranks`.
    pub(crate) fn new(num_ranks: usize) -> Self {
        let power = 1 << num_ranks.ilog2();
        Self { power, surplus: num_ranks - power }
    }

    /// How many rounds a doubling of the distance takes among the ranks that stay.
    pub(crate) fn num_doublings(&self) -> usize {
        self.power.trailing_zeros() as usize
    }

    /// Folds the surplus ranks in at slot `start`. Returns the ranks that stay, each with the
    /// buffer that holds what it adds, and the slot after.
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

    /// Gives the result back to the ranks that sat out.
    pub(crate) fn return_result(&self, builder: &mut Builder, start: usize, chunks: Chunks) {
        for index in 0..self.surplus {
            let (even, odd) = (2 * index, 2 * index + 1);
            builder.message(start, chunks, Buffer::Output.on(even), Buffer::Output.on(odd));
        }
    }
}

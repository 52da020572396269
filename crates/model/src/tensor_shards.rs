//! A model in slices: the unit in which tensor parallelism divides layers among workers.
//!
//! A layer's matrices are cut into `num` equal slices. A slice of attention is a few query heads
//! with their key and value heads; a slice of the feed-forward part is a run of its hidden
//! numbers; a slice of the vocabulary is a run of its tokens. What enters a slice is whole, so the
//! first product of each half gives every slice its own outputs (*column-parallel*); the second
//! product sums over what was cut (*row-parallel*), and so does the gradient of the first one's
//! input: each slice makes a partial sum, and partial sums are added by one binary tree over the
//! numbers of slices. Whoever computes a slice, the order of the additions is the same: one worker
//! that holds all slices gets the bits of as many workers as there are slices.
//!
//! With `sequence` the stream between the halves is cut as well: each holder keeps, normalises and
//! drops only its own run of the micro-batch's rows, gathers all of them in front of the first product and
//! keeps its own of the sum behind the second. Sums over rows (the gradients of norms and of biases
//! behind the second product) go by as many blocks of rows as there are slices, cut or not.

use crate::collectives::{CollectiveCall, CollectiveKind, TensorCollectives};
use std::ops::Range;

/// How many slices a model has, and which of them a description is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShards {
    /// How many there are.
    pub num: usize,
    /// Those that are held here.
    pub local: Range<usize>,
    /// Whether the stream holds only the rows of these slices.
    pub sequence: bool,
}

impl TensorShards {
    /// The model in one piece.
    pub const WHOLE: Self = Self { num: 1, local: 0..1, sequence: false };

    /// All of `num` slices.
    pub const fn all(num: usize) -> Self {
        Self { num, local: 0..num, sequence: false }
    }

    /// Part `index` of `degree` equal ones.
    ///
    /// # Panics
    /// When the parts are not whole nodes of the tree over slices: some slices, a power of two of
    /// them, or all.
    pub fn for_tp_rank(num: usize, degree: usize, tp_rank: usize, sequence: bool) -> Self {
        let per_rank = num / degree;
        let is_node = degree == 1 || per_rank.is_power_of_two();
        assert!(
            num.is_multiple_of(degree) && is_node,
            "{num} shards over {degree} tensor-parallel ranks"
        );
        assert!(tp_rank < degree, "tensor-parallel rank {tp_rank} of {degree}");
        Self { num, local: tp_rank * per_rank..(tp_rank + 1) * per_rank, sequence }
    }

    /// How many are held.
    pub fn num_local(&self) -> usize {
        self.local.len()
    }

    /// Whether nothing is elsewhere.
    pub fn is_whole(&self) -> bool {
        self.local.len() == self.num
    }

    /// The elements of a slice when `len` of them are cut.
    pub(crate) fn range(&self, len: usize, shard: usize) -> Range<usize> {
        len * shard / self.num..len * (shard + 1) / self.num
    }

    /// The rows of a micro-batch of `num_rows` that the stream has here.
    pub fn rows(&self, num_rows: usize) -> Range<usize> {
        if self.sequence {
            num_rows * self.local.start / self.num..num_rows * self.local.end / self.num
        } else {
            0..num_rows
        }
    }

    /// The blocks of rows whose sums are made here.
    pub(crate) fn row_blocks(&self) -> Range<usize> {
        if self.sequence { self.local.clone() } else { 0..self.num }
    }

    /// The call of [`Self::gather_rows`].
    pub(crate) fn gather_call(&self, len: usize) -> Option<CollectiveCall> {
        self.sequence.then_some(CollectiveCall::new(CollectiveKind::AllGather, len))
    }

    /// The call of [`Self::sum_rows`].
    pub(crate) fn sum_call(&self, len: usize) -> CollectiveCall {
        let kind =
            if self.sequence { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
        CollectiveCall::new(kind, len)
    }

    /// The call of [`Self::sum_row_blocks`], where anything of `params` is among `trained`.
    pub(crate) fn row_blocks_call(
        &self,
        params: &[Range<usize>],
        trained: &[Range<usize>],
    ) -> Option<CollectiveCall> {
        let is_trained = |param: &&Range<usize>| {
            trained.iter().any(|run| run.start <= param.start && param.end <= run.end)
        };
        let len: usize = params.iter().filter(is_trained).map(Range::len).sum();
        (self.sequence && len > 0).then_some(CollectiveCall::new(CollectiveKind::AllReduce, len))
    }

    /// From the stream's rows, which lie where they belong among `all` rows, to all of them.
    pub(crate) fn gather_rows(&self, collectives: &mut dyn TensorCollectives, all: &mut [f32]) {
        if self.sequence {
            collectives.all_gather(all);
        }
    }

    /// Adds up all holders' partial sums of all rows; the stream's rows are then complete.
    pub(crate) fn sum_rows(&self, collectives: &mut dyn TensorCollectives, all: &mut [f32]) {
        if self.sequence { collectives.reduce_scatter(all) } else { collectives.all_reduce(all) }
    }

    /// Adds up what all holders have summed over the rows of their streams.
    pub(crate) fn sum_row_blocks(&self, collectives: &mut dyn TensorCollectives, sums: &mut [f32]) {
        if self.sequence {
            collectives.all_reduce(sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_cover_all_slices() {
        for (num, degree) in [(1, 1), (4, 1), (4, 2), (4, 4), (3, 1), (3, 3), (6, 3)] {
            let mut next = 0;
            for tp_rank in 0..degree {
                let part = TensorShards::for_tp_rank(num, degree, tp_rank, true);
                assert_eq!(part.local.start, next);
                assert_eq!(part.rows(12 * num), next * 12..part.local.end * 12);
                next = part.local.end;
            }
            assert_eq!(next, num);
        }
    }

    #[test]
    #[should_panic(expected = "6 shards over 2 tensor-parallel ranks")]
    fn parts_that_are_no_nodes_of_the_tree_are_a_bug() {
        let _ = TensorShards::for_tp_rank(6, 2, 0, false);
    }
}

//! Tensor-parallel shards of a model (Megatron-LM, Shoeybi et al. 2019), and sequence parallelism
//! (Korthikanti et al. 2022).
//!
//! A layer's matrices are divided into `num` equal shards. A shard of attention is some query heads
//! with their key and value heads; a shard of the feed-forward part is a range of its hidden units;
//! a shard of the vocabulary is a range of its tokens. The input of a layer is replicated, so the
//! first product of each half gives every shard its own outputs (*column-parallel*). The second
//! product sums over the sharded dimension (*row-parallel*), and so does the input gradient of the
//! first: each shard computes a partial sum, and partial sums are added by one binary tree over the
//! shards. The order of additions does not depend on the owner of a shard: one rank with all shards
//! gets the bits of as many ranks as there are shards.
//!
//! With `sequence`, the residual stream between the halves is sharded as well: each tensor-parallel
//! rank stores, normalises and drops out only its own rows of the micro-batch. An all-gather
//! precedes the first product, and a reduce-scatter follows the second. Sums over rows (the
//! gradients of norms and of biases after the second product) use as many blocks of rows as there
//! are shards, with or without `sequence`.

use crate::collectives::{CollectiveCall, CollectiveKind, TensorCollectives};
use lockstep_tensor::device::{Dtype, ViewMut};
use std::ops::Range;

/// Number of tensor-parallel shards of a model, and the local ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShards {
    /// Number of shards of the model.
    pub num: usize,
    /// Shards of this tensor-parallel rank.
    pub local: Range<usize>,
    /// Whether the stream holds only the rows of the local shards (sequence parallelism).
    pub sequence: bool,
}

impl TensorShards {
    /// The unsharded model.
    pub const WHOLE: Self = Self { num: 1, local: 0..1, sequence: false };

    /// All of `num` shards on one rank.
    pub const fn all(num: usize) -> Self {
        Self { num, local: 0..num, sequence: false }
    }

    /// Shards of `tp_rank`, of `degree` tensor-parallel ranks.
    ///
    /// # Panics
    /// When the shards of a rank are not a whole node of the tree over shards: a power of two of
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

    /// Number of local shards.
    pub fn num_local(&self) -> usize {
        self.local.len()
    }

    /// Whether all shards are local.
    pub fn is_whole(&self) -> bool {
        self.local.len() == self.num
    }

    /// Elements of a shard of a dimension of `len`.
    pub(crate) fn range(&self, len: usize, shard: usize) -> Range<usize> {
        len * shard / self.num..len * (shard + 1) / self.num
    }

    /// Local rows of the stream, of a micro-batch of `num_rows`.
    pub fn rows(&self, num_rows: usize) -> Range<usize> {
        if self.sequence {
            num_rows * self.local.start / self.num..num_rows * self.local.end / self.num
        } else {
            0..num_rows
        }
    }

    /// Blocks of rows whose sums are computed locally.
    pub(crate) fn row_blocks(&self) -> Range<usize> {
        if self.sequence { self.local.clone() } else { 0..self.num }
    }

    /// Collective call of [`Self::gather_rows`], of memory of `len` elements of `f32`.
    pub(crate) fn gather_call(&self, len: usize) -> Option<CollectiveCall> {
        self.sequence.then_some(CollectiveCall::new(CollectiveKind::AllGather, len))
    }

    /// Collective call of [`Self::sum_rows`].
    pub(crate) fn sum_call(&self, len: usize) -> CollectiveCall {
        let kind =
            if self.sequence { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
        CollectiveCall::new(kind, len)
    }

    /// Collective call of [`Self::sum_row_blocks`], where any of `params` is among `trained`.
    pub(crate) fn row_blocks_call(
        &self,
        params: &[Range<usize>],
        trained: &[Range<usize>],
    ) -> Option<CollectiveCall> {
        let len = trained_len(params, trained);
        (self.sequence && len > 0).then_some(CollectiveCall::new(CollectiveKind::AllReduce, len))
    }

    /// Collective call of gradients that every shard sums for itself, of the `params` that are
    /// among `trained`.
    pub(crate) fn shard_sums_call(
        params: &[Range<usize>],
        trained: &[Range<usize>],
    ) -> Option<CollectiveCall> {
        let len = trained_len(params, trained);
        (len > 0).then_some(CollectiveCall::new(CollectiveKind::AllReduce, len))
    }

    /// All-gathers the rows of the stream, which are at their places in `all`. Their bits move as
    /// `f32`, whatever their type.
    pub(crate) fn gather_rows(&self, collectives: &mut dyn TensorCollectives, all: ViewMut<'_>) {
        if self.sequence {
            collectives.all_gather(all.cast(Dtype::F32));
        }
    }

    /// Reduces the partial sums of all rows over the tensor-parallel ranks; the local rows of the
    /// stream are then complete.
    pub(crate) fn sum_rows(&self, collectives: &mut dyn TensorCollectives, all: ViewMut<'_>) {
        if self.sequence { collectives.reduce_scatter(all) } else { collectives.all_reduce(all) }
    }

    /// Reduces the sums over local rows over the tensor-parallel ranks.
    pub(crate) fn sum_row_blocks(
        &self,
        collectives: &mut dyn TensorCollectives,
        sums: ViewMut<'_>,
    ) {
        if self.sequence {
            collectives.all_reduce(sums);
        }
    }
}

/// Elements of the `params` that are among `trained`.
fn trained_len(params: &[Range<usize>], trained: &[Range<usize>]) -> usize {
    let is_trained = |param: &&Range<usize>| {
        trained.iter().any(|run| run.start <= param.start && param.end <= run.end)
    };
    params.iter().filter(is_trained).map(Range::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_parallel_ranks_cover_all_shards_in_order() {
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
    fn shards_that_are_no_node_of_the_tree_are_refused() {
        let _ = TensorShards::for_tp_rank(6, 2, 0, false);
    }
}

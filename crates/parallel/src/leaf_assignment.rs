//! Assignment of leaves to data-parallel ranks.
//!
//! Whole gradients (ZeRO 0 and 1) are reduced once, so a rank runs a contiguous range of leaves and
//! adds what it can before the reduction. Sharded gradients (ZeRO 2 and 3) must not accumulate, so
//! leaves are assigned cyclically: pass j runs leaves j·w to j·w+w−1, one on each of the w ranks,
//! and every pass is reduced into the shards before the next begins.

use crate::leaves::Leaves;
use std::ops::Range;

/// Leaves of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafAssignment {
    /// Rank i runs the leaves `[i]` in ascending order.
    Contiguous(Vec<Range<usize>>),
    /// Rank i runs the leaves i, i + w, i + 2w ...
    Cyclic {
        /// Number of ranks w.
        num_workers: usize,
    },
}

impl LeafAssignment {
    /// Contiguous and as even as possible; the first ranks have one leaf more.
    pub fn even(num_leaves: usize, num_workers: usize) -> Self {
        let (each, more) = (num_leaves / num_workers, num_leaves % num_workers);
        Self::by_count((0..num_workers).map(|worker| each + usize::from(worker < more)))
    }

    /// Contiguous, with `counts` leaves per rank.
    pub fn by_count(counts: impl IntoIterator<Item = usize>) -> Self {
        let mut start = 0;
        let share = |count| {
            start += count;
            start - count..start
        };
        Self::Contiguous(counts.into_iter().map(share).collect())
    }

    /// Assignment of a ZeRO stage; `counts` are the leaves per rank where they may differ.
    pub fn for_zero_stage(zero: usize, counts: &[usize]) -> Self {
        match zero {
            0 | 1 => Self::by_count(counts.iter().copied()),
            _ => Self::Cyclic { num_workers: counts.len() },
        }
    }

    /// Number of ranks.
    pub fn num_workers(&self) -> usize {
        match self {
            Self::Contiguous(shares) => shares.len(),
            Self::Cyclic { num_workers } => *num_workers,
        }
    }

    /// Leaves of a rank, in the order in which it runs them.
    pub fn leaves_of(&self, worker: usize, num_leaves: usize) -> Vec<usize> {
        match self {
            Self::Contiguous(shares) => shares[worker].clone().collect(),
            Self::Cyclic { num_workers } => (worker..num_leaves).step_by(*num_workers).collect(),
        }
    }

    /// Micro-batches of a rank, in the order in which it runs them.
    pub fn microbatches_of(&self, worker: usize, leaves: Leaves) -> Vec<usize> {
        let microbatches = |leaf| {
            (0..leaves.microbatches_per_leaf).map(move |i| leaf * leaves.microbatches_per_leaf + i)
        };
        self.leaves_of(worker, leaves.num_leaves).into_iter().flat_map(microbatches).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_workers_share_eight_leaves_as_evenly_as_possible() {
        assert_eq!(LeafAssignment::even(8, 3), LeafAssignment::Contiguous(vec![0..3, 3..6, 6..8]));
        assert_eq!(LeafAssignment::even(8, 1), LeafAssignment::Contiguous(vec![0..8; 1]));
        assert_eq!(LeafAssignment::by_count([5, 3]), LeafAssignment::Contiguous(vec![0..5, 5..8]));
    }

    #[test]
    fn every_microbatch_is_run_once_under_every_layout() {
        let leaves = Leaves { num_leaves: 8, microbatches_per_leaf: 3 };
        for num_workers in 1..=8 {
            for shares in
                [LeafAssignment::even(8, num_workers), LeafAssignment::Cyclic { num_workers }]
            {
                let mut microbatches: Vec<_> = (0..num_workers)
                    .flat_map(|worker| shares.microbatches_of(worker, leaves))
                    .collect();
                microbatches.sort_unstable();
                assert_eq!(microbatches, (0..24).collect::<Vec<_>>(), "{shares:?}");
            }
        }
    }

    #[test]
    fn cyclic_leaves_ascend_on_each_rank() {
        let shares = LeafAssignment::Cyclic { num_workers: 3 };
        assert_eq!(shares.leaves_of(1, 8), [1, 4, 7]);
        assert_eq!(shares.leaves_of(2, 8), [2, 5]);
    }
}

//! Leaf rebalancing: ranks get micro-batches in proportion to their measured speed.
//!
//! Ranks time their micro-batches. At intervals all of them exchange the times and divide the
//! leaves of a batch again, so that the next steps would end at the same time on all ranks. A share
//! is a whole number of leaves, so the rank that runs a leaf does not affect the bits of the sum.

use crate::replica::Replica;
use lockstep_comm::CommError;

/// Limit on rebalancings per run: each needs a group of its own.
const MAX_DIVISIONS: usize = 32;

/// A rebalancing must reduce the step time at least to this fraction.
const MIN_GAIN: f64 = 0.95;

/// Leaves per rank that minimize the time of the slowest, where a leaf takes rank i `seconds[i]`.
/// Every rank gets at least one.
pub fn leaves_by_speed(num_leaves: usize, seconds: &[f64]) -> Vec<usize> {
    let mut shares = vec![1; seconds.len()];
    for _ in seconds.len()..num_leaves {
        // The rank that would finish one more leaf first gets it; ties go to the lowest.
        let after = |worker: &usize| (shares[*worker] + 1) as f64 * seconds[*worker];
        let next = (0..shares.len()).min_by(|a, b| after(a).total_cmp(&after(b)));
        shares[next.expect("there are workers")] += 1;
    }
    shares
}

/// Step time with these shares.
fn step_seconds(shares: &[usize], seconds: &[f64]) -> f64 {
    shares.iter().zip(seconds).map(|(leaves, each)| *leaves as f64 * each).fold(0.0, f64::max)
}

impl Replica {
    /// Rebalances the leaves if that is worth it, given the seconds per leaf of each rank.
    /// Collective with equal arguments, between two steps. Returns whether it did.
    pub fn rebalance_leaves(&mut self, leaf_seconds: &[f64]) -> Result<bool, CommError> {
        assert!(self.plan.is_replicated(), "rebalancing requires contiguous leaves");
        let is_known = leaf_seconds.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0);
        let shares = leaves_by_speed(self.plan.leaves.num_leaves, leaf_seconds);
        let [now, then] = [&self.plan.shares, &shares].map(|s| step_seconds(s, leaf_seconds));
        if !is_known || then > MIN_GAIN * now || self.step_context.num_divisions == MAX_DIVISIONS {
            return Ok(false);
        }
        self.step_context.num_divisions += 1;
        self.plan.shares = shares;
        self.shares = self.plan.leaf_assignment();
        let crate::LeafAssignment::Contiguous(addends) = &self.shares else {
            unreachable!("gradients are whole")
        };
        let data = self.groups.data().summing(addends, "data")?.canonical();
        let before = self.store.overlap.replace_comm(data);
        let past = &mut self.step_context.past_counters;
        *past = past.and(&before.counters());
        let (phase, microbatches_per_leaf) =
            (self.plan.phase, self.plan.leaves.microbatches_per_leaf);
        self.enter_phase(phase, microbatches_per_leaf)?;
        Ok(true)
    }

    /// Number of leaves per rank.
    pub fn leaves_by_worker(&self) -> &[usize] {
        &self.plan.shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_three_times_slower_gets_a_third_of_the_leaves_of_the_others() {
        assert_eq!(leaves_by_speed(8, &[1.0, 1.0, 1.0, 3.0]), [3, 2, 2, 1]);
        assert_eq!(leaves_by_speed(8, &[1.0, 1.0, 1.0, 1.0]), [2, 2, 2, 2]);
        assert_eq!(leaves_by_speed(8, &[1.0, 3.0]), [6, 2]);
    }

    #[test]
    fn no_other_division_ends_sooner() {
        fn all(leaves: usize, workers: usize) -> Vec<Vec<usize>> {
            if workers == 1 {
                return vec![vec![leaves]];
            }
            let first = 1..=leaves - (workers - 1);
            let with = |first: usize| {
                all(leaves - first, workers - 1).into_iter().map(move |rest| [vec![first], rest])
            };
            first.flat_map(with).map(|parts| parts.concat()).collect()
        }
        for seconds in [[1.0, 1.1, 1.2], [1.0, 2.0, 9.0], [5.0, 0.3, 1.0], [2.0, 2.0, 2.0]] {
            let found = step_seconds(&leaves_by_speed(8, &seconds), &seconds);
            let others = all(8, 3).into_iter().map(|shares| step_seconds(&shares, &seconds));
            let best = others.fold(f64::INFINITY, f64::min);
            assert!(found <= best, "{seconds:?}: {found} against {best}");
        }
    }
}

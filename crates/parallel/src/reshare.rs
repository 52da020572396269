//! Micro-batches by how fast a worker is.
//!
//! Workers time their micro-batches. Every so often all of them tell each other, and divide the leaves of a
//! batch anew, so that the step that follows would end at the same time on all. A share is a whole
//! number of leaves, so who runs a leaf changes no bit of the sum.

use crate::local::both;
use crate::replica::Replica;
use lockstep_comm::CommError;

/// Divisions that one run may try: each needs a group of its own.
const MAX_DIVISIONS: usize = 32;

/// How much sooner a step must end for micro-batches to move.
const WORTH_IT: f64 = 0.95;

/// The leaves of each worker for which the slowest ends first, where a leaf takes worker i
/// `seconds[i]`. Everybody has one at least.
pub fn by_speed(num_leaves: usize, seconds: &[f64]) -> Vec<usize> {
    let mut shares = vec![1; seconds.len()];
    for _ in seconds.len()..num_leaves {
        // Whoever would be done first with one more gets it; the first of equals.
        let after = |worker: &usize| (shares[*worker] + 1) as f64 * seconds[*worker];
        let next = (0..shares.len()).min_by(|a, b| after(a).total_cmp(&after(b)));
        shares[next.expect("there are workers")] += 1;
    }
    shares
}

/// The time of a step of these shares.
fn step_seconds(shares: &[usize], seconds: &[f64]) -> f64 {
    shares.iter().zip(seconds).map(|(leaves, each)| *leaves as f64 * each).fold(0.0, f64::max)
}

impl Replica {
    /// Divides the leaves anew where that is worth it, given how long a leaf takes each worker; all
    /// workers do so together, with the same numbers, between two steps. Says whether it did.
    pub fn reshare(&mut self, leaf_seconds: &[f64]) -> Result<bool, CommError> {
        assert!(self.plan.is_replicated(), "leaves lie one behind the other");
        let is_known = leaf_seconds.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0);
        let shares = by_speed(self.plan.leaves.num_leaves, leaf_seconds);
        let [now, then] = [&self.plan.shares, &shares].map(|s| step_seconds(s, leaf_seconds));
        if !is_known || then > WORTH_IT * now || self.turn.num_divisions == MAX_DIVISIONS {
            return Ok(false);
        }
        self.turn.num_divisions += 1;
        self.plan.shares = shares;
        self.shares = self.plan.leaf_shares();
        let crate::Shares::Contiguous(addends) = &self.shares else {
            unreachable!("gradients are whole")
        };
        let data = self.groups.data().summing(addends, "data")?.canonical();
        let before = self.store.overlap.replace_comm(data);
        self.turn.past_traffic = both(self.turn.past_traffic, before.counters().total().traffic);
        let (phase, microbatches_per_leaf) =
            (self.plan.phase, self.plan.leaves.microbatches_per_leaf);
        self.enter(phase, microbatches_per_leaf)?;
        Ok(true)
    }

    /// How many leaves each worker runs.
    pub fn leaves_by_worker(&self) -> &[usize] {
        &self.plan.shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_three_times_slower_gets_a_third_of_the_leaves_of_the_others() {
        assert_eq!(by_speed(8, &[1.0, 1.0, 1.0, 3.0]), [3, 2, 2, 1]);
        assert_eq!(by_speed(8, &[1.0, 1.0, 1.0, 1.0]), [2, 2, 2, 2]);
        assert_eq!(by_speed(8, &[1.0, 3.0]), [6, 2]);
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
            let found = step_seconds(&by_speed(8, &seconds), &seconds);
            let others = all(8, 3).into_iter().map(|shares| step_seconds(&shares, &seconds));
            let best = others.fold(f64::INFINITY, f64::min);
            assert!(found <= best, "{seconds:?}: {found} against {best}");
        }
    }
}

//! Successive halving (Jamieson and Talwalkar, 2016).
//!
//! All configurations get a small part of the steps. The best of them, one in `eta`, get `eta`
//! times as many, until the last ones have all steps. With n configurations each rung costs about
//! n / eta^rungs complete runs, so the search costs a few complete runs instead of n. It assumes
//! that early leaders stay ahead, which different warm-ups or decaying learning rates can violate.
//! A surviving run resumes from its own last step under the schedule of the complete recipe, so the
//! winner is bit-identical to an uninterrupted run.
//!
//! A grid or random search without halving has a single rung.

use std::cmp::Ordering;

/// One round: runs with the same share of their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Divisor of a complete run's steps.
    divisor: u64,
    /// Number of runs in the round.
    pub num_runs: usize,
}

impl Rung {
    /// The step at which a run of `whole` steps pauses.
    pub fn steps(self, whole: u64) -> u64 {
        whole.div_ceil(self.divisor)
    }
}

/// Score of a run: smaller is better, `None` is worst.
pub type Score = Option<f64>;

/// Rungs of a search; `eta` = 1 has one. There are as many as leave at least one run in the last
/// and one step in the first.
pub fn rungs(num_runs: usize, eta: u64, whole: u64) -> Vec<Rung> {
    let mut divisor = 1_u64;
    while eta > 1 && divisor.saturating_mul(eta) <= whole.min(num_runs as u64) {
        divisor *= eta;
    }
    let mut rungs = Vec::new();
    let mut left = num_runs;
    loop {
        rungs.push(Rung { divisor, num_runs: left });
        if divisor == 1 {
            return rungs;
        }
        divisor /= eta;
        left = (left / eta as usize).max(1);
    }
}

/// Orders by score, then by index.
pub fn order(a: (usize, Score), b: (usize, Score)) -> Ordering {
    let worst = |score: Score| score.filter(|score| !score.is_nan()).unwrap_or(f64::INFINITY);
    worst(a.1).total_cmp(&worst(b.1)).then(a.0.cmp(&b.0))
}

/// Indices of the best `num_runs` runs in ascending order; runs without a score are dropped.
pub fn survivors(scores: &[(usize, Score)], num_runs: usize) -> Vec<usize> {
    let mut ranked: Vec<_> =
        scores.iter().copied().filter(|(_, score)| score.is_some_and(|s| !s.is_nan())).collect();
    ranked.sort_by(|a, b| order(*a, *b));
    let mut best: Vec<usize> = ranked.into_iter().take(num_runs).map(|(run, _)| run).collect();
    best.sort_unstable();
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(num_runs: usize, eta: u64, whole: u64) -> Vec<(usize, u64)> {
        let rungs = rungs(num_runs, eta, whole);
        rungs.into_iter().map(|rung| (rung.num_runs, rung.steps(whole))).collect()
    }

    #[test]
    fn each_rung_has_fewer_runs_of_more_steps_and_the_last_has_all_steps() {
        assert_eq!(sizes(27, 3, 81), [(27, 3), (9, 9), (3, 27), (1, 81)]);
        assert_eq!(sizes(16, 2, 400), [(16, 25), (8, 50), (4, 100), (2, 200), (1, 400)]);
        assert_eq!(sizes(10, 3, 100), [(10, 12), (3, 34), (1, 100)]);
        assert_eq!(sizes(16, 4, 6), [(16, 2), (4, 6)], "too few steps for more rungs");
        assert_eq!(sizes(2, 3, 100), [(2, 100)], "too few to halve");
        assert_eq!(sizes(16, 1, 100), [(16, 100)], "a plain search");
    }

    #[test]
    fn steps_grow_and_runs_shrink_from_rung_to_rung() {
        for num_runs in 1..40 {
            for eta in 2..6 {
                for whole in 1..60 {
                    let sizes = sizes(num_runs, eta, whole);
                    assert_eq!((sizes[0].0, sizes[sizes.len() - 1].1), (num_runs, whole));
                    assert!(sizes.windows(2).all(|w| w[0].0 > w[1].0 && w[0].1 < w[1].1));
                    assert!(sizes.iter().all(|(runs, steps)| *runs > 0 && *steps > 0));
                }
            }
        }
    }

    #[test]
    fn the_best_survive_in_index_order_and_diverged_runs_never_do() {
        let scores = [Some(2.0), None, Some(1.0), Some(f64::NAN), Some(1.0), Some(3.0)];
        let scores: Vec<_> = scores.into_iter().enumerate().collect();
        assert_eq!(survivors(&scores, 1), [2], "a tie goes to the first");
        assert_eq!(survivors(&scores, 3), [0, 2, 4]);
        assert_eq!(survivors(&scores, 6), [0, 2, 4, 5]);
        assert_eq!(order((0, None), (1, Some(f64::NAN))), Ordering::Less);
    }
}

//! Successive halving: many short runs, fewer longer ones, one whole.
//!
//! All configurations get a small part of the steps; the best of them, one in `eta`, get `eta`
//! times as many, and so on until the last ones have all steps. With n configurations each rung
//! costs about n / eta^rungs whole runs, so the search costs a few whole runs instead of n. It bets
//! that who leads early leads late, which a warm-up that differs or a learning rate that decays can
//! falsify. A run that goes on does so from its own last step, under the schedule of the whole
//! recipe, so that the winner has the very bits of a run that was never paused.
//!
//! A plain search is the case of a single rung.

use std::cmp::Ordering;

/// One round of runs of the same share of their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rung {
    /// The steps of a whole run are divided by this.
    divisor: u64,
    /// How many runs take part.
    pub(super) num_runs: usize,
}

impl Rung {
    /// The step at which a run of so many steps pauses.
    pub(super) fn steps(self, whole: u64) -> u64 {
        whole.div_ceil(self.divisor)
    }
}

/// How good a run is: smaller is better, and none at all is worst.
pub(super) type Score = Option<f64>;

/// The rungs of a search, of which a plain one (`eta` = 1) has one. There are as many as leave
/// somebody at the top and a step at the bottom.
pub(super) fn rungs(num_runs: usize, eta: u64, whole: u64) -> Vec<Rung> {
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

/// Better first; of equals the one that was named first.
pub(super) fn order(a: (usize, Score), b: (usize, Score)) -> Ordering {
    let worst = |score: Score| score.filter(|score| !score.is_nan()).unwrap_or(f64::INFINITY);
    worst(a.1).total_cmp(&worst(b.1)).then(a.0.cmp(&b.0))
}

/// The runs that go on, as they were named; runs without a score never do.
pub(super) fn survivors(scores: &[(usize, Score)], num_runs: usize) -> Vec<usize> {
    let mut ranked: Vec<_> =
        scores.iter().copied().filter(|(_, score)| score.is_some_and(|s| !s.is_nan())).collect();
    ranked.sort_by(|a, b| order(*a, *b));
    let mut kept: Vec<usize> = ranked.into_iter().take(num_runs).map(|(run, _)| run).collect();
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(num_runs: usize, eta: u64, whole: u64) -> Vec<(usize, u64)> {
        let rungs = rungs(num_runs, eta, whole);
        rungs.into_iter().map(|rung| (rung.num_runs, rung.steps(whole))).collect()
    }

    #[test]
    fn each_rung_has_fewer_runs_of_more_steps_and_the_last_has_all_steps() {
        assert_eq!(told(27, 3, 81), [(27, 3), (9, 9), (3, 27), (1, 81)]);
        assert_eq!(told(16, 2, 400), [(16, 25), (8, 50), (4, 100), (2, 200), (1, 400)]);
        assert_eq!(told(10, 3, 100), [(10, 12), (3, 34), (1, 100)]);
        assert_eq!(told(16, 4, 6), [(16, 2), (4, 6)], "there are not steps for more");
        assert_eq!(told(2, 3, 100), [(2, 100)], "too few to halve");
        assert_eq!(told(16, 1, 100), [(16, 100)], "a plain search");
    }

    #[test]
    fn steps_grow_from_rung_to_rung_and_runs_shrink_for_every_size() {
        for num_runs in 1..40 {
            for eta in 2..6 {
                for whole in 1..60 {
                    let told = told(num_runs, eta, whole);
                    assert_eq!((told[0].0, told[told.len() - 1].1), (num_runs, whole));
                    assert!(told.windows(2).all(|w| w[0].0 > w[1].0 && w[0].1 < w[1].1));
                    assert!(told.iter().all(|(runs, steps)| *runs > 0 && *steps > 0));
                }
            }
        }
    }

    #[test]
    fn the_best_go_on_in_the_order_of_their_names_and_the_diverged_never_do() {
        let scores = [Some(2.0), None, Some(1.0), Some(f64::NAN), Some(1.0), Some(3.0)];
        let scores: Vec<_> = scores.into_iter().enumerate().collect();
        assert_eq!(survivors(&scores, 1), [2], "of equals the first");
        assert_eq!(survivors(&scores, 3), [0, 2, 4]);
        assert_eq!(survivors(&scores, 6), [0, 2, 4, 5]);
        assert_eq!(order((0, None), (1, Some(f64::NAN))), Ordering::Less);
    }
}

//! Detection of a rank that is slower than others with as much work.
//!
//! Times vary from step to step, and ranks share cores with other processes. So a rank is slow only
//! if three quarters of its times exceed three quarters of those of the usual rank, and if that
//! costs a step more than one preemption.

/// Factor over the usual time from which a rank is slow: equal cores differ by less, whatever
/// threads and pages they got.
pub const SLOW_FACTOR: f64 = 1.2;

/// Time in seconds for which another process may hold a core: the base slice of Linux's scheduler.
pub const TIME_SLICE: f64 = 3e-3;

/// Speed of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPace {
    /// Quartiles of the time for a unit of work; NaN if unknown.
    pub seconds: [f64; 3],
    /// Units of work in a step.
    pub work: f64,
}

/// The slowest rank and its factor over the usual one, the lower median, if it is slow.
/// `least_factor` gives the factor from which the first rank is slow compared with the second.
pub fn slow_rank(
    paces: &[RankPace],
    least_factor: impl Fn(usize, usize) -> f64,
) -> Option<(usize, f64)> {
    let mut ranks: Vec<usize> =
        (0..paces.len()).filter(|rank| !paces[*rank].seconds[1].is_nan()).collect();
    ranks.sort_by(|a, b| paces[*a].seconds[1].total_cmp(&paces[*b].seconds[1]));
    let (&slowest, &usual) = (ranks.last()?, ranks.get((ranks.len() - 1) / 2)?);
    let ([lower, middle, _], [_, usual_middle, upper]) =
        (paces[slowest].seconds, paces[usual].seconds);
    let factor = middle / usual_middle;
    let excess = (middle - usual_middle) * paces[slowest].work;
    let is_slow = factor >= least_factor(slowest, usual) && lower > upper && excess > TIME_SLICE;
    (ranks.len() > 1 && is_slow).then_some((slowest, factor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::random::Key;

    /// Quartiles of times around `seconds`, of which others add up to `noise` times as much.
    fn times(worker: u64, seconds: f64, noise: f64) -> [f64; 3] {
        let key = Key::new(worker, "times");
        let mut times: Vec<f64> =
            (0..60).map(|step| seconds * (1.0 + noise * key.uniform_f64(step))).collect();
        times.sort_by(f64::total_cmp);
        [15, 30, 45].map(|at| times[at])
    }

    #[test]
    fn a_rank_is_slow_only_if_it_is_so_persistently_and_steps_are_long_enough_to_tell() {
        let slow = |seconds: &[[f64; 3]]| {
            let pace = |seconds: &[f64; 3]| RankPace { seconds: *seconds, work: 4.0 };
            let paces: Vec<RankPace> = seconds.iter().map(pace).collect();
            slow_rank(&paces, |_, _| SLOW_FACTOR).map(|(rank, _)| rank)
        };
        // Equally fast ranks whose times vary by chance.
        let healthy = [times(0, 0.01, 2.0), times(1, 0.01, 2.0), times(2, 0.013, 2.0)];
        assert!(healthy[2][1] > SLOW_FACTOR * healthy[0][1], "its median is longer");
        assert_eq!(slow(&healthy), None);
        // A short step is as long as a preemption.
        let short = [times(0, 0.0003, 0.1), times(1, 0.0006, 0.1)];
        assert_eq!(slow(&short), None);
        let one_is = [times(0, 0.01, 0.2), times(1, 0.02, 0.2), times(2, 0.01, 0.2)];
        assert_eq!(slow(&one_is), Some(1));
        let unmeasured = [one_is[0], one_is[1], [f64::NAN; 3]];
        assert_eq!(slow(&unmeasured), Some(1), "a rank without times is ignored");
        assert_eq!(slow(&one_is[..1]), None);
        assert_eq!(slow(&[]), None);
    }
}

//! Checkpoint intervals: optimal ones (Young 1974, Daly 2006) and one of bounded overhead
//! (CheckFreq, Mohan et al. 2021).
//!
//! Frequent checkpoints cost write time; rare ones lose, at every failure, half an interval of work
//! on average. With a write time of C seconds and a mean time between failures of M seconds, the
//! cost C / t + t / 2M is minimal at t = sqrt(2 C M) (Young). Daly also accounts for failures
//! during writes and recovery, which matters if C is not small compared to M.

/// Young's interval for a write time and a mean time between failures, in seconds.
pub fn young(write: f64, mtbf: f64) -> f64 {
    (2.0 * write * mtbf).sqrt()
}

/// Daly's interval: Young's with terms of higher order, and the mean time between failures if a
/// write takes twice that or longer.
pub fn daly(write: f64, mtbf: f64) -> f64 {
    if write >= 2.0 * mtbf {
        return mtbf;
    }
    let share = write / (2.0 * mtbf);
    young(write, mtbf) * (1.0 + share.sqrt() / 3.0 + share / 9.0) - write
}

/// Largest part of the time that checkpoints at the bounded interval may take.
pub const MAX_OVERHEAD: f64 = 0.01;

/// Shortest bounded interval in seconds: a run that ends before it writes no checkpoint.
pub const MIN_BOUNDED: f64 = 60.0;

/// Interval of checkpoints that cost `seconds` each, in seconds: saving takes at most
/// [`MAX_OVERHEAD`] of the time.
pub fn bounded(seconds: f64) -> f64 {
    (seconds / MAX_OVERHEAD).max(MIN_BOUNDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_intervals_take_a_hundredth_of_the_time() {
        assert!((bounded(0.001) - MIN_BOUNDED).abs() < 1e-12, "cheap ones are a minute apart");
        for seconds in [1.0, 30.0, 600.0] {
            assert!((seconds / bounded(seconds) - MAX_OVERHEAD).abs() < 1e-12, "{seconds}");
        }
    }

    #[test]
    fn dalys_interval_is_youngs_for_fast_writes() {
        // Twelve minutes a write and a failure every 18 hours: 161 minutes, as in the literature.
        assert!((young(12.0, 1080.0) - 161.0).abs() < 0.5);
        assert!((daly(12.0, 1080.0) - young(12.0, 1080.0)).abs() < 12.0);
        assert!((daly(0.001, 86_400.0) / young(0.001, 86_400.0) - 1.0).abs() < 0.01);
        // Five minutes of checkpoint and a day between failures: every two hours.
        assert!((young(300.0, 86_400.0) - 7200.0).abs() < 1.0);
    }

    #[test]
    fn other_intervals_cost_more() {
        let lost = |t: f64, c: f64, m: f64| c / t + t / (2.0 * m);
        for (c, m) in [(0.05, 3600.0), (1.0, 86_400.0), (30.0, 7200.0)] {
            let best = daly(c, m);
            for factor in [0.5, 2.0] {
                assert!(lost(best, c, m) < lost(best * factor, c, m), "{c} {m}");
            }
        }
    }

    #[test]
    fn slow_writes_use_the_time_between_failures() {
        assert!((daly(100.0, 10.0) - 10.0).abs() < 1e-12);
    }
}

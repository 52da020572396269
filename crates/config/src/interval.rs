//! How often to save: Young's and Daly's interval.
//!
//! Saving often costs writing; saving seldom costs the work since the last checkpoint, half an
//! interval on average, at every failure. With a write of C seconds and failures M seconds apart
//! the sum, C / t + t / 2M, is least at t = sqrt(2 C M) (Young 1974). Daly (2006) accounts for
//! failures during writing and recovery too; the difference matters when C is not small beside M.

/// Young's interval: a write takes `write` seconds, failures are `mtbf` apart on average.
pub fn young(write: f64, mtbf: f64) -> f64 {
    (2.0 * write * mtbf).sqrt()
}

/// Daly's: the same with terms of higher order, and never beyond the time between failures where
/// writing takes longer than that.
pub fn daly(write: f64, mtbf: f64) -> f64 {
    if write >= 2.0 * mtbf {
        return mtbf;
    }
    let share = write / (2.0 * mtbf);
    young(write, mtbf) * (1.0 + share.sqrt() / 3.0 + share / 9.0) - write
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dalys_interval_is_youngs_where_writing_is_quick() {
        // Twelve minutes a write and a failure every 18 hours: 161 minutes, as in the literature.
        assert!((young(12.0, 1080.0) - 161.0).abs() < 0.5);
        assert!((daly(12.0, 1080.0) - young(12.0, 1080.0)).abs() < 12.0);
        assert!((daly(0.001, 86_400.0) / young(0.001, 86_400.0) - 1.0).abs() < 0.01);
        // Five minutes of checkpoint and a day between failures: every two hours.
        assert!((young(300.0, 86_400.0) - 7200.0).abs() < 1.0);
    }

    #[test]
    fn no_other_interval_loses_less() {
        let lost = |t: f64, c: f64, m: f64| c / t + t / (2.0 * m);
        for (c, m) in [(0.05, 3600.0), (1.0, 86_400.0), (30.0, 7200.0)] {
            let best = daly(c, m);
            for factor in [0.5, 2.0] {
                assert!(lost(best, c, m) < lost(best * factor, c, m), "{c} {m}");
            }
        }
    }

    #[test]
    fn writing_that_takes_longer_than_failures_are_apart_never_stops() {
        assert!((daly(100.0, 10.0) - 10.0).abs() < 1e-12);
    }
}

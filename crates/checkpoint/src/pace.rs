//! How often to save: Young's and Daly's interval.
//!
//! Saving often costs writing; saving seldom costs the work since the last checkpoint, half an
//! interval on average, at every failure. With a write of C seconds and failures M seconds apart
//! the sum, C / t + t / 2M, is least at t = sqrt(2 C M) (Young 1974). Daly (2006) accounts for
//! failures during writing and recovery too; the difference matters when C is not small beside M.

/// The interval that costs the least: a write takes `write_seconds`, failures are `mtbf_seconds`
/// apart on average.
pub fn daly_interval(write_seconds: f64, mtbf_seconds: f64) -> f64 {
    if write_seconds >= 2.0 * mtbf_seconds {
        return mtbf_seconds;
    }
    let share = write_seconds / (2.0 * mtbf_seconds);
    let young = (2.0 * write_seconds * mtbf_seconds).sqrt();
    young * (1.0 + share.sqrt() / 3.0 + share / 9.0) - write_seconds
}

/// The mean time between failures, by what was expected and what was seen: as if one failure had
/// been seen before the run, after the time that was expected.
pub fn observed_mtbf(expected_seconds: f64, run_seconds: f64, num_failures: u64) -> f64 {
    (expected_seconds + run_seconds) / (1.0 + num_failures as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_youngs_where_writing_is_quick() {
        // Twelve minutes a write and a failure every 18 hours: 161 minutes, as in the literature.
        let minutes = daly_interval(12.0, 1080.0);
        let young = (2.0_f64 * 12.0 * 1080.0).sqrt();
        assert!((young - 161.0).abs() < 0.5, "{young}");
        assert!((minutes - young).abs() < 12.0, "{minutes}");
        let quick = daly_interval(0.001, 86_400.0);
        assert!((quick / (2.0_f64 * 0.001 * 86_400.0).sqrt() - 1.0).abs() < 0.01, "{quick}");
    }

    #[test]
    fn no_other_interval_loses_less() {
        let lost = |t: f64, c: f64, m: f64| c / t + t / (2.0 * m);
        for (c, m) in [(0.05, 3600.0), (1.0, 86_400.0), (30.0, 7200.0)] {
            let best = daly_interval(c, m);
            for factor in [0.5, 2.0] {
                assert!(lost(best, c, m) < lost(best * factor, c, m), "{c} {m}");
            }
        }
    }

    #[test]
    fn writing_that_takes_longer_than_failures_are_apart_never_stops() {
        assert!((daly_interval(100.0, 10.0) - 10.0).abs() < 1e-12);
    }

    #[test]
    fn failures_that_are_seen_outweigh_what_was_expected() {
        assert!((observed_mtbf(86_400.0, 0.0, 0) - 86_400.0).abs() < 1e-9);
        assert!(observed_mtbf(86_400.0, 3600.0, 11) < 7_501.0);
        assert!(observed_mtbf(3600.0, 86_400.0, 0) > 86_400.0);
    }
}

//! How often failures are to be expected, by what was expected and what was seen. How often to save
//! then: [`lockstep_config::interval`].

/// The mean time between failures, by what was expected and what was seen: as if one failure had
/// been seen before the run, after the time that was expected.
pub fn observed_mtbf(expected_seconds: f64, run_seconds: f64, num_failures: u64) -> f64 {
    (expected_seconds + run_seconds) / (1.0 + num_failures as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_are_seen_outweigh_what_was_expected() {
        assert!((observed_mtbf(86_400.0, 0.0, 0) - 86_400.0).abs() < 1e-9);
        assert!(observed_mtbf(86_400.0, 3600.0, 11) < 7_501.0);
        assert!(observed_mtbf(3600.0, 86_400.0, 0) > 86_400.0);
    }
}

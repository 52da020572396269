//! Observed mean time between failures, the input of [`lockstep_config::interval`].

/// Mean time between failures from a prior and observations. The prior counts as one failure after
/// the expected time.
pub fn observed_mtbf(expected_seconds: f64, run_seconds: f64, num_failures: u64) -> f64 {
    (expected_seconds + run_seconds) / (1.0 + num_failures as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observed_failures_outweigh_the_prior() {
        assert!((observed_mtbf(86_400.0, 0.0, 0) - 86_400.0).abs() < 1e-9);
        assert!(observed_mtbf(86_400.0, 3600.0, 11) < 7_501.0);
        assert!(observed_mtbf(3600.0, 86_400.0, 0) > 86_400.0);
    }
}

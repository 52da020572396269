//! Latency histogram for quantiles.
//!
//! Eight logarithmic classes per doubling from one microsecond on: quantiles are accurate to 9 % at
//! any latency, and the size is constant.

use lockstep_tensor::math::scalar;
use std::time::Duration;

/// Classes per doubling.
const PER_DOUBLING: f64 = 8.0;

/// Up to about an hour.
pub const NUM_CLASSES: usize = 256;

/// Counts of latencies by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    counts: Vec<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: vec![0; NUM_CLASSES] }
    }
}

impl Latency {
    /// Counts one latency.
    pub fn note(&mut self, length: Duration) {
        let micros = (length.as_secs_f64() * 1e6).max(1.0);
        let class = (scalar::ln(micros) / std::f64::consts::LN_2 * PER_DOUBLING) as usize;
        self.counts[class.min(NUM_CLASSES - 1)] += 1;
    }

    /// Counts by class.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, counts: &[u64]) {
        self.counts.iter_mut().zip(counts).for_each(|(own, other)| *own += other);
    }

    /// Quantile in seconds; `None` without any count.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.counts.iter().sum();
        let target = ((share * total as f64).ceil() as u64).max(1);
        let mut counted = 0;
        let class = self.counts.iter().position(|count| {
            counted += count;
            counted >= target
        })?;
        // Geometric middle of the class.
        Some(1e-6 * scalar::exp((class as f64 + 0.5) / PER_DOUBLING * std::f64::consts::LN_2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_within_a_class() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        for millis in 1..=1000 {
            latency.note(Duration::from_millis(millis));
        }
        for (share, expected) in [(0.01, 0.01), (0.5, 0.5), (0.99, 0.99), (1.0, 1.0)] {
            let found = latency.quantile(share).expect("there are some");
            assert!((found / expected - 1.0).abs() < 0.1, "{share}: {found}");
        }
        let mut both = Latency::default();
        both.add(latency.counts());
        both.add(latency.counts());
        assert_eq!(both.quantile(0.5), latency.quantile(0.5));
    }

    #[test]
    fn latencies_outside_all_classes_are_counted() {
        let mut latency = Latency::default();
        latency.note(Duration::ZERO);
        latency.note(Duration::from_secs(1 << 40));
        assert_eq!(latency.counts().iter().sum::<u64>(), 2);
    }
}

//! Source of a sequence: an additive recurrence (Weyl 1916) over the cumulative weights.
//!
//! The fraction `u(n) = offset + n·φ mod 1` with the golden ratio φ fills the unit interval as
//! evenly as any sequence of its kind, so after *n* sequences a source of share *w* has `w·n` of
//! them up to an error of the order `log n`. Each leaf has an offset of its own. Sequence *n* thus
//! needs no state, and other weights change nothing but the choice.

use super::BLEND;
use crate::permutation::mix;

/// The golden ratio as a fraction of 2^64; odd, so that no value repeats.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Choice of the source of each sequence of a leaf.
#[derive(Debug, Clone)]
pub(super) struct Blend {
    offset: u64,
    weights: Vec<f64>,
}

impl Blend {
    /// Choice of a leaf among sources with these weights.
    pub(super) fn new(seed: u64, leaf: usize, weights: &[f64]) -> Self {
        Self { offset: mix(mix(seed, BLEND), leaf as u64), weights: weights.to_vec() }
    }

    /// Source of sequence `number`, which is not one that has ended.
    pub(super) fn source(&self, number: u64) -> usize {
        let word = self.offset.wrapping_add(number.wrapping_mul(GOLDEN));
        // 53 bits are exact in a double.
        let fraction = (word >> 11) as f64 / (1_u64 << 53) as f64;
        let total: f64 = self.weights.iter().sum();
        let mut left = fraction * total;
        let mut last = 0;
        for (source, &weight) in self.weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
            last = source;
            if left < weight {
                break;
            }
            left -= weight;
        }
        last
    }

    /// Leaves the share of an ended source to the others.
    pub(super) fn end(&mut self, source: usize) {
        self.weights[source] = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(blend: &Blend, numbers: std::ops::Range<u64>, num_sources: usize) -> Vec<u64> {
        let mut counts = vec![0; num_sources];
        numbers.for_each(|number| counts[blend.source(number)] += 1);
        counts
    }

    #[test]
    fn every_share_is_met_from_any_sequence_on() {
        let weights = [0.7, 0.2, 0.1];
        for leaf in 0..8 {
            let blend = Blend::new(3, leaf, &weights);
            for first in [0, 1, 1_000, 1 << 40] {
                for len in [10_u64, 100, 1_000, 10_000] {
                    let counts = counts(&blend, first..first + len, 3);
                    for (count, weight) in counts.iter().zip(weights) {
                        // Both ends of an interval of the recurrence err by less than log2 n.
                        let error = (*count as f64 - weight * len as f64).abs();
                        assert!(error <= 2.0 * (len as f64).log2(), "{leaf} {first} {len} {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_ended_source_leaves_its_share_to_the_others_by_their_weights() {
        let mut blend = Blend::new(3, 0, &[5.0, 3.0, 1.0]);
        blend.end(0);
        let counts = counts(&blend, 0..4_000, 3);
        assert_eq!(counts[0], 0);
        assert!(counts[1].abs_diff(3_000) < 20, "{counts:?}");
        blend.end(2);
        assert!((0..100).all(|number| blend.source(number) == 1));
    }
}

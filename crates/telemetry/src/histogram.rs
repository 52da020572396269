//! Histograms of tensors over the buckets of TensorBoard and TensorFlow: limits that grow by a
//! tenth from 1e-12 to 1e20 on both sides of zero (`tensorflow/core/lib/histogram`).

use serde::{Deserialize, Serialize};

use crate::number;

/// Smallest limit above zero, the limit that ends the series, and the ratio of two neighbours.
const FIRST: f64 = 1e-12;
const END: f64 = 1e20;
const RATIO: f64 = 1.1;

/// Numbers of a tally behind the counts: the sum and the sum of squares.
const NUM_SUMS: usize = 2;

/// Distribution of the finite values of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Smallest value.
    #[serde(with = "number")]
    pub min: f64,
    /// Largest value.
    #[serde(with = "number")]
    pub max: f64,
    /// Number of values.
    pub num: u64,
    /// Sum of the values.
    pub sum: f64,
    /// Sum of their squares.
    pub sum_squares: f64,
    /// Upper limit of every bucket, ascending; the first has no lower limit. Empty buckets in a row
    /// are one.
    pub limits: Vec<f64>,
    /// Number of values of every bucket.
    pub counts: Vec<u64>,
}

/// Limits of all buckets. Counts of values are kept in *tallies*, plain numbers that can be added
/// over ranks: a count for each bucket, the sum and the sum of squares.
#[derive(Clone, Debug)]
pub struct BucketLimits(Vec<f64>);

impl BucketLimits {
    /// Limits of TensorBoard.
    pub fn of_tensor_board() -> Self {
        let above = std::iter::successors(Some(FIRST), |limit| Some(limit * RATIO));
        let above: Vec<f64> = above.take_while(|limit| *limit < END).chain([f64::MAX]).collect();
        let below = above.iter().rev().map(|limit| -limit);
        Self(below.chain([0.0]).chain(above.iter().copied()).collect())
    }

    /// Length of a tally.
    pub fn tally_len(&self) -> usize {
        self.0.len() + NUM_SUMS
    }

    /// Adds the finite values to a tally, and to the largest negated and the largest value.
    pub fn add(&self, values: &[f32], tally: &mut [f64], extremes: &mut [f64; 2]) {
        let (counts, sums) = tally.split_at_mut(self.0.len());
        for value in values.iter().filter(|value| value.is_finite()) {
            let value = f64::from(*value);
            counts[self.0.partition_point(|limit| *limit <= value)] += 1.0;
            sums[0] += value;
            sums[1] += value * value;
            *extremes = [extremes[0].max(-value), extremes[1].max(value)];
        }
    }

    /// Histogram of a tally; none without values.
    pub fn histogram(&self, tally: &[f64], extremes: [f64; 2]) -> Option<Histogram> {
        let (counts, sums) = tally.split_at(self.0.len());
        let num = counts.iter().sum::<f64>() as u64;
        let (mut limits, mut kept) = (Vec::new(), Vec::new());
        let mut was_empty = false;
        for (limit, count) in self.0.iter().zip(counts) {
            let is_empty = *count < 0.5;
            if is_empty && was_empty {
                limits.pop();
                kept.pop();
            }
            limits.push(*limit);
            kept.push(*count as u64);
            was_empty = is_empty;
        }
        let (min, max) = (-extremes[0], extremes[1]);
        let (sum, sum_squares) = (sums[0], sums[1]);
        (num > 0).then_some(Histogram { min, max, num, sum, sum_squares, limits, counts: kept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_ascend_and_are_symmetric_up_to_the_largest_number() {
        let limits = BucketLimits::of_tensor_board().0;
        assert!(limits.is_sorted_by(|one, next| one < next));
        // ln(1e32) / ln(1.1) = 773.1: 774 limits above zero, then the largest number.
        assert_eq!(limits.len(), 2 * 775 + 1);
        assert!(limits.iter().zip(limits.iter().rev()).all(|(one, other)| *one + *other == 0.0));
        assert_eq!((limits[775], limits[776], limits[1550]), (0.0, 1e-12, f64::MAX));
    }

    #[test]
    fn values_are_counted_below_their_limit_and_parts_add_up() {
        let limits = BucketLimits::of_tensor_board();
        let values = [-2.0_f32, 0.0, 1e-13, 0.5, 0.5, f32::NAN, f32::INFINITY, 3.0];
        let mut tally = vec![0.0; limits.tally_len()];
        let mut extremes = [f64::NEG_INFINITY; 2];
        for part in values.chunks(3) {
            limits.add(part, &mut tally, &mut extremes);
        }
        let found = limits.histogram(&tally, extremes).expect("there are values");
        assert_eq!((found.min, found.max, found.num), (-2.0, 3.0, 6));
        assert!((found.sum - 2.0).abs() < 1e-12 && (found.sum_squares - 13.5).abs() < 1e-12);
        assert_eq!(found.counts.iter().sum::<u64>(), 6);
        for (value, expected) in [(-2.0, 1), (1e-13, 2), (0.5, 2), (3.0, 1)] {
            let bucket = found.limits.partition_point(|limit| *limit <= value);
            assert_eq!(found.counts[bucket], expected, "{value}");
        }
        assert!(found.counts.windows(2).all(|pair| pair != [0, 0]), "empty buckets are one");
        let nothing = vec![0.0; limits.tally_len()];
        assert_eq!(limits.histogram(&nothing, [f64::NEG_INFINITY; 2]), None);
    }
}

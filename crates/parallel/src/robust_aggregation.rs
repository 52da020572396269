//! Byzantine-robust aggregation of vectors from several workers.
//!
//! One Byzantine worker can move the mean anywhere. The rules here tolerate a minority of arbitrary
//! vectors, each at some cost in precision without attacks:
//!
//! - *median* and *trimmed mean*, coordinate-wise (Yin et al., "Byzantine-Robust Distributed
//!   Learning", ICML 2018): the extreme values of an element do not count;
//! - *Krum* (Blanchard et al., NeurIPS 2017): selects the vector closest to its nearest neighbors,
//!   so an attack must stay near honest vectors to be selected;
//! - *norm clipping*: limits the norm of each vector, so an attack moves the mean by at most that
//!   norm divided by the number of workers.
//!
//! Vectors are aggregated in the given order, element by element, so the bits depend on that order
//! only.

/// Aggregation rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregator {
    /// Weighted mean.
    Mean,
    /// Coordinate-wise median.
    Median,
    /// Coordinate-wise mean without the `trim` largest and `trim` smallest values.
    TrimmedMean {
        /// Number of values trimmed on either side.
        trim: usize,
    },
    /// The vector with the smallest sum of squared distances to its n − `assumed_byzantine` − 2
    /// nearest neighbors.
    Krum {
        /// Assumed number of Byzantine vectors.
        assumed_byzantine: usize,
    },
    /// Weighted mean of norm-clipped vectors.
    ClippedMean {
        /// Largest norm of a vector.
        max_norm: f64,
    },
}

/// Aggregates `vectors` into `out`; `weights` apply to means only and need not sum to one.
///
/// # Panics
/// Without any vector, or where their lengths differ.
pub fn aggregate(rule: Aggregator, vectors: &[&[f32]], weights: &[f64], out: &mut [f32]) {
    assert!(!vectors.is_empty() && vectors.len() == weights.len(), "one weight per vector");
    assert!(vectors.iter().all(|vector| vector.len() == out.len()), "vectors of one length");
    match rule {
        Aggregator::Mean => mean(vectors, weights, &vec![1.0; vectors.len()], out),
        Aggregator::Median => {
            // Of an even number, the mean of the two middle values.
            by_element(vectors, (vectors.len() - 1) / 2, out);
        }
        Aggregator::TrimmedMean { trim } => {
            by_element(vectors, trim.min((vectors.len() - 1) / 2), out);
        }
        Aggregator::Krum { assumed_byzantine } => {
            out.copy_from_slice(vectors[most_central(vectors, assumed_byzantine)]);
        }
        Aggregator::ClippedMean { max_norm } => {
            let shorten = |vector: &&[f32]| scale_to(max_norm, norm(vector));
            mean(vectors, weights, &vectors.iter().map(shorten).collect::<Vec<_>>(), out);
        }
    }
}

/// Factor that clips a norm to `max_norm`; zero if it is not finite.
pub fn scale_to(max_norm: f64, length: f64) -> f64 {
    if !length.is_finite() {
        0.0
    } else if length > max_norm {
        max_norm / length
    } else {
        1.0
    }
}

/// Euclidean norm of a vector.
pub fn norm(vector: &[f32]) -> f64 {
    vector.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x)).sqrt()
}

fn mean(vectors: &[&[f32]], weights: &[f64], scales: &[f64], out: &mut [f32]) {
    let all: f64 = weights.iter().sum();
    for (index, out) in out.iter_mut().enumerate() {
        let mut sum = 0.0;
        for ((vector, weight), scale) in vectors.iter().zip(weights).zip(scales) {
            // A factor of zero must also exclude non-finite values.
            if *scale > 0.0 {
                sum += weight / all * scale * f64::from(vector[index]);
            }
        }
        *out = sum as f32;
    }
}

/// Mean of each element without its `trim` smallest and largest values. NaN counts as the largest.
fn by_element(vectors: &[&[f32]], trim: usize, out: &mut [f32]) {
    let mut column = vec![0.0; vectors.len()];
    for (index, out) in out.iter_mut().enumerate() {
        for (value, vector) in column.iter_mut().zip(vectors) {
            let found = f64::from(vector[index]);
            *value = if found.is_nan() { f64::INFINITY } else { found };
        }
        column.sort_by(f64::total_cmp);
        let kept = &column[trim..column.len() - trim];
        *out = (kept.iter().sum::<f64>() / kept.len() as f64) as f32;
    }
}

/// Krum: index of the vector with the smallest sum of squared distances to its nearest neighbors.
fn most_central(vectors: &[&[f32]], assumed_byzantine: usize) -> usize {
    let num_neighbors = vectors.len().saturating_sub(assumed_byzantine + 2).max(1);
    let score = |own: usize| {
        let others = (0..vectors.len()).filter(|other| *other != own);
        let mut distances: Vec<f64> =
            others.map(|other| squared_distance(vectors[own], vectors[other])).collect();
        distances.sort_by(f64::total_cmp);
        distances.iter().take(num_neighbors).fold(0.0, |sum, distance| sum + distance)
    };
    let scores: Vec<f64> = (0..vectors.len()).map(score).collect();
    let nearest = scores.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    nearest.map_or(0, |(index, _)| index)
}

/// Squared distance; infinite if not a number.
fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| {
        let difference = f64::from(*a) - f64::from(*b);
        difference * difference
    };
    let sum = a.iter().zip(b).map(square).fold(0.0, |sum, square| sum + square);
    if sum.is_nan() { f64::INFINITY } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(rule: Aggregator, vectors: &[&[f32]]) -> Vec<f32> {
        let mut out = vec![0.0; vectors[0].len()];
        aggregate(rule, vectors, &vec![1.0; vectors.len()], &mut out);
        out
    }

    const HONEST: [&[f32]; 4] = [&[1.0, 2.0], &[1.1, 2.1], &[0.9, 1.9], &[1.0, 2.0]];

    #[test]
    fn one_byzantine_vector_moves_the_mean_anywhere_and_robust_rules_hardly() {
        for attack in [[1e6, -1e6], [f32::NAN, f32::INFINITY], [f32::NEG_INFINITY, 0.0]] {
            let all: Vec<&[f32]> = HONEST.into_iter().chain([&attack[..]]).collect();
            let mean = combined(Aggregator::Mean, &all);
            assert!(mean.iter().any(|x| !x.is_finite() || (x - 1.5).abs() > 1e3), "{mean:?}");
            for rule in [
                Aggregator::Median,
                Aggregator::TrimmedMean { trim: 1 },
                Aggregator::Krum { assumed_byzantine: 1 },
                Aggregator::ClippedMean { max_norm: 2.5 },
            ] {
                let found = combined(rule, &all);
                let far = (found[0] - 1.0).abs().max((found[1] - 2.0).abs());
                assert!(far < 0.8, "{rule:?} gives {found:?} for {attack:?}");
            }
        }
    }

    #[test]
    fn medians_of_even_numbers_lie_in_the_middle() {
        assert_eq!(combined(Aggregator::Median, &[&[1.0], &[9.0], &[2.0], &[4.0]]), [3.0]);
        assert_eq!(combined(Aggregator::Median, &[&[1.0], &[9.0], &[2.0]]), [2.0]);
    }

    #[test]
    fn krum_chooses_a_central_vector_given_the_number_of_byzantine_ones() {
        let vectors: [&[f32]; 5] = [&[0.0], &[0.1], &[0.2], &[5.0], &[5.05]];
        assert_eq!(combined(Aggregator::Krum { assumed_byzantine: 2 }, &vectors), [5.0]);
        assert_eq!(combined(Aggregator::Krum { assumed_byzantine: 1 }, &vectors), [0.1]);
    }

    #[test]
    fn weights_count_for_means() {
        let mut out = [0.0];
        aggregate(Aggregator::Mean, &[&[1.0], &[5.0]], &[3.0, 1.0], &mut out);
        assert!((out[0] - 2.0_f32).abs() < 1e-6, "{out:?}");
    }

    #[test]
    fn short_vectors_are_not_clipped() {
        assert_eq!(combined(Aggregator::ClippedMean { max_norm: 10.0 }, &HONEST), [1.0, 2.0]);
        assert_eq!(scale_to(2.0, 4.0).to_bits(), 0.5_f64.to_bits());
    }
}

//! Combining what several workers say, of whom some may lie.
//!
//! The mean has no defence: one worker can move it anywhere. The rules here bear a minority of
//! arbitrary vectors, each in its own way, and each at a price in precision when nobody lies:
//!
//! - *median* and *trimmed mean*, element by element (Yin et al., "Byzantine-Robust Distributed
//!   Learning", ICML 2018): what is largest or smallest in an element does not count there;
//! - *Krum* (Blanchard et al., NeurIPS 2017): the one vector that has its nearest neighbours
//!   nearest, so whoever lies must stay among the honest to be chosen;
//! - *norm clipping*: nobody's vector is longer than so much, so a lie moves the mean by at most
//!   that, divided by all.
//!
//! Vectors are combined in the order in which they are given, element after element, so the bits
//! depend on that order only.

/// How several vectors become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Combine {
    /// Their mean, weighted.
    Mean,
    /// The median of every element.
    Median,
    /// The mean of every element without its `trim` largest and `trim` smallest values.
    TrimmedMean {
        /// How many are left out on either side.
        trim: usize,
    },
    /// The vector whose nearest neighbours are nearest, all but `liars` and two others being
    /// neighbours.
    Krum {
        /// How many vectors may be arbitrary.
        liars: usize,
    },
    /// The weighted mean of vectors that are shortened to this length.
    ClippedMean {
        /// The most that a vector's length may be.
        most: f64,
    },
}

/// Puts what becomes of all `vectors` into `out`; `weights` count for means only, and need not add
/// up to one.
///
/// # Panics
/// Without any vector, or where their lengths differ.
pub fn combine(rule: Combine, vectors: &[&[f32]], weights: &[f64], out: &mut [f32]) {
    assert!(!vectors.is_empty() && vectors.len() == weights.len(), "a weight for each vector");
    assert!(vectors.iter().all(|vector| vector.len() == out.len()), "vectors of one length");
    match rule {
        Combine::Mean => mean(vectors, weights, &vec![1.0; vectors.len()], out),
        Combine::Median => {
            // Of an even number, the two in the middle count.
            by_element(vectors, (vectors.len() - 1) / 2, out);
        }
        Combine::TrimmedMean { trim } => {
            by_element(vectors, trim.min((vectors.len() - 1) / 2), out);
        }
        Combine::Krum { liars } => out.copy_from_slice(vectors[most_central(vectors, liars)]),
        Combine::ClippedMean { most } => {
            let shorten = |vector: &&[f32]| scale_to(most, norm(vector));
            mean(vectors, weights, &vectors.iter().map(shorten).collect::<Vec<_>>(), out);
        }
    }
}

/// The factor that brings a length down to at most `most`; nothing that is not finite is let in.
pub fn scale_to(most: f64, length: f64) -> f64 {
    if !length.is_finite() {
        0.0
    } else if length > most {
        most / length
    } else {
        1.0
    }
}

/// The Euclidean length of a vector.
pub fn norm(vector: &[f32]) -> f64 {
    vector.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x)).sqrt()
}

fn mean(vectors: &[&[f32]], weights: &[f64], scales: &[f64], out: &mut [f32]) {
    let all: f64 = weights.iter().sum();
    for (index, out) in out.iter_mut().enumerate() {
        let mut sum = 0.0;
        for ((vector, weight), scale) in vectors.iter().zip(weights).zip(scales) {
            // A factor of zero must silence even what is not finite.
            if *scale > 0.0 {
                sum += weight / all * scale * f64::from(vector[index]);
            }
        }
        *out = sum as f32;
    }
}

/// The mean of each element without its `trim` smallest and largest values. What is no number is
/// among the largest.
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

/// Which vector has the smallest sum of squared distances to its n - liars - 2 nearest.
fn most_central(vectors: &[&[f32]], liars: usize) -> usize {
    let num_near = vectors.len().saturating_sub(liars + 2).max(1);
    let score = |own: usize| {
        let others = (0..vectors.len()).filter(|other| *other != own);
        let mut distances: Vec<f64> =
            others.map(|other| squared_distance(vectors[own], vectors[other])).collect();
        distances.sort_by(f64::total_cmp);
        distances.iter().take(num_near).fold(0.0, |sum, distance| sum + distance)
    };
    let scores: Vec<f64> = (0..vectors.len()).map(score).collect();
    let nearest = scores.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    nearest.map_or(0, |(index, _)| index)
}

/// What is not finite is infinitely far away.
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

    fn combined(rule: Combine, vectors: &[&[f32]]) -> Vec<f32> {
        let mut out = vec![0.0; vectors[0].len()];
        combine(rule, vectors, &vec![1.0; vectors.len()], &mut out);
        out
    }

    const HONEST: [&[f32]; 4] = [&[1.0, 2.0], &[1.1, 2.1], &[0.9, 1.9], &[1.0, 2.0]];

    #[test]
    fn a_liar_moves_the_mean_anywhere_and_the_others_hardly() {
        for lie in [[1e6, -1e6], [f32::NAN, f32::INFINITY], [f32::NEG_INFINITY, 0.0]] {
            let all: Vec<&[f32]> = HONEST.into_iter().chain([&lie[..]]).collect();
            let mean = combined(Combine::Mean, &all);
            assert!(mean.iter().any(|x| !x.is_finite() || (x - 1.5).abs() > 1e3), "{mean:?}");
            for rule in [
                Combine::Median,
                Combine::TrimmedMean { trim: 1 },
                Combine::Krum { liars: 1 },
                Combine::ClippedMean { most: 2.5 },
            ] {
                let found = combined(rule, &all);
                let far = (found[0] - 1.0).abs().max((found[1] - 2.0).abs());
                assert!(far < 0.8, "{rule:?} gives {found:?} for {lie:?}");
            }
        }
    }

    #[test]
    fn medians_of_even_numbers_lie_in_the_middle() {
        assert_eq!(combined(Combine::Median, &[&[1.0], &[9.0], &[2.0], &[4.0]]), [3.0]);
        assert_eq!(combined(Combine::Median, &[&[1.0], &[9.0], &[2.0]]), [2.0]);
    }

    #[test]
    fn krum_chooses_one_of_the_crowd_and_needs_to_know_how_many_may_lie() {
        let vectors: [&[f32]; 5] = [&[0.0], &[0.1], &[0.2], &[5.0], &[5.05]];
        assert_eq!(combined(Combine::Krum { liars: 2 }, &vectors), [5.0]);
        assert_eq!(combined(Combine::Krum { liars: 1 }, &vectors), [0.1]);
    }

    #[test]
    fn weights_count_for_means() {
        let mut out = [0.0];
        combine(Combine::Mean, &[&[1.0], &[5.0]], &[3.0, 1.0], &mut out);
        assert!((out[0] - 2.0_f32).abs() < 1e-6, "{out:?}");
    }

    #[test]
    fn short_vectors_are_not_clipped() {
        assert_eq!(combined(Combine::ClippedMean { most: 10.0 }, &HONEST), [1.0, 2.0]);
        assert_eq!(scale_to(2.0, 4.0).to_bits(), 0.5_f64.to_bits());
    }
}

//! Eigenvalues and gradient noise of convex problems.
//!
//! Eigenvalues are evenly spaced on a logarithmic scale from 1 down to one over the condition
//! number. The quadratic rotates its eigenvectors by a product of Householder reflections `I − 2 v
//! vᵀ`: a few mix all coordinates, and each costs one inner product instead of a product with a
//! dense matrix.

use lockstep_config::Problem;
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;

/// Householder reflections of a rotation.
const NUM_REFLECTIONS: usize = 4;

/// `dim` numbers from 1 down to 1 / `condition`, in geometric progression.
pub(super) fn eigenvalues(dim: usize, condition: f64) -> Vec<f64> {
    let step = if dim > 1 { -scalar::ln(condition) / (dim - 1) as f64 } else { 0.0 };
    (0..dim).map(|index| scalar::exp(step * index as f64)).collect()
}

/// A symmetric matrix with known eigenvalues, in factored form.
#[derive(Debug)]
pub(super) struct Curvature {
    eigenvalues: Vec<f64>,
    /// Unit vectors.
    reflections: Vec<Vec<f64>>,
}

impl Curvature {
    pub(super) fn new(problem: &Problem) -> Self {
        let mirror = |number: usize| {
            let key = Key::new(problem.seed, "curvature").with(number as u64);
            let direction: Vec<f64> =
                (0..problem.dim).map(|index| f64::from(key.normal(index as u64))).collect();
            let length = dot(&direction, &direction).sqrt().max(f64::MIN_POSITIVE);
            direction.iter().map(|value| value / length).collect()
        };
        Self {
            eigenvalues: eigenvalues(problem.dim, problem.condition),
            reflections: (0..NUM_REFLECTIONS).map(mirror).collect(),
        }
    }

    /// Turns `r` into the product of the matrix with it. Sums are `f64`, elements ascending.
    pub(super) fn apply<T: Real>(&self, r: &mut [T]) {
        self.reflections.iter().for_each(|mirror| reflect(mirror, r));
        for (r, eigenvalue) in r.iter_mut().zip(&self.eigenvalues) {
            *r = T::rounded(eigenvalue * r.wide());
        }
        self.reflections.iter().rev().for_each(|mirror| reflect(mirror, r));
    }
}

/// A number that is stored in any format and computed in `f64`.
pub(super) trait Real: Copy {
    fn wide(self) -> f64;
    fn rounded(wide: f64) -> Self;
}

impl Real for f32 {
    fn wide(self) -> f64 {
        self.into()
    }
    fn rounded(wide: f64) -> Self {
        wide as Self
    }
}

impl Real for f64 {
    fn wide(self) -> f64 {
        self
    }
    fn rounded(wide: f64) -> Self {
        wide
    }
}

fn reflect<T: Real>(mirror: &[f64], r: &mut [T]) {
    let along = mirror.iter().zip(&*r).fold(0.0, |sum, (v, r)| sum + v * r.wide());
    for (r, v) in r.iter_mut().zip(mirror) {
        *r = T::rounded(r.wide() - 2.0 * along * v);
    }
}

/// The sum of products, elements ascending.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// Noise in the gradients of samples, which sums to zero: every second sample has the negated noise
/// of the previous one, and a last one without a partner has none. Held-out samples have none.
#[derive(Debug)]
pub(super) struct Noise {
    key: Key,
    deviation: f64,
    num_pairs: u64,
}

impl Noise {
    pub(super) fn new(problem: &Problem) -> Self {
        Self {
            key: Key::new(problem.seed, "gradient noise"),
            deviation: problem.noise,
            num_pairs: problem.samples as u64 / 2,
        }
    }

    /// The noise of a sample.
    pub(super) fn copy(&self, sample: u64, out: &mut [f32]) {
        let (pair, is_opposite) = (sample / 2, sample % 2 == 1);
        if self.deviation <= 0.0 || pair >= self.num_pairs {
            out.fill(0.0);
            return;
        }
        let (key, sign) = (self.key.with(pair), if is_opposite { -1.0 } else { 1.0 });
        for (index, out) in out.iter_mut().enumerate() {
            *out = (sign * self.deviation * f64::from(key.normal(index as u64))) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: Problem =
        Problem { samples: 7, dim: 9, condition: 50.0, noise: 0.5, seed: 3, ..Problem::NONE };

    #[test]
    fn eigenvalues_run_from_one_to_one_over_the_condition_number() {
        let found = eigenvalues(5, 16.0);
        for (found, expected) in found.iter().zip([1.0, 0.5, 0.25, 0.125, 0.0625]) {
            assert!((found - expected).abs() < 1e-14, "{found} is not {expected}");
        }
        assert_eq!(eigenvalues(1, 16.0), [1.0]);
    }

    #[test]
    fn the_matrix_is_symmetric_with_its_eigenvalues_and_rotated_axes() {
        let curvature = Curvature::new(&PROBLEM);
        let column = |index: usize| {
            let mut unit = vec![0.0_f64; PROBLEM.dim];
            unit[index] = 1.0;
            curvature.apply(&mut unit);
            unit
        };
        let matrix: Vec<_> = (0..PROBLEM.dim).map(column).collect();
        for (i, column) in matrix.iter().enumerate() {
            for (other, value) in matrix.iter().zip(column) {
                assert!((value - other[i]).abs() < 1e-14);
            }
        }
        let trace: f64 = (0..PROBLEM.dim).map(|i| matrix[i][i]).sum();
        let squares: f64 = matrix.iter().map(|column| dot(column, column)).sum();
        let expected = eigenvalues(PROBLEM.dim, PROBLEM.condition);
        assert!((trace - expected.iter().sum::<f64>()).abs() < 1e-12);
        assert!((squares - dot(&expected, &expected)).abs() < 1e-12);
        assert!(matrix[0].iter().filter(|value| value.abs() > 1e-3).count() > 5);
    }

    #[test]
    fn noise_cancels_over_all_samples() {
        let noise = Noise::new(&PROBLEM);
        let mut sum = vec![0.0; PROBLEM.dim];
        let mut row = vec![0.0_f32; PROBLEM.dim];
        for sample in 0..PROBLEM.samples as u64 {
            noise.copy(sample, &mut row);
            assert_eq!(row.iter().any(|value| *value != 0.0), sample < 6, "sample {sample}");
            sum.iter_mut().zip(&row).for_each(|(sum, value)| *sum += value);
        }
        assert!(sum.iter().all(|sum| *sum == 0.0), "{sum:?}");
        noise.copy(PROBLEM.samples as u64, &mut row);
        assert!(row.iter().all(|value| *value == 0.0), "held out");
    }
}

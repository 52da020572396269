//! Optimum of a convex problem, in `f64`, from the training samples.
//!
//! The quadratic is constructed around its optimum. Ridge regression solves the normal equations
//! `(AᵀA / n + l2 I) x = Aᵀb / n` by Cholesky factorisation. Logistic regression uses Newton's
//! method until the gradient vanishes, halving steps that would increase the loss.

use super::quadratic;
use super::regression::Loss;
use super::samples::Samples;
use super::spectrum::{Curvature, dot};
use lockstep_config::{Family, Model};

/// Largest number of Newton steps; a dozen suffice.
const MAX_NEWTON_STEPS: usize = 60;
/// Norm of the gradient below which differences of the loss are rounding errors.
const SMALL_GRADIENT: f64 = 1e-7;

/// Mean training loss as a function.
#[derive(Debug)]
pub(super) enum Objective {
    Quadratic { curvature: Curvature, target: Vec<f64> },
    Regression { loss: Loss, l2: f64, samples: Samples },
}

/// Optimum and the loss there.
#[derive(Debug)]
pub(super) struct Optimum {
    pub(super) x: Vec<f64>,
    pub(super) loss: f64,
}

/// Value, gradient and Hessian of an objective at a point.
struct QuadraticModel {
    gradient: Vec<f64>,
    /// Row-major, symmetric.
    curvature: Vec<f64>,
}

impl Objective {
    /// The objective of a convex family.
    pub(super) fn of(model: &Model) -> Self {
        let problem = &model.problem;
        if model.family == Family::Quadratic {
            let target = quadratic::target(problem).iter().map(|x| f64::from(*x)).collect();
            return Self::Quadratic { curvature: Curvature::new(problem), target };
        }
        let (loss, l2) = (Loss::of(model.family), problem.l2);
        Self::Regression { loss, l2, samples: Samples::new(model) }
    }

    /// The mean loss at a point.
    pub(super) fn at(&self, x: &[f64]) -> f64 {
        match self {
            Self::Quadratic { curvature, target } => {
                let difference: Vec<f64> =
                    x.iter().zip(target).map(|(x, target)| x - target).collect();
                let mut slope = difference.clone();
                curvature.apply(&mut slope);
                0.5 * dot(&difference, &slope)
            }
            Self::Regression { loss, l2, samples } => {
                let of_sample = |sample: usize| {
                    let (guess, target) = guess(samples, sample, x);
                    loss.at(guess, target).0
                };
                let num_samples = samples.train().len() as f64;
                let sum = samples.train().map(of_sample).fold(0.0, |sum, loss| sum + loss);
                sum / num_samples + 0.5 * l2 * dot(x, x)
            }
        }
    }

    /// Number of unknowns.
    pub(super) fn dim(&self) -> usize {
        match self {
            Self::Quadratic { target, .. } => target.len(),
            Self::Regression { samples, .. } => samples.width(),
        }
    }

    /// Product of the Hessian at a point with a vector.
    pub(super) fn product(&self, x: &[f64], v: &[f64]) -> Vec<f64> {
        match self {
            Self::Quadratic { curvature, .. } => {
                let mut product = v.to_vec();
                curvature.apply(&mut product);
                product
            }
            Self::Regression { loss, l2, samples } => {
                let share = 1.0 / samples.train().len() as f64;
                let mut product: Vec<f64> = v.iter().map(|v| l2 * v).collect();
                for sample in samples.train() {
                    let (here, target) = guess(samples, sample, x);
                    let (_, _, bend) = loss.at(here, target);
                    let along = share * bend * guess(samples, sample, v).0;
                    for (p, a) in product.iter_mut().zip(samples.row(sample)) {
                        *p += along * f64::from(*a);
                    }
                }
                product
            }
        }
    }

    /// Computes the optimum.
    pub(super) fn optimum(&self) -> Optimum {
        let x = match self {
            Self::Quadratic { target, .. } => target.clone(),
            Self::Regression { .. } => self.newton(),
        };
        Optimum { loss: self.at(&x), x }
    }

    /// One step suffices for a quadratic loss, except for rounding, which a second step removes.
    fn newton(&self) -> Vec<f64> {
        let mut x = vec![0.0; self.dim()];
        let mut best = f64::INFINITY;
        for _ in 0..MAX_NEWTON_STEPS {
            let QuadraticModel { gradient, mut curvature } = self.quadratic_model(&x);
            let norm = dot(&gradient, &gradient).sqrt();
            if norm < SMALL_GRADIENT && norm >= best {
                break;
            }
            best = best.min(norm);
            let mut step = gradient.clone();
            solve(&mut curvature, &mut step);
            let ahead = |share: f64| -> Vec<f64> {
                x.iter().zip(&step).map(|(x, step)| x - share * step).collect()
            };
            let (here, slope) = (self.at(&x), dot(&gradient, &step));
            let is_lower = |share: f64| self.at(&ahead(share)) <= here - 1e-4 * share * slope;
            let mut share = 1.0;
            while norm >= SMALL_GRADIENT && share > 1e-9 && !is_lower(share) {
                share /= 2.0;
            }
            x = ahead(share);
        }
        x
    }

    fn quadratic_model(&self, x: &[f64]) -> QuadraticModel {
        let Self::Regression { loss, l2, samples } = self else {
            unreachable!("the quadratic has a known optimum")
        };
        let (dim, share) = (x.len(), 1.0 / samples.train().len() as f64);
        let mut gradient: Vec<f64> = x.iter().map(|x| l2 * x).collect();
        let mut curvature = vec![0.0; dim * dim];
        for sample in samples.train() {
            let (guess, target) = guess(samples, sample, x);
            let (_, slope, bend) = loss.at(guess, target);
            let row: Vec<f64> = samples.row(sample).iter().map(|a| f64::from(*a)).collect();
            for (i, a) in row.iter().enumerate() {
                gradient[i] += share * slope * a;
                let factor = share * bend * a;
                for (c, b) in curvature[i * dim..][..=i].iter_mut().zip(&row) {
                    *c += factor * b;
                }
            }
        }
        for i in 0..dim {
            curvature[i * dim + i] += l2;
        }
        QuadraticModel { gradient, curvature }
    }
}

fn guess(samples: &Samples, sample: usize, x: &[f64]) -> (f64, f64) {
    let row = samples.row(sample);
    let guess = row.iter().zip(x).fold(0.0, |sum, (a, x)| sum + f64::from(*a) * x);
    (guess, f64::from(samples.target(sample)))
}

/// Replaces `b` by the solution of `A x = b` for a positive definite A, of which only the lower
/// triangle is read; it becomes the Cholesky factor L with `A = L Lᵀ`.
fn solve(a: &mut [f64], b: &mut [f64]) {
    let dim = b.len();
    for i in 0..dim {
        for j in 0..=i {
            let (before, row) = a.split_at(i * dim);
            let other = if i == j { row } else { &before[j * dim..] };
            let rest = row[j] - dot(&row[..j], &other[..j]);
            a[i * dim + j] = if i == j { rest.sqrt() } else { rest / a[j * dim + j] };
        }
    }
    for i in 0..dim {
        b[i] = (b[i] - dot(&a[i * dim..][..i], &b[..i])) / a[i * dim + i];
    }
    for i in (0..dim).rev() {
        let below = (i + 1..dim).fold(0.0, |sum, j| sum + a[j * dim + i] * b[j]);
        b[i] = (b[i] - below) / a[i * dim + i];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::curvature::{largest, product_by_differences};
    use crate::problem::metrics::tests::{CONVEX, convex};

    #[test]
    fn cholesky_solves_linear_equations() {
        let a = [4.0, 2.0, 0.4, 2.0, 5.0, 1.0, 0.4, 1.0, 3.0];
        let expected = [1.0, -2.0, 0.5];
        let mut b: Vec<f64> = a.chunks(3).map(|row| dot(row, &expected)).collect();
        solve(&mut a.to_vec(), &mut b);
        for (found, expected) in b.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-14, "{found} is not {expected}");
        }
    }

    #[test]
    fn hessian_products_match_differences_of_gradients_and_the_largest_eigenvalue() {
        for family in CONVEX {
            let model = convex(family);
            let objective = Objective::of(&model);
            let x: Vec<f64> = (0..5).map(|index| 0.3 - 0.1 * f64::from(index)).collect();
            let found = largest(5, |v| objective.product(&x, v));
            if let Objective::Quadratic { .. } = objective {
                assert!((found.value - 1.0).abs() < 1e-9, "by construction: {found:?}");
                continue;
            }
            let gradient = |x: &[f64]| objective.quadratic_model(x).gradient;
            let v = [0.5, -0.2, 0.1, 0.7, -0.4];
            let differences = product_by_differences(gradient, &x, &v, 1e-4);
            for (a, b) in objective.product(&x, &v).iter().zip(&differences) {
                assert!((a - b).abs() < 1e-7, "{family}: {a} is not {b}");
            }
            // No unit vector has a larger Rayleigh quotient, and the trace bounds it.
            let lower = objective.quadratic_model(&x).curvature;
            let diagonal = (0..5).map(|i| lower[i * 5 + i]);
            let (most, trace) =
                diagonal.fold((0.0_f64, 0.0), |(most, sum), d| (most.max(d), sum + d));
            assert!((most..trace).contains(&found.value), "{family}: {found:?}, {most} {trace}");
        }
    }

    #[test]
    fn the_optimum_is_a_minimum_with_zero_gradient() {
        for family in CONVEX {
            let objective = Objective::of(&convex(family));
            let Optimum { x, loss } = objective.optimum();
            for direction in 0..x.len() {
                for reach in [-1e-3, 1e-3] {
                    let mut beside = x.clone();
                    beside[direction] += reach;
                    assert!(objective.at(&beside) > loss, "{family}, direction {direction}");
                }
            }
            if let Objective::Regression { .. } = objective {
                let gradient = objective.quadratic_model(&x).gradient;
                let norm = dot(&gradient, &gradient).sqrt();
                assert!(norm < 1e-12, "{family}: the gradient is {norm}");
            }
        }
    }
}

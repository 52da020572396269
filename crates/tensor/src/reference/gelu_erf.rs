//! GELU by its definition, in `f64`.

use crate::math::scalar::exp;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// `x · Φ(x)`.
pub fn forward(x: &[f64]) -> Vec<f64> {
    x.iter().map(|&x| x * distribution(x)).collect()
}

/// The gradient of the input.
pub fn backward(x: &[f64], dy: &[f64]) -> Vec<f64> {
    let slope = |x: f64| distribution(x) + x * exp(-0.5 * x * x) / (2.0 * PI).sqrt();
    x.iter().zip(dy).map(|(&x, dy)| dy * slope(x)).collect()
}

/// The normal distribution: `(1 + erf(x / sqrt 2)) / 2`.
fn distribution(x: f64) -> f64 {
    0.5 * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// The error function by its series `2/sqrt(π) · exp(-x²) · Σ 2ⁿ x^(2n+1) / (2n+1)!!`, whose terms
/// all have one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    2.0 / PI.sqrt() * exp(-x * x) * sum
}

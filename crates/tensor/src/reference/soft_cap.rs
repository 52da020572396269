//! Soft cap by its definition, in `f64`.

use crate::math::scalar::tanh;

/// `cap · tanh(x / cap)`.
pub fn forward(cap: f64, x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| cap * tanh(x / cap)).collect()
}

/// The gradient of the input.
pub fn backward(cap: f64, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let slope = |x: f64| 1.0 - tanh(x / cap) * tanh(x / cap);
    x.iter().zip(dy).map(|(x, dy)| dy * slope(*x)).collect()
}

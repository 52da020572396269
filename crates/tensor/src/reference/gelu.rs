//! GELU in its tanh form by its definition, in `f64`.

use crate::math::scalar::tanh;
use std::f64::consts::PI;

const CUBIC: f64 = 0.044_715;

/// `x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))`.
pub fn forward(x: &[f64]) -> Vec<f64> {
    x.iter().map(|&x| 0.5 * x * (1.0 + tanh(argument(x)))).collect()
}

/// The gradient of the input.
pub fn backward(x: &[f64], dy: &[f64]) -> Vec<f64> {
    let dgelu = |x: f64| {
        let t = tanh(argument(x));
        let slope = (2.0 / PI).sqrt() * (1.0 + 3.0 * CUBIC * x * x);
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
    };
    x.iter().zip(dy).map(|(&x, dy)| dy * dgelu(x)).collect()
}

fn argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + CUBIC * x * x * x)
}

//! GELU (Hendrycks and Gimpel 2016) in its tanh approximation, the activation of the GPT-2 family.
//!
//! The definition is `x/2 · (1 + tanh(u))` with `u = sqrt(2/π) · (x + 0.044715 x³)`. Because
//! `(1 + tanh(u)) / 2 = sigmoid(2u)`, it is also `x · sigmoid(v)` with `v = 2u`, which does not
//! cancel for negative `x`. The derivative of that is exact for this form:
//! `sigmoid(v) + x · sigmoid'(v) · v'`.

use crate::Cpu;
use crate::math::{sigmoid, sigmoid_and_slope};
use crate::pointwise::{self, Function};
use crate::simd::Simd;

/// `2 sqrt(2/π)`.
const SLOPE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// Sets `y` to the activation of `x`.
pub fn forward(cpu: &Cpu, x: &[f32], y: &mut [f32]) {
    pointwise::forward::<Gelu>(cpu, x, y);
}

/// Sets `dx` to the gradient of `x`, given `dy`.
pub fn backward(cpu: &Cpu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    pointwise::backward::<Gelu>(cpu, x, dy, dx);
}

pub(crate) struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn value<S: Simd>(s: S, x: S::V) -> S::V {
        let (v, _) = argument(s, x);
        s.mul(x, sigmoid(s, v))
    }

    #[inline(always)]
    fn gradient<S: Simd>(s: S, x: S::V, dy: S::V) -> S::V {
        let (v, dv) = argument(s, x);
        let (sigmoid, slope) = sigmoid_and_slope(s, v);
        s.mul(dy, s.fma(s.mul(x, slope), dv, sigmoid))
    }
}

/// The sigmoid's argument `v` and its derivative by `x`.
#[inline(always)]
fn argument<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    // Beyond 12 the sigmoid is exactly 0 or 1 and its slope exactly 0; clamping keeps the cube of a
    // huge x finite, because infinity times 0 would be NaN.
    let x = s.min(s.splat(12.0), s.max(s.splat(-12.0), x));
    let square = s.mul(x, x);
    let v = s.mul(x, s.fma(square, s.splat(SLOPE * CUBIC), s.splat(SLOPE)));
    let dv = s.fma(square, s.splat(3.0 * SLOPE * CUBIC), s.splat(SLOPE));
    (v, dv)
}

//! GELU (Hendrycks and Gimpel 2016) by its definition, the activation of GPT-NeoX.
//!
//! `x · Φ(x)` with the normal distribution `Φ(x) = (1 + erf(x / sqrt 2)) / 2`; the derivative is
//! `Φ(x) + x · φ(x)` with its density `φ`. As in PyTorch, `Φ` of a negative `x` is a difference, so
//! its error there is absolute.

use crate::Cpu;
use crate::math::{erf, exp};
use crate::pointwise::{self, Function};
use crate::simd::Simd;
use std::f32::consts::FRAC_1_SQRT_2;

/// `1 / sqrt(2π)`.
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

/// Sets `y` to the activation of `x`.
pub fn forward(cpu: &Cpu, x: &[f32], y: &mut [f32]) {
    pointwise::forward::<GeluErf>(cpu, x, y);
}

/// Sets `dx` to the gradient of `x`, given `dy`.
pub fn backward(cpu: &Cpu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    pointwise::backward::<GeluErf>(cpu, x, dy, dx);
}

struct GeluErf;

impl Function for GeluErf {
    #[inline(always)]
    fn value<S: Simd>(s: S, x: S::V) -> S::V {
        s.mul(x, distribution(s, x))
    }

    #[inline(always)]
    fn gradient<S: Simd>(s: S, x: S::V, dy: S::V) -> S::V {
        // Beyond 15 the density is exactly 0; clamping keeps the square of a huge x finite.
        let clamped = s.min(s.splat(15.0), s.max(s.splat(-15.0), x));
        let half_square = s.mul(s.mul(clamped, clamped), s.splat(-0.5));
        let density = s.mul(exp(s, half_square), s.splat(DENSITY_AT_ZERO));
        s.mul(dy, s.fma(clamped, density, distribution(s, x)))
    }
}

/// The normal distribution at `x`.
#[inline(always)]
fn distribution<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.splat(0.5);
    s.fma(erf(s, s.mul(x, s.splat(FRAC_1_SQRT_2))), half, half)
}

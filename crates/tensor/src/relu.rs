//! ReLU activation.
//!
//! `y = x` above zero and 0 elsewhere; the gradient passes where the input was above zero. NaN
//! propagates, because a ReLU that hid it would hide a divergence.

use crate::Cpu;
use crate::pointwise::{self, Function};
use crate::simd::Simd;

/// Sets `y` to the activation of `x`.
pub fn forward(cpu: &Cpu, x: &[f32], y: &mut [f32]) {
    pointwise::forward::<Relu>(cpu, x, y);
}

/// Sets `dx` to the gradient of `x`, given `dy`.
pub fn backward(cpu: &Cpu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    pointwise::backward::<Relu>(cpu, x, dy, dx);
}

struct Relu;

impl Function for Relu {
    #[inline(always)]
    fn value<S: Simd>(s: S, x: S::V) -> S::V {
        s.select_lt(x, s.zero(), s.zero(), x)
    }

    #[inline(always)]
    fn gradient<S: Simd>(s: S, x: S::V, dy: S::V) -> S::V {
        s.select_lt(s.zero(), x, dy, s.zero())
    }
}

//! First and second moments, shared by [`crate::adamw`], [`crate::adam`] and [`crate::lamb`].
//!
//! ```text
//! m ← m + (g − m) · (1 − beta1)
//! v ← beta2 · v + (1 − beta2) · g · g
//! ```
//! and the denominator `sqrt(v) / sqrt(bias2) + eps`, with g the scaled gradient. Scalars are
//! combined in `f64` and rounded once.

use crate::reduce::groups::{load, store};
use crate::simd::Simd;

/// Scalars of one step of Adam, AdamW or LAMB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Keeps the denominator away from zero.
    pub eps: f64,
    /// Weight decay; zero for parameters that do not decay.
    pub weight_decay: f64,
    /// Bias correction of the first moment: 1 − beta1 to the number of steps (this one included).
    pub bias1: f64,
    /// Bias correction of the second moment: 1 − beta2 to the number of steps.
    pub bias2: f64,
    /// Factor on every gradient; clipping sets it below one.
    pub grad_scale: f32,
}

/// Factors of the moments, each rounded once; C layout, because kernels of devices read it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Moments {
    toward_gradient: f32,
    beta2: f32,
    one_minus_beta2: f32,
    sqrt_bias2: f32,
    eps: f32,
}

impl Moments {
    /// Factors of a step.
    pub(crate) fn new(step: &AdamStep) -> Self {
        Self {
            toward_gradient: (1.0 - step.beta1) as f32,
            beta2: step.beta2 as f32,
            one_minus_beta2: (1.0 - step.beta2) as f32,
            sqrt_bias2: step.bias2.sqrt() as f32,
            eps: step.eps as f32,
        }
    }

    /// Updates group `i` of both moments by the scaled gradient; returns the first moment and the
    /// denominator.
    #[inline(always)]
    pub(crate) fn update<S: Simd>(
        &self,
        s: S,
        g: S::V,
        m: &mut [f32],
        v: &mut [f32],
        i: usize,
    ) -> (S::V, S::V) {
        let (beta2, one_minus_beta2) = (s.splat(self.beta2), s.splat(self.one_minus_beta2));
        let old_m = load(s, m, i);
        let new_m = s.fma(s.sub(g, old_m), s.splat(self.toward_gradient), old_m);
        let new_v = s.fma(s.mul(g, one_minus_beta2), g, s.mul(load(s, v, i), beta2));
        store(s, new_m, m, i);
        store(s, new_v, v, i);
        let root = s.div(s.sqrt(new_v), s.splat(self.sqrt_bias2));
        (new_m, s.add(root, s.splat(self.eps)))
    }
}

//! LARS on flat buffers: momentum with a layerwise trust ratio.
//!
//! You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), algorithm 1,
//! with g the scaled gradient and local the learning rate of the tensor:
//! ```text
//! local ← trust · ‖p‖ / (‖g‖ + weight_decay · ‖p‖)
//! b ← mu · b + lr · local · (g + weight_decay · p)
//! p ← p − b
//! ```
//! The learning rate is inside the momentum buffer, as in the paper: a change of the rate does not
//! rescale the buffer. Norms are over a whole tensor, which may be sharded over several ranks, so
//! the caller computes them; `local_lr` is lr · local. An element's result depends on that element
//! and those scalars alone, so any division of the buffers gives equal bits.

use crate::Cpu;
use crate::momentum::{self, Rates, Rule};
use crate::simd::Simd;

/// One step with momentum `mu`; `buffer` is zero before the first.
pub fn step(
    cpu: &Cpu,
    local_lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &mut [f32],
    g: &[f32],
    buffer: &mut [f32],
) {
    momentum::step::<Lars>(cpu, local_lr, mu, weight_decay, grad_scale, p, g, buffer);
}

struct Lars;

impl Rule for Lars {
    #[inline(always)]
    fn update<S: Simd>(s: S, rates: Rates<S::V>, p: S::V, d: S::V, b: S::V) -> (S::V, S::V) {
        let b = s.fma(b, rates.mu, s.mul(d, rates.lr));
        (b, s.sub(p, b))
    }
}

//! SGD with Nesterov momentum (Sutskever et al. 2013) on flat buffers.
//!
//! The formula is PyTorch's `torch.optim.SGD(nesterov=True)`, where weight decay is part of the
//! gradient, with g the scaled gradient:
//! ```text
//! d ← g + weight_decay · p
//! b ← mu · b + d
//! p ← p − lr · (d + mu · b)
//! ```
//! The step is the one that momentum would take next for an equal gradient. An element's result
//! depends on that element alone, so any division of the buffers (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::momentum::{self, Rates, Rule};
use crate::simd::Simd;

/// One step with momentum `mu`; `buffer` is zero before the first.
pub fn step(
    cpu: &Cpu,
    lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &mut [f32],
    g: &[f32],
    buffer: &mut [f32],
) {
    momentum::step::<Nesterov>(cpu, lr, mu, weight_decay, grad_scale, p, g, buffer);
}

struct Nesterov;

impl Rule for Nesterov {
    #[inline(always)]
    fn update<S: Simd>(s: S, rates: Rates<S::V>, p: S::V, d: S::V, b: S::V) -> (S::V, S::V) {
        let b = s.fma(b, rates.mu, d);
        (b, s.fma(s.fma(b, rates.mu, d), rates.minus_lr, p))
    }
}

//! AdamW (Loshchilov and Hutter 2019) on flat buffers: one fused pass over parameters, gradients
//! and both moments.
//!
//! The formula is PyTorch's `torch.optim.AdamW`, with g the scaled gradient:
//! ```text
//! p ← p · (1 − lr · weight_decay)
//! m ← m + (g − m) · (1 − beta1)
//! v ← beta2 · v + (1 − beta2) · g · g
//! p ← p − lr / bias1 · m / (sqrt(v) / sqrt(bias2) + eps)
//! ```
//! The step is memory-bound: seven streams of four bytes per element, and a dozen operations. All
//! operations therefore run while an element is in a register, and clipping is the factor
//! `grad_scale` instead of a separate pass. Scalars are combined in `f64` and rounded once. An
//! element's result depends on that element alone, so any division of the buffers (tasks, shards)
//! gives equal bits.

pub use crate::moments::AdamStep;

use crate::Cpu;
use crate::moments::Moments;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// One step: updates parameters `p` and moments `m` and `v` from gradients `g`.
pub fn step(cpu: &Cpu, step: &AdamStep, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len(), m.len(), "one first moment for each parameter");
    assert_eq!(p.len(), v.len(), "one second moment for each parameter");
    let factors = Factors::new(step);
    cpu.for_each_split([p, m, v], [ELEMENTS; 3], |i, [p, m, v]| {
        let g = &g[i * ELEMENTS..][..p.len()];
        update_part(cpu, factors, p, g, m, v);
    });
}

/// Updates a part of the buffers.
pub(crate) fn update_part(
    cpu: &Cpu,
    factors: Factors,
    p: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    cpu.run(Update { factors, p, g, m, v });
}

/// Factors of the loop, each rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    moments: Moments,
    keep: f32,
    minus_step_size: f32,
    grad_scale: f32,
}

impl Factors {
    pub(crate) fn new(step: &AdamStep) -> Self {
        Self {
            moments: Moments::new(step),
            keep: (1.0 - step.lr * step.weight_decay) as f32,
            minus_step_size: (-step.lr / step.bias1) as f32,
            grad_scale: step.grad_scale,
        }
    }
}

struct Update<'a> {
    factors: Factors,
    p: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl Kernel for Update<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { factors, p, g, m, v } = self;
        let (keep, grad_scale) = (s.splat(factors.keep), s.splat(factors.grad_scale));
        let minus_step_size = s.splat(factors.minus_step_size);
        for i in 0..num_groups(p) {
            let g = s.mul(load(s, g, i), grad_scale);
            let (m, denominator) = factors.moments.update(s, g, m, v, i);
            let kept = s.mul(load(s, p, i), keep);
            store(s, s.fma(s.div(m, denominator), minus_step_size, kept), p, i);
        }
    }
}

//! Adam (Kingma and Ba 2015) on flat buffers, with weight decay as part of the gradient (L2).
//!
//! The formulas are PyTorch's `torch.optim.Adam`, with g the scaled gradient:
//! ```text
//! g ← g + weight_decay · p
//! m ← m + (g − m) · (1 − beta1)
//! v ← beta2 · v + (1 − beta2) · g · g
//! p ← p − lr / bias1 · m / (sqrt(v) / sqrt(bias2) + eps)
//! ```
//! Unlike in [`crate::adamw`] the decay passes through the moments, so parameters with large
//! gradients decay less. An element's result depends on that element alone, so any division of the
//! buffers (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::moments::AdamStep;
use crate::moments::Moments;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// One step: updates parameters `p` and moments `m` and `v` from gradients `g`. The decay of
/// `step` is that of the gradient.
pub fn step(cpu: &Cpu, step: &AdamStep, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len(), m.len(), "one first moment for each parameter");
    assert_eq!(p.len(), v.len(), "one second moment for each parameter");
    let factors = Factors::new(step);
    cpu.for_each_split([p, m, v], [ELEMENTS; 3], |i, [p, m, v]| {
        let g = &g[i * ELEMENTS..][..p.len()];
        cpu.run(Update { factors, p, g, m, v });
    });
}

/// Factors of the loop, each rounded once.
#[derive(Clone, Copy)]
struct Factors {
    moments: Moments,
    weight_decay: f32,
    minus_step_size: f32,
    grad_scale: f32,
}

impl Factors {
    fn new(step: &AdamStep) -> Self {
        Self {
            moments: Moments::new(step),
            weight_decay: step.weight_decay as f32,
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
        let (weight_decay, grad_scale) =
            (s.splat(factors.weight_decay), s.splat(factors.grad_scale));
        let minus_step_size = s.splat(factors.minus_step_size);
        for i in 0..num_groups(p) {
            let old_p = load(s, p, i);
            let g = s.fma(old_p, weight_decay, s.mul(load(s, g, i), grad_scale));
            let (m, denominator) = factors.moments.update(s, g, m, v, i);
            store(s, s.fma(s.div(m, denominator), minus_step_size, old_p), p, i);
        }
    }
}

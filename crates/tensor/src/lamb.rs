//! LAMB on flat buffers: AdamW with a layerwise trust ratio.
//!
//! You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020),
//! algorithm 2, with bias correction and g the scaled gradient:
//! ```text
//! m ← m + (g − m) · (1 − beta1)
//! v ← beta2 · v + (1 − beta2) · g · g
//! u ← (m / bias1) / (sqrt(v) / sqrt(bias2) + eps) + weight_decay · p
//! p ← p − lr · ‖p‖ / ‖u‖ · u
//! ```
//! A step needs the norm of its direction u over the whole tensor, which may be sharded over
//! several ranks. It therefore has two halves: [`direction`] updates the moments and overwrites the
//! gradient with u, then the caller computes both norms and steps along u ([`crate::sgd::step`]).
//! No memory beyond the gradient's is needed. An element's result depends on that element alone, so
//! any division of the buffers gives equal bits.

use crate::Cpu;
use crate::moments::AdamStep;
use crate::moments::Moments;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Updates moments `m` and `v` from gradients `g`, and replaces those by the direction of the step.
/// The learning rate of `step` is not used.
pub fn direction(
    cpu: &Cpu,
    step: &AdamStep,
    p: &[f32],
    g: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len(), m.len(), "one first moment for each parameter");
    assert_eq!(p.len(), v.len(), "one second moment for each parameter");
    let factors = Factors::new(step);
    cpu.for_each_split([g, m, v], [ELEMENTS; 3], |i, [g, m, v]| {
        let p = &p[i * ELEMENTS..][..g.len()];
        cpu.run(Direction { factors, p, g, m, v });
    });
}

/// Factors of the loop, each rounded once.
#[derive(Clone, Copy)]
struct Factors {
    moments: Moments,
    weight_decay: f32,
    unbias1: f32,
    grad_scale: f32,
}

impl Factors {
    fn new(step: &AdamStep) -> Self {
        Self {
            moments: Moments::new(step),
            weight_decay: step.weight_decay as f32,
            unbias1: (1.0 / step.bias1) as f32,
            grad_scale: step.grad_scale,
        }
    }
}

struct Direction<'a> {
    factors: Factors,
    p: &'a [f32],
    g: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl Kernel for Direction<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { factors, p, g, m, v } = self;
        let (weight_decay, grad_scale) =
            (s.splat(factors.weight_decay), s.splat(factors.grad_scale));
        let unbias1 = s.splat(factors.unbias1);
        for i in 0..num_groups(g) {
            let scaled = s.mul(load(s, g, i), grad_scale);
            let (m, denominator) = factors.moments.update(s, scaled, m, v, i);
            let adam = s.div(s.mul(m, unbias1), denominator);
            store(s, s.fma(load(s, p, i), weight_decay, adam), g, i);
        }
    }
}

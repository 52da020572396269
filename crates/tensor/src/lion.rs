//! Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms") on flat buffers: the
//! sign of an interpolated momentum, with decoupled weight decay.
//!
//! Algorithm 2 of the paper, with g the scaled gradient:
//! ```text
//! c ← m + (g − m) · (1 − beta1)
//! p ← p · (1 − lr · weight_decay) − lr · sign(c)
//! m ← m + (g − m) · (1 − beta2)
//! ```
//! The sign of zero is zero. Scalars are combined in `f64` and rounded once. An element's result
//! depends on that element alone, so any division of the buffers (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Scalars of one step of Lion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionStep {
    /// Learning rate of this step: the distance that every element moves, decay apart.
    pub lr: f64,
    /// Share of the momentum in the direction.
    pub beta1: f64,
    /// Decay of the momentum.
    pub beta2: f64,
    /// Weight decay; zero for parameters that do not decay.
    pub weight_decay: f64,
    /// Factor on every gradient; clipping sets it below one.
    pub grad_scale: f32,
}

/// One step: updates parameters `p` and momentum `m` from gradients `g`.
pub fn step(cpu: &Cpu, step: &LionStep, p: &mut [f32], g: &[f32], m: &mut [f32]) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len(), m.len(), "one momentum value for each parameter");
    let factors = Factors::new(step);
    cpu.for_each_split([p, m], [ELEMENTS; 2], |i, [p, m]| {
        let g = &g[i * ELEMENTS..][..p.len()];
        cpu.run(Update { factors, p, g, m });
    });
}

/// Factors of the loop, each rounded once; C layout, because kernels of devices read it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Factors {
    /// Share of the gradient in the direction.
    into_direction: f32,
    /// Share of the gradient in the momentum.
    into_momentum: f32,
    keep: f32,
    lr: f32,
    grad_scale: f32,
}

impl Factors {
    pub(crate) fn new(step: &LionStep) -> Self {
        Self {
            into_direction: (1.0 - step.beta1) as f32,
            into_momentum: (1.0 - step.beta2) as f32,
            keep: (1.0 - step.lr * step.weight_decay) as f32,
            lr: step.lr as f32,
            grad_scale: step.grad_scale,
        }
    }
}

struct Update<'a> {
    factors: Factors,
    p: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
}

impl Kernel for Update<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { factors, p, g, m } = self;
        let into_direction = s.splat(factors.into_direction);
        let into_momentum = s.splat(factors.into_momentum);
        let (keep, grad_scale) = (s.splat(factors.keep), s.splat(factors.grad_scale));
        let (zero, lr, minus_lr) = (s.splat(0.0), s.splat(factors.lr), s.splat(-factors.lr));
        for i in 0..num_groups(p) {
            let old = load(s, m, i);
            let away = s.sub(s.mul(load(s, g, i), grad_scale), old);
            let direction = s.fma(away, into_direction, old);
            let up = s.select_lt(direction, zero, lr, zero);
            let moved = s.select_lt(zero, direction, minus_lr, up);
            store(s, s.add(s.mul(load(s, p, i), keep), moved), p, i);
            store(s, s.fma(away, into_momentum, old), m, i);
        }
    }
}

//! Momentum-buffer update shared by [`crate::sgd::momentum`], [`crate::nesterov`] and
//! [`crate::lars`].
//!
//! All of them add weight decay to the scaled gradient, `d ← g + weight_decay · p`, then update the
//! momentum buffer b and the parameters p by a [`Rule`]. An element's result depends on that
//! element alone, so any division of the buffers (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};
use std::marker::PhantomData;

/// Update rule of the momentum buffer and the parameters.
pub(crate) trait Rule: Send + Sync {
    /// Returns the new momentum buffer and the new parameters, from the direction `d`;
    /// implementations must be `#[inline(always)]`.
    fn update<S: Simd>(s: S, rates: Rates<S::V>, p: S::V, d: S::V, b: S::V) -> (S::V, S::V);
}

/// Scalars of a step.
#[derive(Clone, Copy)]
pub(crate) struct Rates<V> {
    /// Learning rate.
    pub(crate) lr: V,
    /// Negated learning rate.
    pub(crate) minus_lr: V,
    /// Momentum.
    pub(crate) mu: V,
}

/// One step of a rule with momentum `mu`; `buffer` is zero before the first.
pub(crate) fn step<R: Rule>(
    cpu: &Cpu,
    lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &mut [f32],
    g: &[f32],
    buffer: &mut [f32],
) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len(), buffer.len(), "one momentum value for each parameter");
    cpu.for_each_split([p, buffer], [ELEMENTS; 2], |i, [p, buffer]| {
        let g = &g[i * ELEMENTS..][..p.len()];
        let rule = PhantomData::<R>;
        cpu.run(Step { rule, lr, mu, weight_decay, grad_scale, p, g, buffer });
    });
}

struct Step<'a, R> {
    rule: PhantomData<R>,
    lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &'a mut [f32],
    g: &'a [f32],
    buffer: &'a mut [f32],
}

impl<R: Rule> Kernel for Step<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rates =
            Rates { lr: s.splat(self.lr), minus_lr: s.splat(-self.lr), mu: s.splat(self.mu) };
        let (weight_decay, grad_scale) = (s.splat(self.weight_decay), s.splat(self.grad_scale));
        for i in 0..num_groups(self.p) {
            let p = load(s, self.p, i);
            let d = s.fma(p, weight_decay, s.mul(load(s, self.g, i), grad_scale));
            let (b, p) = R::update(s, rates, p, d, load(s, self.buffer, i));
            store(s, b, self.buffer, i);
            store(s, p, self.p, i);
        }
    }
}

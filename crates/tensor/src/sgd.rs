//! Stochastic gradient descent on flat buffers, plain and with momentum.
//!
//! The formulas are PyTorch's `torch.optim.SGD` without dampening, where weight decay is part of
//! the gradient, with g the scaled gradient ([`crate::nesterov`] has the Nesterov variant):
//! ```text
//! plain     p ← p − lr · (g + weight_decay · p)
//! momentum  b ← mu · b + (g + weight_decay · p);  p ← p − lr · b
//! ```
//! A buffer that starts at zero makes the first step of momentum equal to PyTorch's, which copies
//! the gradient. An element's result depends on that element alone, so any division of the buffers
//! (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::momentum::{self, Rates, Rule};
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// One step of plain gradient descent.
pub fn step(cpu: &Cpu, lr: f32, weight_decay: f32, grad_scale: f32, p: &mut [f32], g: &[f32]) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    cpu.for_each_part(p, ELEMENTS, |i, p| {
        let g = &g[i * ELEMENTS..][..p.len()];
        cpu.run(Plain { lr, weight_decay, grad_scale, p, g });
    });
}

/// One step with momentum `mu`; `buffer` is zero before the first.
pub fn momentum(
    cpu: &Cpu,
    lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &mut [f32],
    g: &[f32],
    buffer: &mut [f32],
) {
    momentum::step::<Momentum>(cpu, lr, mu, weight_decay, grad_scale, p, g, buffer);
}

struct Plain<'a> {
    lr: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &'a mut [f32],
    g: &'a [f32],
}

impl Kernel for Plain<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (minus_lr, weight_decay) = (s.splat(-self.lr), s.splat(self.weight_decay));
        let grad_scale = s.splat(self.grad_scale);
        for i in 0..num_groups(self.p) {
            let p = load(s, self.p, i);
            let g = s.fma(p, weight_decay, s.mul(load(s, self.g, i), grad_scale));
            store(s, s.fma(g, minus_lr, p), self.p, i);
        }
    }
}

struct Momentum;

impl Rule for Momentum {
    #[inline(always)]
    fn update<S: Simd>(s: S, rates: Rates<S::V>, p: S::V, d: S::V, b: S::V) -> (S::V, S::V) {
        let b = s.fma(b, rates.mu, d);
        (b, s.fma(b, rates.minus_lr, p))
    }
}

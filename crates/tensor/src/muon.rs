//! Momentum of Muon (Jordan et al. 2024) on flat buffers: the direction that is orthogonalised.
//!
//! With g the scaled gradient, as in `torch.optim.Muon` with Nesterov momentum:
//! ```text
//! m ← m + (g − m) · (1 − mu)
//! d ← g + (m − g) · mu
//! ```
//! The direction replaces the gradient, so no memory beyond the gradient's is needed. An element's
//! result depends on that element alone, so any division of the buffers gives equal bits; the
//! orthogonalisation that follows needs whole matrices.

use crate::Cpu;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Updates momentum `m` from gradients `g`, which are scaled by `grad_scale`, and replaces those by
/// the direction.
pub fn direction(cpu: &Cpu, mu: f64, grad_scale: f32, g: &mut [f32], m: &mut [f32]) {
    assert_eq!(g.len(), m.len(), "one momentum value for each gradient");
    let [mu, toward_gradient] = factors(mu);
    cpu.for_each_split([g, m], [ELEMENTS; 2], |_, [g, m]| {
        cpu.run(Direction { mu, toward_gradient, grad_scale, g, m });
    });
}

/// The share of the momentum in the direction, and of the gradient in the momentum.
pub(crate) fn factors(mu: f64) -> [f32; 2] {
    [mu as f32, (1.0 - mu) as f32]
}

struct Direction<'a> {
    mu: f32,
    toward_gradient: f32,
    grad_scale: f32,
    g: &'a mut [f32],
    m: &'a mut [f32],
}

impl Kernel for Direction<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { mu, toward_gradient, grad_scale, g, m } = self;
        let (mu, toward_gradient) = (s.splat(mu), s.splat(toward_gradient));
        let grad_scale = s.splat(grad_scale);
        for i in 0..num_groups(g) {
            let (scaled, old) = (s.mul(load(s, g, i), grad_scale), load(s, m, i));
            let new = s.fma(s.sub(scaled, old), toward_gradient, old);
            store(s, new, m, i);
            store(s, s.fma(s.sub(new, scaled), mu, scaled), g, i);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::{assert_close, numbers, same_bits_everywhere, wide};
    use crate::{reference, sgd};

    const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];
    const LR: f32 = 0.02;

    fn scalars(t: i32) -> AdamStep {
        let (beta1, beta2) = (0.9f64, 0.95f64);
        AdamStep {
            lr: f64::NAN,
            beta1,
            beta2,
            eps: 1e-8,
            weight_decay: 0.1,
            bias1: 1.0 - beta1.powi(t),
            bias2: 1.0 - beta2.powi(t),
            grad_scale: 0.75,
        }
    }

    #[test]
    fn five_directions_and_steps_along_them_match_the_reference() {
        for len in LENGTHS {
            let got = same_bits_everywhere(|cpu| {
                let (mut p, mut m, mut v) = (numbers(1, len), vec![0.0; len], vec![0.0; len]);
                for t in 1..=5 {
                    let mut g = numbers(1 + t as u32, len);
                    direction(cpu, &scalars(t), &p, &mut g, &mut m, &mut v);
                    sgd::step(cpu, LR, 0.0, 1.0, &mut p, &g);
                }
                [p, m, v].concat()
            });
            let (mut p, mut m, mut v) = (wide(&numbers(1, len)), vec![0.0; len], vec![0.0; len]);
            for t in 1..=5 {
                let mut u = wide(&numbers(1 + t as u32, len));
                reference::lamb::direction(&scalars(t), &p, &mut u, &mut m, &mut v);
                reference::sgd::step(LR.into(), 0.0, 1.0, &mut p, &u);
            }
            assert_close(&got, &[p, m, v].concat(), 5);
        }
    }

    #[test]
    fn the_first_direction_is_the_sign_of_the_gradient() {
        let scalars = AdamStep { weight_decay: 0.0, ..scalars(1) };
        let g = numbers(30, 100);
        let u = same_bits_everywhere(|cpu| {
            let (mut u, mut m, mut v) = (g.clone(), vec![0.0; 100], vec![0.0; 100]);
            direction(cpu, &scalars, &[1.0; 100], &mut u, &mut m, &mut v);
            u
        });
        for (u, g) in u.iter().zip(&g) {
            assert!((u - g.signum()).abs() < 1e-6, "{u} for a gradient of {g}");
        }
    }
}

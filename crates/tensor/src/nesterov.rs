//! Momentum that looks ahead (Nesterov), on flat buffers.
//!
//! The formula is PyTorch's `torch.optim.SGD(nesterov=True)`, where weight decay is part of the
//! gradient, with g the scaled gradient:
//! ```text
//! d ← g + weight_decay · p
//! b ← mu · b + d
//! p ← p − lr · (d + mu · b)
//! ```
//! The step is the one that the velocity would take next time, were the gradient the same: the
//! velocity is corrected before it is followed. An element's result depends on that element alone,
//! so any cut of the buffers (tasks, shards) gives the same bits.

use crate::Cpu;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

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
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len(), buffer.len(), "one velocity for each parameter");
    cpu.for_each_split([p, buffer], [ELEMENTS; 2], |i, [p, buffer]| {
        let g = &g[i * ELEMENTS..][..p.len()];
        cpu.run(Nesterov { lr, mu, weight_decay, grad_scale, p, g, buffer });
    });
}

struct Nesterov<'a> {
    lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &'a mut [f32],
    g: &'a [f32],
    buffer: &'a mut [f32],
}

impl Kernel for Nesterov<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (minus_lr, mu) = (s.splat(-self.lr), s.splat(self.mu));
        let (weight_decay, grad_scale) = (s.splat(self.weight_decay), s.splat(self.grad_scale));
        for i in 0..num_groups(self.p) {
            let p = load(s, self.p, i);
            let d = s.fma(p, weight_decay, s.mul(load(s, self.g, i), grad_scale));
            let buffer = s.fma(load(s, self.buffer, i), mu, d);
            store(s, buffer, self.buffer, i);
            store(s, s.fma(s.fma(buffer, mu, d), minus_lr, p), self.p, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::{assert_close, numbers, same_bits_everywhere, wide};
    use crate::{reference, sgd};

    const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];
    const LR: f32 = 0.05;
    const MU: f32 = 0.9;
    const DECAY: f32 = 0.1;
    const SCALE: f32 = 0.75;

    #[test]
    fn five_steps_match_the_reference() {
        for len in LENGTHS {
            let got = same_bits_everywhere(|cpu| {
                let (mut p, mut buffer) = (numbers(1, len), vec![0.0; len]);
                for t in 0..5 {
                    step(cpu, LR, MU, DECAY, SCALE, &mut p, &numbers(2 + t, len), &mut buffer);
                }
                [p, buffer].concat()
            });
            let (mut p, mut buffer) = (wide(&numbers(1, len)), vec![0.0; len]);
            let [lr, mu, decay, scale] = [LR, MU, DECAY, SCALE].map(f64::from);
            for t in 0..5 {
                let g = wide(&numbers(2 + t, len));
                reference::nesterov::step(lr, mu, decay, scale, &mut p, &g, &mut buffer);
            }
            assert_close(&got[..len], &p, 5);
            assert_close(&got[len..], &buffer, 5);
        }
    }

    #[test]
    fn the_velocity_is_that_of_momentum_and_the_step_is_longer() {
        let (p, g) = (numbers(3, 100), numbers(4, 100));
        same_bits_everywhere(|cpu| {
            let (mut ahead, mut heavy) = (p.clone(), p.clone());
            let (mut buffer, mut velocity) = (vec![0.0; 100], vec![0.0; 100]);
            step(cpu, LR, MU, 0.0, SCALE, &mut ahead, &g, &mut buffer);
            sgd::momentum(cpu, LR, MU, 0.0, SCALE, &mut heavy, &g, &mut velocity);
            assert_eq!(buffer, velocity);
            for i in 0..100 {
                let [ahead, heavy] = [ahead[i], heavy[i]].map(|now| (now - p[i]).abs());
                assert!(ahead >= heavy, "element {i}: {ahead} is less than {heavy}");
            }
            ahead
        });
    }
}

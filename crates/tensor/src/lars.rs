//! LARS on flat buffers: momentum whose steps are as long as the tensor they change.
//!
//! You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), algorithm 1,
//! with g the scaled gradient and local the learning rate of the tensor:
//! ```text
//! local ← trust · ‖p‖ / (‖g‖ + weight_decay · ‖p‖)
//! b ← mu · b + lr · local · (g + weight_decay · p)
//! p ← p − b
//! ```
//! The learning rate is inside the velocity, as in the paper: a change of it does not rescale what
//! the velocity already holds. Norms are over a whole tensor, which may lie on several workers, so
//! they are the caller's business; here `local_lr` is lr · local. An element's result depends on
//! that element and those scalars alone, so any cut of the buffers gives the same bits.

use crate::Cpu;
use crate::reduce::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// One step with momentum `mu`; `buffer` is zero before the first.
pub fn step(
    cpu: &Cpu,
    local_lr: f32,
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
        cpu.run(Lars { local_lr, mu, weight_decay, grad_scale, p, g, buffer });
    });
}

struct Lars<'a> {
    local_lr: f32,
    mu: f32,
    weight_decay: f32,
    grad_scale: f32,
    p: &'a mut [f32],
    g: &'a [f32],
    buffer: &'a mut [f32],
}

impl Kernel for Lars<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (local_lr, mu) = (s.splat(self.local_lr), s.splat(self.mu));
        let (weight_decay, grad_scale) = (s.splat(self.weight_decay), s.splat(self.grad_scale));
        for i in 0..num_groups(self.p) {
            let p = load(s, self.p, i);
            let d = s.fma(p, weight_decay, s.mul(load(s, self.g, i), grad_scale));
            let buffer = s.fma(load(s, self.buffer, i), mu, s.mul(d, local_lr));
            store(s, buffer, self.buffer, i);
            store(s, s.sub(p, buffer), self.p, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::{assert_close, numbers, same_bits_everywhere, wide};
    use crate::reference;

    const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];
    const MU: f32 = 0.9;
    const DECAY: f32 = 0.1;
    const SCALE: f32 = 0.75;

    #[test]
    fn five_steps_of_falling_length_match_the_reference() {
        let lr = |t: u32| 0.05 / (1 + t) as f32;
        for len in LENGTHS {
            let got = same_bits_everywhere(|cpu| {
                let (mut p, mut buffer) = (numbers(1, len), vec![0.0; len]);
                for t in 0..5 {
                    let g = numbers(2 + t, len);
                    step(cpu, lr(t), MU, DECAY, SCALE, &mut p, &g, &mut buffer);
                }
                [p, buffer].concat()
            });
            let (mut p, mut buffer) = (wide(&numbers(1, len)), vec![0.0; len]);
            let [mu, decay, scale] = [MU, DECAY, SCALE].map(f64::from);
            for t in 0..5 {
                let g = wide(&numbers(2 + t, len));
                reference::lars::step(lr(t).into(), mu, decay, scale, &mut p, &g, &mut buffer);
            }
            assert_close(&got[..len], &p, 5);
            assert_close(&got[len..], &buffer, 5);
        }
    }
}

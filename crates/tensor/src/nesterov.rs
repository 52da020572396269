//! SGD with Nesterov momentum (Sutskever et al. 2013) on flat buffers.
//!
//! The formula is PyTorch's `torch.optim.SGD(nesterov=True)`, where weight decay is part of the
//! gradient, with g the scaled gradient:
//! ```text
//! d ← g + weight_decay · p
//! b ← mu · b + d
//! p ← p − lr · (d + mu · b)
//! ```
//! The step is the one that momentum would take next for an equal gradient. An element's result
//! depends on that element alone, so any division of the buffers (tasks, shards) gives equal bits.

use crate::Cpu;
use crate::momentum::{self, Rates, Rule};
use crate::simd::Simd;

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
    momentum::step::<Nesterov>(cpu, lr, mu, weight_decay, grad_scale, p, g, buffer);
}

struct Nesterov;

impl Rule for Nesterov {
    #[inline(always)]
    fn update<S: Simd>(s: S, rates: Rates<S::V>, p: S::V, d: S::V, b: S::V) -> (S::V, S::V) {
        let b = s.fma(b, rates.mu, d);
        (b, s.fma(s.fma(b, rates.mu, d), rates.minus_lr, p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::ELEMENTS;
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
    fn the_momentum_buffer_equals_plain_momentum_and_the_step_is_longer() {
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

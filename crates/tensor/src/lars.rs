//! LARS on flat buffers: momentum with a layerwise trust ratio.
//!
//! You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), algorithm 1,
//! with g the scaled gradient and local the learning rate of the tensor:
//! ```text
//! local ← trust · ‖p‖ / (‖g‖ + weight_decay · ‖p‖)
//! b ← mu · b + lr · local · (g + weight_decay · p)
//! p ← p − b
//! ```
//! The learning rate is inside the momentum buffer, as in the paper: a change of the rate does not
//! rescale the buffer. Norms are over a whole tensor, which may be sharded over several ranks, so
//! the caller computes them; `local_lr` is lr · local. An element's result depends on that element
//! and those scalars alone, so any division of the buffers gives equal bits.

use crate::Cpu;
use crate::momentum::{self, Rates, Rule};
use crate::simd::Simd;

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
    momentum::step::<Lars>(cpu, local_lr, mu, weight_decay, grad_scale, p, g, buffer);
}

struct Lars;

impl Rule for Lars {
    #[inline(always)]
    fn update<S: Simd>(s: S, rates: Rates<S::V>, p: S::V, d: S::V, b: S::V) -> (S::V, S::V) {
        let b = s.fma(b, rates.mu, s.mul(d, rates.lr));
        (b, s.sub(p, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::ELEMENTS;
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

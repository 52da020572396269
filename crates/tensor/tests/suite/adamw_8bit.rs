//! Steps of AdamW with moments of eight bits against their definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::adamw_8bit::{BLOCK_LEN, Moment, MomentBlock, step};
use lockstep_tensor::reference;

const MOMENTS: [Moment; 2] = [Moment::First, Moment::Second];

fn scalars(t: u32) -> AdamStep {
    let (beta1, beta2) = (0.9_f64, 0.95_f64);
    AdamStep {
        lr: 0.01,
        beta1,
        beta2,
        eps: 1e-8,
        weight_decay: 0.1,
        bias1: 1.0 - beta1.powi(t.cast_signed()),
        bias2: 1.0 - beta2.powi(t.cast_signed()),
        grad_scale: 0.75,
    }
}

/// Gradients of many sizes; one block has none in every other step.
fn gradients(t: u32, len: usize) -> Vec<f32> {
    let sizes = numbers(77, len).into_iter().map(|x| (8.0 * x).exp() * 1e-3);
    let mut g: Vec<f32> = numbers(2 + t, len).into_iter().zip(sizes).map(|(g, x)| g * x).collect();
    if t.is_multiple_of(2) && len > BLOCK_LEN {
        g[..BLOCK_LEN].fill(0.0);
    }
    g
}

fn decoded(blocks: &[MomentBlock], moment: Moment, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    for (block, values) in blocks.iter().zip(values.chunks_mut(BLOCK_LEN)) {
        block.decode(moment, values);
    }
    values
}

#[test]
fn five_steps_match_the_reference() {
    for len in [1, BLOCK_LEN, 300, 3 * 8192 + 5] {
        let blocks = || vec![MomentBlock::ZERO; len.div_ceil(BLOCK_LEN)];
        let all_steps = |cpu: &lockstep_tensor::Cpu| {
            let (mut p, mut blocks, mut steps) = (numbers(1, len), blocks(), Vec::new());
            for t in 1..6 {
                step(cpu, &scalars(t), &mut p, &gradients(t, len), &mut blocks);
                let [m, v] = MOMENTS.map(|moment| decoded(&blocks, moment, len));
                steps.push([p.clone(), m, v]);
            }
            steps
        };
        same_bits_everywhere(|cpu| all_steps(cpu).concat().concat());
        let found = all_steps(&lockstep_tensor::Cpu::single(lockstep_tensor::Isa::detect()));
        let maps = [true, false].map(reference::adamw_8bit::map);
        let mut before = [numbers(1, len), vec![0.0; len], vec![0.0; len]].map(|x| wide(&x));
        for (t, found) in (1..).zip(found) {
            let [p, m, v] = &mut before;
            let g = wide(&gradients(t, len));
            reference::adamw::step(&scalars(t), p, &g, m, v);
            assert_close(&found[0], p, 5);
            for (index, exact) in [m, v].into_iter().enumerate() {
                let found = wide(&found[index + 1]);
                for (found, exact) in found.chunks(BLOCK_LEN).zip(exact.chunks(BLOCK_LEN)) {
                    let mut nearest = exact.to_vec();
                    reference::adamw_8bit::round(&maps[index], index == 0, &mut nearest);
                    let largest = exact.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
                    for ((found, exact), nearest) in found.iter().zip(exact).zip(&nearest) {
                        // Rounding of `f32` may decide where two values are almost as near.
                        let more = (found - exact).abs() - (nearest - exact).abs();
                        assert!(more <= 1e-6 * largest, "step {t}: {found} for {exact}");
                        assert!(index == 0 || *exact <= 0.0 || *found > 0.0, "{exact} is lost");
                    }
                }
            }
            // The next step begins at the state that eight bits hold.
            before = found.map(|x| wide(&x));
        }
    }
}

#[test]
fn moments_take_two_bytes_and_their_scales() {
    assert_eq!(size_of::<MomentBlock>(), 2 * BLOCK_LEN + 8);
}

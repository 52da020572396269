//! Steps of Lion against their definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::lion::{LionStep, step};
use lockstep_tensor::reference;

const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];
const SCALARS: LionStep =
    LionStep { lr: 0.02, beta1: 0.9, beta2: 0.99, weight_decay: 0.1, grad_scale: 0.75 };

#[test]
fn five_steps_match_the_reference() {
    for len in LENGTHS {
        let got = same_bits_everywhere(|cpu| {
            let (mut p, mut m) = (numbers(1, len), vec![0.0; len]);
            for t in 0..5 {
                step(cpu, &SCALARS, &mut p, &numbers(2 + t, len), &mut m);
            }
            [p, m].concat()
        });
        let (mut p, mut m) = (wide(&numbers(1, len)), vec![0.0; len]);
        for t in 0..5 {
            reference::lion::step(&SCALARS, &mut p, &wide(&numbers(2 + t, len)), &mut m);
        }
        assert_close(&got[..len], &p, 5);
        assert_close(&got[len..], &m, 5);
    }
}

#[test]
fn every_element_moves_by_the_learning_rate_and_a_zero_direction_stays() {
    let scalars = LionStep { lr: 0.25, weight_decay: 0.0, ..SCALARS };
    let moved = same_bits_everywhere(|cpu| {
        let (mut p, mut m) = (vec![1.0; 5], vec![0.0; 5]);
        step(cpu, &scalars, &mut p, &[3.0, -1e-30, 0.0, -0.0, f32::MIN_POSITIVE], &mut m);
        p
    });
    assert_eq!(moved, [0.75, 1.25, 1.0, 1.0, 0.75]);
}

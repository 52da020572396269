//! Nesterov momentum against its definition, and its momentum buffer against plain momentum.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::nesterov::step;
use lockstep_tensor::{reference, sgd};

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

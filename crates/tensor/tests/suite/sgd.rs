//! SGD with and without momentum against its definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::reference;
use lockstep_tensor::sgd::{momentum, step};

const LENGTHS: [usize; 8] = [0, 1, 15, 16, 17, 257, ELEMENTS, 2 * ELEMENTS + 3];
const LR: f32 = 0.05;
const MU: f32 = 0.9;
const DECAY: f32 = 0.1;
const SCALE: f32 = 0.75;

#[test]
fn five_plain_steps_match_the_reference() {
    for len in LENGTHS {
        let p = same_bits_everywhere(|cpu| {
            let mut p = numbers(1, len);
            for t in 0..5 {
                step(cpu, LR, DECAY, SCALE, &mut p, &numbers(2 + t, len));
            }
            p
        });
        let mut expected = wide(&numbers(1, len));
        for t in 0..5 {
            let g = wide(&numbers(2 + t, len));
            reference::sgd::step(LR.into(), DECAY.into(), SCALE.into(), &mut expected, &g);
        }
        assert_close(&p, &expected, 5);
    }
}

#[test]
fn five_steps_with_momentum_match_the_reference() {
    for len in LENGTHS {
        let got = same_bits_everywhere(|cpu| {
            let (mut p, mut buffer) = (numbers(1, len), vec![0.0; len]);
            for t in 0..5 {
                let g = numbers(2 + t, len);
                momentum(cpu, LR, MU, DECAY, SCALE, &mut p, &g, &mut buffer);
            }
            [p, buffer].concat()
        });
        let (mut p, mut buffer) = (wide(&numbers(1, len)), vec![0.0; len]);
        let [lr, mu, decay, scale] = [LR, MU, DECAY, SCALE].map(f64::from);
        for t in 0..5 {
            let g = wide(&numbers(2 + t, len));
            reference::sgd::momentum(lr, mu, decay, scale, &mut p, &g, &mut buffer);
        }
        assert_close(&got[..len], &p, 5);
        assert_close(&got[len..], &buffer, 5);
    }
}

#[test]
fn no_momentum_is_the_plain_step_to_the_bit() {
    let (p, g) = (numbers(3, 100), numbers(4, 100));
    same_bits_everywhere(|cpu| {
        let (mut plain, mut heavy, mut buffer) = (p.clone(), p.clone(), vec![7.0; 100]);
        step(cpu, LR, DECAY, SCALE, &mut plain, &g);
        momentum(cpu, LR, 0.0, DECAY, SCALE, &mut heavy, &g, &mut buffer);
        assert_eq!(plain, heavy);
        plain
    });
}

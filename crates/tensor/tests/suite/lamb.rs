//! Directions of LAMB, and steps along them, against their definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::lamb::direction;
use lockstep_tensor::{reference, sgd};

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

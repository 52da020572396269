//! Adam against its definition, and against AdamW where they agree.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::adam::step;
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::{Cpu, adamw, reference};

const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];

type Rule = fn(&Cpu, &AdamStep, &mut [f32], &[f32], &mut [f32], &mut [f32]);

fn scalars(t: i32) -> AdamStep {
    let (beta1, beta2) = (0.9f64, 0.95f64);
    AdamStep {
        lr: 3e-3,
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
fn five_steps_match_the_reference() {
    for len in LENGTHS {
        let got = same_bits_everywhere(|cpu| {
            let (mut p, mut m, mut v) = (numbers(1, len), vec![0.0; len], vec![0.0; len]);
            for t in 1..=5 {
                step(cpu, &scalars(t), &mut p, &numbers(1 + t as u32, len), &mut m, &mut v);
            }
            [p, m, v].concat()
        });
        let (mut p, mut m, mut v) = (wide(&numbers(1, len)), vec![0.0; len], vec![0.0; len]);
        for t in 1..=5 {
            let g = wide(&numbers(1 + t as u32, len));
            reference::adam::step(&scalars(t), &mut p, &g, &mut m, &mut v);
        }
        assert_close(&got, &[p, m, v].concat(), 5);
    }
}

#[test]
fn without_decay_it_is_adamw_to_the_bit() {
    let (p, g) = (numbers(3, 100), numbers(4, 100));
    let scalars = AdamStep { weight_decay: 0.0, ..scalars(3) };
    same_bits_everywhere(|cpu| {
        let run = |rule: Rule| {
            let (mut p, mut m, mut v) = (p.clone(), vec![0.5; 100], vec![0.25; 100]);
            rule(cpu, &scalars, &mut p, &g, &mut m, &mut v);
            [p, m, v].concat()
        };
        let adam = run(step);
        assert_eq!(adam, run(adamw::step));
        adam
    });
}

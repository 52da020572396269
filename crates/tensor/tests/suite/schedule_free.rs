//! Steps of schedule-free AdamW against their definition.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::reference;
use lockstep_tensor::schedule_free::{ScheduleFreeStep, step};

const LENGTHS: [usize; 6] = [0, 1, 16, 17, 257, 2 * ELEMENTS + 3];

fn scalars(t: i32) -> ScheduleFreeStep {
    ScheduleFreeStep {
        lr: 0.02,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        bias2: 1.0 - 0.95f64.powi(t),
        averaging: 1.0 / f64::from(t),
        grad_scale: 0.75,
    }
}

#[test]
fn five_steps_match_the_reference() {
    for len in LENGTHS {
        let got = same_bits_everywhere(|cpu| {
            let start = numbers(1, len);
            let [mut y, mut x, mut z] = [(); 3].map(|()| start.clone());
            let mut v = vec![0.0; len];
            for t in 1..=5 {
                let g = numbers(1 + t as u32, len);
                step(cpu, &scalars(t), &mut y, &g, &mut x, &mut z, &mut v);
            }
            [y, x, z, v].concat()
        });
        let start = wide(&numbers(1, len));
        let [mut y, mut x, mut z] = [(); 3].map(|()| start.clone());
        let mut v = vec![0.0; len];
        for t in 1..=5 {
            let g = wide(&numbers(1 + t as u32, len));
            reference::schedule_free::step(&scalars(t), &mut y, &g, &mut x, &mut z, &mut v);
        }
        assert_close(&got, &[y, x, z, v].concat(), 5);
    }
}

#[test]
fn a_first_step_of_weight_one_makes_all_three_sequences_equal() {
    let z = same_bits_everywhere(|cpu| {
        let start = numbers(7, 100);
        let [mut y, mut x, mut z] = [(); 3].map(|()| start.clone());
        step(cpu, &scalars(1), &mut y, &numbers(8, 100), &mut x, &mut z, &mut [0.0; 100]);
        for i in 0..100 {
            assert!((x[i] - z[i]).abs() < 1e-6 && (y[i] - z[i]).abs() < 1e-6, "element {i}");
        }
        assert_ne!(z, start);
        z
    });
    assert_eq!(z.len(), 100);
}

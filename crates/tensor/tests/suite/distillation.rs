//! The loss of distillation against its definition, against differences, and at its edges.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, ids, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::cross_entropy::IGNORE;
use lockstep_tensor::distillation::{Settings, forward_backward};
use lockstep_tensor::{Cpu, Isa, cross_entropy, reference};
use std::collections::BTreeMap;

/// Gradient of the sum over three targets, then losses.
fn run(
    cpu: &Cpu,
    [logits, teacher]: [&[f32]; 2],
    targets: &[u32],
    temperature: f32,
    weight: f32,
) -> Vec<f32> {
    let (mut dlogits, mut losses) = (logits.to_vec(), vec![f32::NAN; targets.len()]);
    let settings = Settings { temperature, weight };
    forward_backward(cpu, &mut dlogits, teacher, targets, 3, settings, &mut losses);
    [dlogits, losses].concat()
}

fn scaled(seed: u32, len: usize) -> Vec<f32> {
    numbers(seed, len).iter().map(|x| 5.0 * x).collect()
}

/// Targets below the vocabulary, every third one ignored.
fn some_targets(num_rows: usize, vocab: usize) -> Vec<u32> {
    let targets = ids(5, num_rows, vocab);
    targets.iter().enumerate().map(|(i, &t)| if i % 3 == 1 { IGNORE } else { t }).collect()
}

#[test]
fn losses_and_gradients_match_the_definition_and_central_differences() {
    for vocab in ODD_WIDTHS {
        for (temperature, weight) in [(1.0, 1.0), (2.0, 0.5), (0.5, 0.9), (4.0, 0.0)] {
            let num_rows = 7;
            let (logits, teacher) = (scaled(1, num_rows * vocab), scaled(2, num_rows * vocab));
            let targets = some_targets(num_rows, vocab);
            let both = [&*logits, &teacher];
            let got = same_bits_everywhere(|cpu| run(cpu, both, &targets, temperature, weight));
            let (dlogits, losses) = got.split_at(logits.len());
            let (t, w) = (f64::from(temperature), f64::from(weight));
            let by_definition = |logits: &[f64]| {
                reference::distillation::losses(logits, &wide(&teacher), &targets, t, w)
            };
            assert_close(losses, &by_definition(&wide(&logits)), vocab);
            let total = |logits: &[f64]| by_definition(logits).iter().sum();
            let expected = central_differences(&logits, total);
            let dlogits: Vec<f32> = dlogits.iter().map(|x| 3.0 * x).collect();
            assert_close(&dlogits, &expected, 4);
        }
    }
}

#[test]
fn a_student_that_is_its_teacher_has_no_soft_gradient_and_far_ones_stay_finite() {
    let (vocab, cpu) = (21, Cpu::single(Isa::detect()));
    let (logits, targets) = (scaled(3, 2 * vocab), [4, 20]);
    let same = run(&cpu, [&logits, &logits], &targets, 2.0, 1.0);
    let bound = 3.0 * f32::EPSILON;
    assert!(same.iter().all(|x| x.abs() <= bound), "{same:?}");
    let far: Vec<f32> = (0..2 * vocab).map(|i| if i % 2 == 0 { 9e4 } else { -9e4 }).collect();
    let opposite: Vec<f32> = far.iter().map(|x| -x).collect();
    let found = run(&cpu, [&far, &opposite], &targets, 1.0, 0.5);
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
    assert!(found[2 * vocab..].iter().all(|loss| *loss > 5e4), "{found:?}");
}

#[test]
fn without_the_teacher_it_is_the_cross_entropy() {
    let (vocab, cpu) = (37, Cpu::single(Isa::detect()));
    let (logits, targets) = (scaled(6, 5 * vocab), some_targets(5, vocab));
    let found = run(&cpu, [&logits, &scaled(7, 5 * vocab)], &targets, 3.0, 0.0);
    let (mut expected, mut losses) = (logits, vec![0.0; 5]);
    cross_entropy::forward_backward(&cpu, &mut expected, vocab, &targets, 3, &mut losses);
    expected.extend(losses);
    assert_close(&found, &wide(&expected), 1);
}

#[test]
fn loss_and_gradient_are_those_of_pytorch() {
    let text = include_str!("../../golden/distillation.txt");
    let line = |line: &str| {
        let (name, values) = line.split_once(' ').expect("a name and numbers");
        let values = values.split(' ').map(|value| value.parse().expect("a number"));
        (name.to_owned(), values.collect::<Vec<f64>>())
    };
    let golden: BTreeMap<String, Vec<f64>> = text.lines().map(line).collect();
    let narrow = |name: &str| golden[name].iter().map(|&x| x as f32).collect::<Vec<_>>();
    let target = |&x: &f64| if x < 0.0 { IGNORE } else { x as u32 };
    let targets: Vec<u32> = golden["targets"].iter().map(target).collect();
    let num_targets = targets.iter().filter(|target| **target != IGNORE).count();
    let (logits, teacher) = (narrow("logits"), narrow("teacher"));
    let (temperature, weight) = (narrow("temperature")[0], narrow("weight")[0]);
    let cpu = Cpu::single(Isa::detect());
    let mut found = run(&cpu, [&logits, &teacher], &targets, temperature, weight);
    // Gradients of the mean over targets instead of over three.
    found[..logits.len()].iter_mut().for_each(|x| *x *= 3.0 / num_targets as f32);
    let (gradient, losses) = found.split_at(logits.len());
    assert_close(gradient, &golden["gradient"], 2);
    let mean = losses.iter().sum::<f32>() / num_targets as f32;
    assert_close(&[mean], &golden["loss"], num_targets);
}

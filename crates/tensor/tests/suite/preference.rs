//! The loss of preferences against its definition, against PyTorch, and at the edges of its range.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::cross_entropy::{IGNORE, forward_backward};
use lockstep_tensor::preference::Sums;
use lockstep_tensor::{Cpu, preference, reference};
use std::collections::BTreeMap;

/// Gradient by the logits of the mean loss over pairs, then the sums over pairs.
fn run(
    cpu: &Cpu,
    logits: &[f32],
    targets: &[u32],
    references: &[f64],
    beta: f64,
) -> (Vec<f32>, Sums) {
    let vocab = logits.len() / targets.len();
    let (mut dlogits, mut losses) = (logits.to_vec(), vec![f32::NAN; targets.len()]);
    let num_pairs = references.len() as u64 / 2;
    forward_backward(cpu, &mut dlogits, vocab, targets, num_pairs, &mut losses);
    let mut factors = vec![f32::NAN; references.len()];
    let total = preference::losses(&losses, targets, references, beta, &mut factors);
    preference::scale_gradients(cpu, &mut dlogits, &factors);
    (dlogits, total)
}

#[test]
fn loss_and_gradient_are_those_of_pytorch_and_of_the_reference() {
    let text = include_str!("../../golden/preference.txt");
    let line = |line: &str| {
        let (name, values) = line.split_once(' ').expect("a name and numbers");
        let values = values.split(' ').map(|value| value.parse().expect("a number"));
        (name.to_owned(), values.collect::<Vec<f64>>())
    };
    let golden: BTreeMap<String, Vec<f64>> = text.lines().map(line).collect();
    let logits: Vec<f32> = golden["logits"].iter().map(|&x| x as f32).collect();
    let target = |&x: &f64| if x < 0.0 { IGNORE } else { x as u32 };
    let targets: Vec<u32> = golden["targets"].iter().map(target).collect();
    // PyTorch's log-probabilities are losses with the other sign.
    let references: Vec<f64> = golden["references"].iter().map(|x| -x).collect();
    let beta = golden["beta"][0];
    let got = same_bits_everywhere(|cpu| {
        let (mut gradient, total) = run(cpu, &logits, &targets, &references, beta);
        gradient.push(total.loss as f32 / 3.0);
        gradient
    });
    let (loss, gradient) = got.split_last().expect("the loss");
    assert_close(&[*loss], &golden["loss"], 5);
    assert_close(gradient, &golden["gradient"], 5);
    let vocab = logits.len() / targets.len();
    let by_definition =
        reference::preference::loss(&wide(&logits), vocab, &targets, &references, beta);
    assert!((by_definition / 3.0 - golden["loss"][0]).abs() < 1e-12, "{by_definition}");
    let margins =
        reference::preference::margins(&wide(&logits), vocab, &targets, &references, beta);
    let cpu = Cpu::single(lockstep_tensor::Isa::detect());
    let (_, sums) = run(&cpu, &logits, &targets, &references, beta);
    let num_preferred = margins.iter().filter(|margin| **margin > 0.0).count() as f64;
    assert_eq!(sums.num_preferred.to_bits(), num_preferred.to_bits(), "{margins:?}");
    assert!((sums.margin - margins.iter().sum::<f64>()).abs() < 1e-5, "{margins:?} {sums:?}");
}

#[test]
fn pairs_without_targets_have_no_loss_and_distant_ones_stay_finite() {
    let (vocab, tokens) = (5, 3);
    let logits = numbers(3, 6 * tokens * vocab);
    let mut targets = vec![1; 6 * tokens];
    targets[2 * tokens..4 * tokens].fill(IGNORE);
    // The first pair is as good as certain, the last one as bad.
    let references = [4000.0, 0.0, 0.0, 0.0, 0.0, 4000.0];
    let cpu = Cpu::single(lockstep_tensor::Isa::detect());
    let (dlogits, total) = run(&cpu, &logits, &targets, &references, 1.0);
    assert!((3900.0..4100.0).contains(&total.loss), "{total:?}");
    assert!(total.num_preferred.to_bits() == 1.0_f64.to_bits(), "the first pair: {total:?}");
    // Margins of about 4000 and -4000, up to the losses of the rows.
    assert!(total.margin.abs() < 100.0 && total.margin != 0.0, "{total:?}");
    let rows = tokens * vocab;
    assert!(dlogits[..4 * rows].iter().all(|x| *x == 0.0), "certain, and padding");
    assert!(dlogits[4 * rows..].iter().all(|x| x.is_finite() && *x != 0.0));
}

//! The fused loss against its definition, against differences, and at the edges of its range.

mod vocab_parallel;

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, ids, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::cross_entropy::{IGNORE, forward, forward_backward, sum};
use lockstep_tensor::{Cpu, Isa, reference};

/// Gradient, then losses; forward alone must agree.
fn run(cpu: &Cpu, logits: &[f32], vocab: usize, targets: &[u32], num_targets: u64) -> Vec<f32> {
    let (mut dlogits, mut losses) = (logits.to_vec(), vec![f32::NAN; targets.len()]);
    forward_backward(cpu, &mut dlogits, vocab, targets, num_targets, &mut losses);
    let mut losses_alone = vec![f32::NAN; targets.len()];
    forward(cpu, logits, vocab, targets, &mut losses_alone);
    let bits = |losses: &[f32]| losses.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&losses), bits(&losses_alone));
    [dlogits, losses].concat()
}

/// Targets below the vocabulary, every third one ignored.
fn some_targets(num_rows: usize, vocab: usize) -> Vec<u32> {
    let targets = ids(5, num_rows, vocab);
    targets.iter().enumerate().map(|(i, &t)| if i % 3 == 1 { IGNORE } else { t }).collect()
}

#[test]
fn losses_and_gradients_match_the_reference_on_odd_shapes() {
    for vocab in ODD_WIDTHS.into_iter().chain([5_001]) {
        for num_rows in [1, 2, 7, 300usize.div_ceil(vocab)] {
            let logits: Vec<f32> = numbers(1, num_rows * vocab).iter().map(|x| 5.0 * x).collect();
            let targets = some_targets(num_rows, vocab);
            let got = same_bits_everywhere(|cpu| run(cpu, &logits, vocab, &targets, 3));
            let (dlogits, losses) = got.split_at(logits.len());
            let (logits, scale) = (wide(&logits), 3.0);
            assert_close(losses, &reference::cross_entropy::forward(&logits, vocab, &targets), 1);
            // Gradients are at most 1/3; scaled up, the bound of numbers near one applies.
            let expected = reference::cross_entropy::backward(&logits, vocab, &targets, 3);
            let expected: Vec<f64> = expected.iter().map(|x| x * scale).collect();
            let dlogits: Vec<f32> = dlogits.iter().map(|x| x * scale as f32).collect();
            assert_close(&dlogits, &expected, vocab);
        }
    }
}

#[test]
fn small_probabilities_keep_their_digits() {
    let vocab = 50;
    let logits: Vec<f32> = (0..vocab).map(|i| -(i as f32)).collect();
    let got = run(&Cpu::single(Isa::detect()), &logits, vocab, &[0], 1);
    let expected = reference::cross_entropy::backward(&wide(&logits), vocab, &[0], 1);
    for (got, expected) in got[1..vocab].iter().zip(&expected[1..]) {
        assert!((f64::from(*got) / expected - 1.0).abs() < 4e-7, "{got:e} is not {expected:e}");
    }
}

#[test]
fn the_gradient_matches_central_differences() {
    let (vocab, targets) = (19, [3, IGNORE, 18, 0]);
    let logits = numbers(2, 4 * vocab);
    let got = run(&Cpu::single(Isa::detect()), &logits, vocab, &targets, 4);
    let expected = central_differences(&logits, |logits| {
        reference::cross_entropy::forward(logits, vocab, &targets).iter().sum::<f64>() / 4.0
    });
    assert_close(&got[..logits.len()], &expected, 1);
}

#[test]
fn huge_and_infinite_logits_are_safe() {
    let vocab = 18;
    for huge in [1e4, -1e4, 3e38, -3e38] {
        let mut logits = numbers(3, 2 * vocab);
        logits[4] = huge;
        logits[vocab + 17] = huge;
        logits[5] = f32::NEG_INFINITY;
        let got = same_bits_everywhere(|cpu| run(cpu, &logits, vocab, &[4, 2], 2));
        let wide_logits = wide(&logits);
        let losses = reference::cross_entropy::forward(&wide_logits, vocab, &[4, 2]);
        let dlogits = reference::cross_entropy::backward(&wide_logits, vocab, &[4, 2], 2);
        assert_close(&got[..2 * vocab], &dlogits, vocab);
        assert_close(&got[2 * vocab..], &losses, vocab);
        assert_eq!(got[5].to_bits(), 0, "a logit of minus infinity gets no gradient");
    }
}

#[test]
fn an_impossible_target_has_infinite_loss_and_nan_propagates() {
    let cpu = Cpu::single(Isa::detect());
    let mut losses = [0.0; 2];
    let logits = [f32::NEG_INFINITY, 0.0, f32::NAN, 0.0];
    forward(&cpu, &logits, 2, &[0, 1], &mut losses);
    assert_eq!(losses[0].to_bits(), f32::INFINITY.to_bits());
    assert!(losses[1].is_nan() && sum(0.0, &losses).is_nan());
}

#[test]
fn ignored_rows_have_zero_loss_for_any_logits() {
    let mut logits = [f32::NAN, f32::INFINITY, 1.0, 2.0, 0.5, 0.5];
    let mut losses = [9.0; 3];
    let cpu = Cpu::single(Isa::detect());
    forward_backward(&cpu, &mut logits, 2, &[IGNORE, IGNORE, 1], 1, &mut losses);
    assert_eq!(losses[..2], [0.0, 0.0]);
    assert_eq!(logits.map(f32::to_bits), [0.0, 0.0, 0.0, 0.0, 0.5, -0.5].map(f32::to_bits));
    let sum = sum(0.0, &losses);
    assert_eq!(sum.to_bits(), f64::from(losses[2]).to_bits());
    assert!((sum - std::f64::consts::LN_2).abs() < 1e-7);
}

#[test]
fn losses_are_added_in_f64_in_their_order_in_any_number_of_pieces() {
    let losses = numbers(4, 1000);
    let whole = wide(&losses).iter().fold(0.0, |sum, x| sum + x);
    for at in [0, 1, 500, 1000] {
        let (first, second) = losses.split_at(at);
        assert_eq!(sum(sum(0.0, first), second).to_bits(), whole.to_bits());
    }
}

#[test]
#[should_panic(expected = "target 7 is not in the vocabulary of 7")]
fn a_target_outside_the_vocabulary_is_refused() {
    forward(&Cpu::single(Isa::detect()), &[0.0; 7], 7, &[7], &mut [0.0]);
}

//! Products in bf16, `f16` and fp8: equal bits on every device, results near those of `f32`; and
//! loss scaling.

use super::tiny::{Batch, GPT2, LLAMA, LONG, TRAIN, Tiny, assert_same};
use lockstep_config::{Dtype, LossScale, Model};
use lockstep_model::{Decoder, Mode, Recompute, TensorShards};
use lockstep_tensor::{Cpu, Isa};

const NARROW: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::Fp8];

/// The model, in fp8 with sizes of whole units of sixteen.
fn sized(model: &Model, compute: Dtype) -> Model {
    match compute {
        Dtype::Fp8 => Model { width: 32, ffn: model.ffn.next_multiple_of(16), ..model.clone() },
        _ => model.clone(),
    }
}

fn narrow(model: &Model, compute: Dtype) -> Tiny {
    Tiny::computing(model, &TensorShards::WHOLE, compute)
}

#[test]
fn instruction_set_halves_and_recomputation_change_no_bit() {
    for model in [LLAMA, GPT2, LONG] {
        for compute in NARROW {
            let model = sized(&model, compute);
            let batch = Batch::new(&model, 2);
            let tiny = narrow(&model, compute);
            let expected = tiny.train(&Cpu::single(Isa::detect()), &batch.microbatch());
            for isa in Isa::available() {
                let outcome = tiny.train(&Cpu::single(isa), &batch.microbatch());
                outcome.assert_same(&expected, &format!("{isa}, {compute}, {model:?}"));
            }
            let (cpu, halves) = (Cpu::single(Isa::detect()), narrow(&model, compute).in_halves());
            for what in [Recompute::Selective, Recompute::Full] {
                let outcome = halves.run(&cpu, &batch.microbatch(), TRAIN, what, 0.0);
                outcome.assert_same(&expected, &format!("{what:?}, {compute}, {model:?}"));
            }
        }
    }
}

#[test]
fn decoding_gives_the_logits_of_a_full_forward() {
    let cpu = Cpu::single(Isa::detect());
    for model in [LLAMA, GPT2, LONG] {
        for compute in NARROW {
            let model = sized(&model, compute);
            let batch = Batch::new(&model, 1);
            let tiny = narrow(&model, compute);
            let all = tiny.run(&cpu, &batch.microbatch(), Mode::Evaluate, Recompute::None, 0.0);
            let mut decoder = Decoder::new(&tiny.blueprint, &cpu, model.context).unwrap();
            for (token, expected) in batch.inputs().iter().zip(all.logits.chunks(model.vocab)) {
                let logits = decoder.feed(&tiny.params, &[*token]).unwrap();
                assert_same(logits, expected, &format!("{compute}, {model:?}"));
            }
        }
    }
}

#[test]
fn losses_match_f32_up_to_rounding_of_operands() {
    let cpu = Cpu::single(Isa::detect());
    for model in [LLAMA, GPT2] {
        for (compute, digits) in [(Dtype::Bf16, 2e-2), (Dtype::F16, 2e-3), (Dtype::Fp8, 3e-1)] {
            let model = sized(&model, compute);
            let batch = Batch::new(&model, 2);
            let wide = Tiny::new(&model).train(&cpu, &batch.microbatch()).loss;
            let loss = narrow(&model, compute).train(&cpu, &batch.microbatch()).loss;
            assert_ne!(loss.to_bits(), wide.to_bits(), "{compute}: something was rounded");
            assert!((loss - wide).abs() < digits * wide, "{compute}: {loss} and {wide}");
        }
    }
}

#[test]
fn the_loss_scale_multiplies_every_gradient_and_not_the_loss() {
    let cpu = Cpu::single(Isa::detect());
    let (tiny, batch) = (Tiny::new(&LLAMA), Batch::new(&LLAMA, 2));
    let outcome = |exponent: u8| {
        let loss_scale = LossScale::of_exponent(exponent);
        let mode = Mode::Train { seed: 5, step: 3, loss_scale };
        tiny.run(&cpu, &batch.microbatch(), mode, Recompute::None, 0.0)
    };
    let (plain, scaled) = (outcome(0), outcome(10));
    assert_eq!(plain.loss.to_bits(), scaled.loss.to_bits());
    for (plain, scaled) in plain.grads.iter().zip(&scaled.grads) {
        let times: Vec<f32> = plain.iter().map(|gradient| gradient * 1024.0).collect();
        assert_same(scaled, &times, "a power of two passes through every product");
    }
}

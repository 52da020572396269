//! Bitwise invariance: instruction set, threads, other sequences of the micro-batch, recomputation.

use super::tiny::{Batch, LLAMA, LONG, TRAIN, Tiny, assert_same, train, variants};
use lockstep_config::Model;
use lockstep_model::{Mode, Param, Recompute, describe, init};
use lockstep_tensor::{Cpu, Isa};

fn two_threads(isa: Isa) -> Cpu {
    #[expect(clippy::disallowed_methods, reason = "a test needs no simulated world")]
    Cpu::new(isa, 2, &|_, run| {
        std::thread::spawn(run);
    })
}

#[test]
fn every_instruction_set_and_number_of_threads_gives_the_same_bits() {
    for model in variants().into_iter().chain([LONG]) {
        let batch = Batch::new(&model, 3);
        let tiny = Tiny::new(&model);
        let expected = tiny.train(&Cpu::single(Isa::detect()), &batch.microbatch());
        for isa in Isa::available() {
            for cpu in [Cpu::single(isa), two_threads(isa)] {
                let outcome = tiny.train(&cpu, &batch.microbatch());
                let threads = cpu.num_threads();
                outcome.assert_same(&expected, &format!("{isa}, {threads} threads, {model:?}"));
            }
        }
    }
}

#[test]
fn a_sequence_is_independent_of_others_in_its_microbatch() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 3);
        let tiny = Tiny::new(&model);
        let whole = tiny.train(&cpu, &batch.microbatch());
        let mut logits = Vec::new();
        let mut d_stream = Vec::new();
        for (first, sequences) in [(0, 1), (1, 2)] {
            let part = tiny.train(&cpu, &batch.microbatch_of(first, sequences));
            logits.extend(part.logits);
            d_stream.extend(part.d_stream);
        }
        assert_same(&whole.logits, &logits, &format!("logits of {model:?}"));
        assert_same(&whole.d_stream, &d_stream, &format!("stream of {model:?}"));
    }
}

#[test]
fn backward_in_two_halves_gives_the_bits_of_the_whole() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants().into_iter().chain([LONG]) {
        let batch = Batch::new(&model, 2);
        for start in [0.0, 0.5] {
            let run = |tiny: &Tiny, what| tiny.run(&cpu, &batch.microbatch(), TRAIN, what, start);
            let expected = run(&Tiny::new(&model), Recompute::None);
            let tiny = Tiny::new(&model).in_halves();
            for what in [Recompute::None, Recompute::Selective, Recompute::Full] {
                run(&tiny, what).assert_same(&expected, &format!("{what:?}, {model:?}"));
            }
        }
        let is_trained = |param: &Param| param.name.contains("1.") || param.name.contains("norm");
        let part = |tiny: &Tiny| {
            tiny.run_part(&cpu, &batch.microbatch(), TRAIN, Recompute::None, 0.0, &is_trained)
        };
        let expected = part(&Tiny::new(&model));
        part(&Tiny::new(&model).in_halves()).assert_same(&expected, &format!("part of {model:?}"));
    }
}

#[test]
fn recomputation_restores_the_same_bits() {
    let cpu = Cpu::single(Isa::detect());
    for model in variants() {
        let batch = Batch::new(&model, 2);
        let tiny = Tiny::new(&model);
        let expected = tiny.train(&cpu, &batch.microbatch());
        for what in [Recompute::Selective, Recompute::Full] {
            let outcome = tiny.run(&cpu, &batch.microbatch(), TRAIN, what, 0.0);
            outcome.assert_same(&expected, &format!("{what:?}, {model:?}"));
        }
    }
}

#[test]
fn dropout_changes_with_the_step_and_is_off_in_evaluation() {
    let cpu = Cpu::single(Isa::detect());
    let plain = Tiny::new(&LLAMA);
    let dropping = Tiny::new(&Model { dropout: 0.25, ..LLAMA });
    let batch = Batch::new(&LLAMA, 2);
    let microbatch = batch.microbatch();
    let loss = |tiny: &Tiny, mode| tiny.run(&cpu, &microbatch, mode, Recompute::None, 0.0).loss;
    let evaluated = loss(&dropping, Mode::Evaluate);
    assert_eq!(evaluated.to_bits(), loss(&plain, Mode::Evaluate).to_bits());
    let losses = [0, 1].map(|step| loss(&dropping, train(5, step)));
    assert_ne!(losses[0].to_bits(), losses[1].to_bits());
    let other_seed = loss(&dropping, train(6, 0));
    assert_ne!(losses[0].to_bits(), other_seed.to_bits());
}

#[test]
fn initial_weights_are_a_function_of_seed_name_and_element() {
    let cpu = Cpu::single(Isa::detect());
    let blueprint = describe(&Model { tied: true, ..LLAMA });
    for (_, param) in blueprint.params() {
        let mut whole = vec![0.0; param.len()];
        init::fill(&cpu, 1, param, 0, &mut whole);
        let half = param.len() / 2 + 1;
        let mut tail = vec![0.0; param.len() - half];
        init::fill(&cpu, 1, param, half, &mut tail);
        assert_same(&whole[half..], &tail, &param.name);
        init::fill(&cpu, 2, param, half, &mut tail);
        assert_eq!(param.shape.len() == 1, whole[half..] == tail, "{}", param.name);
    }
    let mirror = blueprint.mirrors().next().expect("tied embeddings have a mirror");
    let mut tables = [vec![0.0; mirror.owner.len()], vec![0.0; mirror.mirror.len()]];
    init::fill(&cpu, 1, mirror.owner, 0, &mut tables[0]);
    init::fill(&cpu, 1, mirror.mirror, 0, &mut tables[1]);
    assert_same(&tables[0], &tables[1], "the mirror");
}

/// Whether a parameter is trained, by its index and itself.
type Rule<'a> = &'a dyn Fn(usize, &Param) -> bool;

#[test]
fn frozen_parameters_have_no_gradient_and_change_no_other() {
    let cpu = Cpu::single(Isa::detect());
    // Every third parameter from each start, only vectors, only keys and non-weights.
    let rules: [Rule<'_>; 6] = [
        &|index, _| index % 3 != 0,
        &|index, _| index % 3 != 1,
        &|index, _| index % 3 != 2,
        &|_, param| param.shape.len() == 1,
        &|_, param| param.name.contains("k_proj") || param.name.contains("bias"),
        &|_, _| false,
    ];
    for model in variants() {
        let batch = Batch::new(&model, 2);
        let tiny = Tiny::new(&model);
        let whole = tiny.train(&cpu, &batch.microbatch());
        let names: Vec<String> = tiny.blueprint.params().map(|(_, p)| p.name.clone()).collect();
        for (rule, is_trained) in rules.iter().enumerate() {
            let is_trained = |param: &Param| {
                is_trained(names.iter().position(|name| *name == param.name).unwrap(), param)
            };
            let part =
                tiny.run_part(&cpu, &batch.microbatch(), TRAIN, Recompute::None, 0.0, &is_trained);
            let what = format!("rule {rule}, {model:?}");
            assert_same(&part.d_stream, &whole.d_stream, &what);
            for (index, block) in tiny.blueprint.blocks.iter().enumerate() {
                let trained = block.params().iter().filter(|param| is_trained(param));
                let expected: Vec<f32> =
                    trained.flat_map(|param| whole.grads[index][param.range()].to_vec()).collect();
                assert_same(&part.grads[index], &expected, &format!("block {index}, {what}"));
            }
        }
    }
}

//! The device of `run.device = auto`: it follows the CPU, and repeats itself bit for bit. Without
//! an accelerator that device is the CPU.

use lockstep_config::Dtype;
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES, TINY};
use lockstep_harness::runs::{Hashes, Outcome};
use lockstep_harness::{Runs, Tolerance};
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_planner::memory::Memory;
use lockstep_platform::real;
use lockstep_trainer::generate::Generator;
use lockstep_trainer::{Options, RunFolder};

/// Trains with these settings besides those of a small recipe.
fn train(runs: &mut Runs, small: &Small, sets: &[&str]) -> Outcome {
    runs.finish(&small.with(sets))
}

/// Rounding differs between devices, and every step passes its differences on to the next.
#[test]
fn losses_of_fifty_steps_follow_those_of_the_cpu() {
    let mut runs = Runs::new("devices");
    for small in TINY {
        let on = |device| [device, "train.steps=50", "train.eval_batches=1"];
        let cpu = train(&mut runs, &small, &on("run.device=cpu"));
        let device = train(&mut runs, &small, &on("run.device=auto"));
        let vocab = small.with::<&str>(&[]).model.vocab;
        for (step, (found, expected)) in device.losses.iter().zip(&cpu.losses).enumerate() {
            let close = Tolerance::Close(Dtype::F32, vocab * (step + 1));
            close.assert(&format!("{}, loss of step {step}", small.name), &[*found], &[*expected]);
        }
    }
}

#[test]
fn runs_repeat_to_the_bit_with_any_recomputation_and_offload_and_after_a_stop() {
    let mut runs = Runs::new("devices");
    let steps = ["run.device=auto", "train.steps=12", "precision.compute=bf16", "model.layers=5"];
    let whole = train(&mut runs, &LLAMA, &steps).hashes();
    let mut others: Vec<Hashes> = Vec::new();
    for recompute in ["none", "selective", "full"] {
        for offload in ["offload.activations=none", "offload.activations=host"] {
            let policy = format!("parallel.recompute={recompute}");
            let sets: Vec<_> = steps.into_iter().chain([policy.as_str(), offload]).collect();
            others.push(train(&mut runs, &LLAMA, &sets).hashes());
        }
    }
    let recipe = LLAMA.with(&steps);
    let stop = Options { stop_after: Some(5), ..Options::default() };
    let first = runs.run(&recipe, stop).unwrap_or_else(|error| panic!("{error}"));
    let resume = Options { resume: Some(first.dir), ..Options::default() };
    let rest = runs.run(&recipe, resume).unwrap_or_else(|error| panic!("{error}"));
    others.push(rest.hashes());
    for other in others {
        assert_eq!(other, whole);
    }
}

/// Micro-batches of several leaves, tied tensors, dropout, recomputation, ZeRO-1, two workers on
/// one device, stages of a pipeline and an optimizer with norms: the first steps record, the next
/// ones repeat.
#[test]
fn graphs_change_no_bit() {
    let mut runs = Runs::new("devices");
    let steps = ["run.device=auto", "train.steps=6", "train.eval_batches=1"];
    let offload = "offload.activations=host";
    let variants: [(Small, &[&str]); 11] = [
        (LLAMA, &["precision.compute=bf16"]),
        (LLAMA, &["precision.compute=bf16", "parallel.recompute=full", "run.workers=1"]),
        (LLAMA, &["parallel.recompute=selective", "parallel.zero=1", "run.workers=1"]),
        (LLAMA, &["precision.compute=fp16", "parallel.zero=1", "run.workers=2"]),
        (LLAMA, &["run.workers=2", "parallel.pipeline=2", "optim.name=lamb"]),
        (LLAMA, &["run.workers=2", "parallel.zero=2", "optim.name=muon"]),
        (GPT2, &["precision.compute=bf16", "run.workers=1"]),
        (DROPOUT, &["precision.compute=bf16", "run.workers=1"]),
        (THREE_MICROBATCHES, &["run.workers=1"]),
        (THREE_MICROBATCHES, &["model.layers=5", "run.workers=1", offload]),
        (LLAMA, &["model.layers=6", "run.workers=2", "parallel.pipeline=2", offload]),
    ];
    // A CPU has no graphs, so that one run shows that the key is without effect.
    let has_accelerator = lockstep_harness::devices::computes().len() > 1;
    let num_variants = if has_accelerator { variants.len() } else { 1 };
    for (small, sets) in variants.into_iter().take(num_variants) {
        let with = |graphs| [&steps, sets, &[graphs]].concat();
        let off = train(&mut runs, &small, &with("run.graphs=false")).hashes();
        let on = train(&mut runs, &small, &with("run.graphs=true")).hashes();
        assert_eq!(on, off, "{}, {sets:?}", small.name);
    }
}

#[test]
fn decoding_gives_the_logits_of_the_cpu() {
    let mut runs = Runs::new("devices");
    for small in TINY {
        let trained = train(&mut runs, &small, &["run.device=cpu", "train.steps=5"]);
        let folder = RunFolder::finished(&trained.dir, &real()).expect("a finished run");
        let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
        let [cpu, device] = ["run.device=cpu", "run.device=auto"].map(|device| {
            let generator = Generator::open(&folder, &small.with(&[device]), &real());
            let logits = generator.and_then(|generator| generator.logits(&tokens));
            logits.unwrap_or_else(|error| panic!("{error}")).concat()
        });
        let close = Tolerance::Close(Dtype::F32, small.with::<&str>(&[]).model.width);
        close.assert(&format!("{}, logits", small.name), &device, &cpu);
    }
}

/// Without an accelerator there is nothing to compare, but that there is nothing.
#[test]
fn memory_of_a_device_is_as_forecast() {
    let mut runs = Runs::new("devices");
    let has_accelerator = lockstep_harness::devices::computes().len() > 1;
    let wide = ["run.device=auto", "train.steps=2", "model.width=256", "model.ffn=1024"];
    let offload = "offload.activations=host";
    let variants: [&[&str]; 11] = [
        &["precision.compute=bf16", "model.vocab=4096"],
        &["precision.compute=fp8"],
        &["parallel.recompute=full", "optim.name=lamb"],
        &["precision.compute=bf16", "optim.name=muon"],
        &["run.workers=2", "parallel.zero=1", "optim.name=schedule-free-adamw"],
        &["run.workers=2", "precision.wire=bf16"],
        &["run.workers=2", "sync.mode=local-sgd", "sync.local_steps=2"],
        &["run.workers=2", "parallel.zero=3", "precision.compute=fp16"],
        &["run.workers=2", "parallel.pipeline=2"],
        &["precision.compute=bf16", "model.layers=8", offload],
        &["parallel.recompute=full", "model.layers=8", offload, "run.workers=2"],
    ];
    // Without an accelerator there is nothing to measure, as one run shows.
    let num_variants = if has_accelerator { variants.len() } else { 1 };
    for sets in variants.into_iter().take(num_variants) {
        let recipe = LLAMA.with(&[&wide, sets].concat());
        let memory = Memory::of(&recipe, &blueprint_of_rank(&recipe, 0)).on_accelerators();
        let forecast = memory.into_iter().max().expect("a rank").0 as f64;
        let measured = runs.finish(&recipe).summary.device_bytes;
        assert_eq!(measured.is_some(), has_accelerator, "{sets:?}");
        if let Some(bytes) = measured {
            let error = forecast / bytes as f64 - 1.0;
            assert!(error.abs() < 0.03, "{sets:?}: {forecast} B, measured {bytes} B");
        }
    }
}

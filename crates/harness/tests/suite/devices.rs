//! The device of `run.device = auto`: it follows the CPU, and repeats itself bit for bit. Without
//! an accelerator that device is the CPU.

use lockstep_config::Dtype;
use lockstep_harness::recipes::{LLAMA, Small, TINY};
use lockstep_harness::runs::{Hashes, Outcome};
use lockstep_harness::{Runs, Tolerance};
use lockstep_trainer::Options;

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
fn runs_repeat_to_the_bit_with_any_recomputation_and_after_a_stop() {
    let mut runs = Runs::new("devices");
    let steps = ["run.device=auto", "train.steps=12", "precision.compute=bf16"];
    let whole = train(&mut runs, &LLAMA, &steps).hashes();
    let mut others: Vec<Hashes> = Vec::new();
    for recompute in ["none", "selective", "full"] {
        let policy = format!("parallel.recompute={recompute}");
        let sets: Vec<_> = steps.into_iter().chain([policy.as_str()]).collect();
        others.push(train(&mut runs, &LLAMA, &sets).hashes());
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

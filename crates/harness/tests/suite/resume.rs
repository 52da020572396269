//! A resumed run has the bits of an uninterrupted one.

use lockstep_config::{Blame, Recipe};
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, THREE_MICROBATCHES};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_harness::{Runs, Tolerance};
use lockstep_tensor::Isa;
use lockstep_trainer::{Options, TrainError};
use std::path::Path;

/// Trains `num_steps` steps and saves.
fn stop_after(runs: &mut Runs, recipe: &Recipe, num_steps: u64) -> Outcome {
    let options = Options { stop_after: Some(num_steps), ..Options::default() };
    runs.run(recipe, options).unwrap_or_else(|error| panic!("the first part failed: {error}"))
}

fn resume(runs: &mut Runs, recipe: &Recipe, dir: &Path) -> Result<Outcome, TrainError> {
    runs.run(recipe, Options { resume: Some(dir.to_owned()), ..Options::default() })
}

/// Interrupts `first` at each of `stops`, resumes with `second`, and compares with uninterrupted
/// `first`.
fn check(first: &Recipe, second: &Recipe, stops: &[u64]) {
    let mut runs = Runs::new("resume");
    let whole = runs.finish(first);
    assert_eq!(whole.losses.len() as u64, first.train.steps);
    for &stop in stops {
        let part = stop_after(&mut runs, first, stop);
        assert_eq!(part.summary.steps, stop);
        let rest = resume(&mut runs, second, &part.dir)
            .unwrap_or_else(|error| panic!("resuming after {stop} steps failed: {error}"));
        let losses = [part.losses.as_slice(), &rest.losses].concat();
        Tolerance::Exact.assert("losses", &losses, &whole.losses);
        assert_eq!(rest.hashes(), whole.hashes(), "stopped after {stop} steps");
        assert_eq!(rest.summary.steps, whole.summary.steps);
        assert_ne!(part.hashes(), whole.hashes(), "the second part does something");
        let validation = |outcome: &Outcome| outcome.summary.validation_loss.map(f64::to_bits);
        assert_eq!(validation(&rest), validation(&whole));
    }
}

/// Steps after which runs of twenty steps are interrupted.
fn stops() -> Vec<u64> {
    if soak() { (1..20).collect() } else { vec![10] }
}

#[test]
fn ten_steps_and_ten_more_equal_twenty_bit_for_bit() {
    for small in [LLAMA, GPT2, DROPOUT, THREE_MICROBATCHES] {
        let recipe = small.with(&["train.steps=20"]);
        check(&recipe, &recipe, &stops());
    }
}

#[test]
fn every_optimizer_resumes_bit_for_bit() {
    let names = [
        "sgd",
        "nesterov",
        "adamw",
        "lars",
        "lamb",
        "lion",
        "schedule-free-adamw",
        "muon",
        "adafactor",
        "adamw-8bit",
    ];
    for name in names {
        let recipe = LLAMA.with(&["train.steps=20", &format!("optim.name={name}")]);
        check(&recipe, &recipe, &stops());
    }
}

#[test]
fn the_second_part_may_have_another_instruction_set_and_threads() {
    let recipe = |isa: Isa, num_threads: usize| {
        let (isa, threads) = (format!("run.isa={isa}"), format!("run.threads={num_threads}"));
        GPT2.with(&["train.steps=20", &isa, &threads])
    };
    check(&recipe(Isa::detect(), 2), &recipe(Isa::Portable, 1), &stops());
}

#[test]
fn a_run_may_be_interrupted_many_times() {
    let mut runs = Runs::new("resume");
    let recipe = DROPOUT.with(&["train.steps=6"]);
    let whole = runs.finish(&recipe);
    let mut part = stop_after(&mut runs, &recipe, 1);
    for stop in 2..=6 {
        let options = Options {
            resume: Some(part.dir.clone()),
            stop_after: Some(stop),
            ..Options::default()
        };
        part = runs.run(&recipe, options).expect("each part resumes");
        assert_eq!(part.losses.len(), 1, "each part is one step");
    }
    assert_eq!(part.hashes(), whole.hashes());
}

#[test]
fn another_recipe_is_refused_but_run_settings_may_differ() {
    let mut runs = Runs::new("resume");
    let part = stop_after(&mut runs, &LLAMA.with(&["train.steps=20"]), 2);
    for set in ["train.seed=2", "optim.lr=1e-4", "model.ffn=64"] {
        let other = LLAMA.with(&["train.steps=20", set]);
        let error = resume(&mut runs, &other, &part.dir).expect_err(set);
        assert!(matches!(error, TrainError::OtherRecipe { .. }), "{set}: {error}");
        assert_eq!(error.blame(), Blame::User);
    }
    let same = LLAMA.with(&["train.steps=20", "run.threads=2", "run.save_optimizer=false"]);
    resume(&mut runs, &same, &part.dir).expect("only run settings differ");
}

#[test]
fn another_text_is_refused() {
    let mut runs = Runs::new("resume");
    let book = runs.path().join("book.txt");
    let write = |runs: &Runs, text: &str| {
        let files = runs.world().files();
        files.write_atomic(&book, text.repeat(200).as_bytes()).expect("a book can be written");
    };
    write(&runs, "in the beginning was the word. ");
    let recipe = LLAMA.with(&["train.steps=20", &format!("data.source={}", book.display())]);
    let part = stop_after(&mut runs, &recipe, 2);
    resume(&mut runs, &recipe, &part.dir).expect("the same text");

    write(&runs, "in the beginning was the Word. ");
    let error = resume(&mut runs, &recipe, &part.dir).expect_err("a letter changed");
    assert!(error.to_string().contains("is not the text that this run began with"), "{error}");
    assert_eq!(error.blame(), Blame::User);
}

#[test]
fn weights_with_a_flipped_bit_are_refused() {
    let mut runs = Runs::new("resume");
    let recipe = LLAMA.with(&["train.steps=20"]);
    let part = stop_after(&mut runs, &recipe, 1);
    let path = part.dir.join("model.safetensors");
    let mut bytes = runs.world().files().read(&path).expect("weights");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    runs.world().files().write_atomic(&path, &bytes).expect("a flipped bit");
    let error = resume(&mut runs, &recipe, &part.dir).expect_err("a bit flipped");
    assert!(error.to_string().contains("differs from that in state.json"), "{error}");
    assert_eq!(error.blame(), Blame::Storage);
}

#[test]
fn a_refused_resume_leaves_no_folder() {
    let mut runs = Runs::new("resume");
    let part = stop_after(&mut runs, &LLAMA.with(&["train.steps=20"]), 1);
    let list = |runs: &Runs| runs.world().files().list(runs.path()).expect("it is there");
    let before = list(&runs);
    let other = LLAMA.with(&["train.steps=20", "train.seed=2"]);
    resume(&mut runs, &other, &part.dir).expect_err("another seed");
    assert_eq!(list(&runs), before);
}

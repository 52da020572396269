//! Sequence-length warm-up: the losses of short sequences, and the bits of one worker under every
//! layout and after a restart.

use lockstep_config::{Dtype, Recipe};
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, Tolerance};
use lockstep_trainer::Options;
use serde_json::Value;

const COMMON: [&str; 5] = [
    "train.steps=5",
    "train.eval_batches=1",
    "numerics.invariant_tensor_up_to=2",
    "run.isolation=threads",
    "run.threads=1",
];

/// Lengths of 8, 16, 24 and then the context of 32.
const WARMUP: [&str; 1] = ["train.seqlen_warmup_steps=3"];

fn with(small: &Small, sets: &[&[&str]]) -> Recipe {
    small.with(&[&COMMON[..], &sets.concat()].concat())
}

#[test]
fn every_layout_gives_the_bits_of_one_worker() {
    let mut runs = Runs::new("seqlen");
    for small in [LLAMA, GPT2] {
        let alone = runs.finish(&with(&small, &[&WARMUP]));
        assert_ne!(alone.hashes(), runs.finish(&with(&small, &[])).hashes(), "{}", small.name);
        for layout in [
            &["run.workers=3", "parallel.zero=2", "parallel.recompute=full"][..],
            &["run.workers=2", "parallel.zero=3"],
            &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2"],
            &["run.workers=2", "parallel.tensor=2", "parallel.sequence=true"],
            &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
        ] {
            let recipe = with(&small, &[&WARMUP, layout]);
            let found = runs.finish(&recipe);
            assert_eq!(found.hashes(), alone.hashes(), "{}: {layout:?}", small.name);
            let [ours, expected] = [&found, &alone].map(|run| run.summary.validation_loss);
            assert_eq!(ours.map(f64::to_bits), expected.map(f64::to_bits), "whole sequences");
            assert_traffic_and_memory_as_predicted(&recipe, &found);
        }
    }
}

#[test]
fn a_restart_at_any_length_changes_no_bit() {
    let mut runs = Runs::new("seqlen");
    let recipe = with(&LLAMA, &[&WARMUP, &["run.workers=2", "parallel.zero=1"]]);
    let whole = runs.finish(&recipe);
    for stop in 1..5 {
        let first = Options { stop_after: Some(stop), ..Options::default() };
        let part = runs.run(&recipe, first).expect("the first part");
        let rest = Options { resume: Some(part.dir.clone()), ..Options::default() };
        let second = with(&LLAMA, &[&WARMUP, &["run.workers=3", "parallel.zero=3"]]);
        let rest = runs.run(&second, rest).expect("the second part");
        assert_eq!(rest.hashes(), whole.hashes(), "stopped after {stop}");
        assert_eq!(rest.summary.tokens, whole.summary.tokens);
    }
}

#[test]
fn events_have_the_length_of_each_step_and_every_token_counts() {
    let mut runs = Runs::new("seqlen");
    let outcome = runs.finish(&with(&LLAMA, &[&WARMUP]));
    let text = runs.world().files().read(&outcome.dir.join("events.jsonl")).expect("events");
    let text = String::from_utf8(text).expect("events are text");
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let steps = events.filter(|event| event["event"] == "step");
    let lengths: Vec<Option<u64>> = steps.map(|step| step["seqlen"].as_u64()).collect();
    assert_eq!(lengths, [Some(8), Some(16), Some(24), None, None]);
    assert_eq!(outcome.summary.tokens, 5 * 16 * 32);
}

/// Sequences in the order of the text: four segments of 8 tokens are four sequences of 8.
#[test]
fn the_first_step_has_the_loss_of_short_sequences() {
    let mut runs = Runs::new("seqlen");
    let order = ["data.order=sequential"];
    let cut = runs.finish(&with(&LLAMA, &[&WARMUP, &order]));
    let short = ["model.context=8", "train.batch=64", "train.microbatch=8"];
    let short = runs.finish(&with(&LLAMA, &[&order, &short]));
    let close = Tolerance::Close(Dtype::F32, 16 * 32);
    close.assert("loss", &cut.losses[..1], &short.losses[..1]);
    let whole = runs.finish(&with(&LLAMA, &[&order]));
    assert!(close.compare("loss", &cut.losses[..1], &whole.losses[..1]).is_err(), "cuts count");
}

#[test]
fn what_cannot_work_is_refused_with_the_key() {
    let refused = |sets: &[&str]| {
        let sets = [&COMMON[..], sets].concat();
        LLAMA.try_with(&sets).expect_err("it is refused").to_string()
    };
    let error = refused(&["train.seqlen_warmup_steps=6"]);
    assert!(
        error.contains("train.seqlen_warmup_steps = 6 is more than train.steps = 5"),
        "{error}"
    );
    let error = refused(&["train.seqlen_warmup_steps=3", "train.seqlen_start=64"]);
    assert!(error.contains("train.seqlen_start = 64 is more than model.context = 32"), "{error}");
}

//! Resuming from any checkpoint, under any layout, gives the bits of an uninterrupted run.

use lockstep_checkpoint::sharded::Store;
use lockstep_config::{Blame, Recipe, Sources};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES};
use lockstep_harness::runs::soak;
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::{Attempt, Options, TrainError, pretrained};
use std::path::{Path, PathBuf};

/// Twenty steps with a checkpoint after every fifth.
fn recipe(small: &Small, layout: &[&str]) -> Recipe {
    small.with(&[&["train.steps=20", "checkpoint.every=5"], layout].concat())
}

/// Trains up to a step and returns the folder of its checkpoints.
fn leave(runs: &mut Runs, recipe: &Recipe, resume: Option<PathBuf>, stop_after: u64) -> PathBuf {
    let options = Options { resume, stop_after: Some(stop_after), ..Options::default() };
    let outcome = runs.run(recipe, options).unwrap_or_else(|error| panic!("a part: {error}"));
    outcome.dir.join("checkpoints")
}

fn from(dir: &Path) -> Options {
    Options { resume: Some(dir.to_owned()), ..Options::default() }
}

#[test]
fn every_part_of_a_run_may_have_another_layout() {
    let layouts: [&[&str]; 6] = [
        &["run.workers=4", "parallel.zero=3"],
        &["run.workers=2", "parallel.pipeline=2"],
        &["run.workers=3"],
        &["run.workers=4", "parallel.pipeline=2", "parallel.zero=1", "parallel.virtual_stages=1"],
        &["run.workers=2", "parallel.zero=2"],
        &["run.workers=1"],
    ];
    let smalls: &[Small] =
        if soak() { &[LLAMA, GPT2, DROPOUT, THREE_MICROBATCHES] } else { &[GPT2] };
    for small in smalls {
        let mut runs = Runs::new("checkpoints");
        let whole = runs.finish(&small.with(&["train.steps=20", "run.workers=1"]));
        for turn in 0..if soak() { layouts.len() } else { 2 } {
            let layout = |part: usize| recipe(small, layouts[(turn * 3 + part) % layouts.len()]);
            let first = leave(&mut runs, &layout(0), None, 7);
            let second = leave(&mut runs, &layout(1), Some(first), 13);
            let third = leave(&mut runs, &layout(2), Some(second), 17);
            let end = runs.run(&layout(3), from(&third)).expect("the last part");
            assert_eq!(end.losses.len(), 5, "it resumed after step 15");
            assert_eq!(end.hashes(), whole.hashes(), "{} from layout {turn} on", small.name);
        }
    }
}

#[test]
fn tensor_parallel_ranks_save_whole_tensors() {
    for small in [LLAMA, GPT2] {
        let mut runs = Runs::new("checkpoints");
        let slices = "numerics.invariant_tensor_up_to=2";
        let layout = |layout: &[&str]| recipe(&small, &[&[slices], layout].concat());
        let whole = runs.finish(&small.with(&["train.steps=20", "run.workers=1", slices]));
        let tensor = layout(&["run.workers=4", "parallel.tensor=2", "parallel.zero=3"]);
        let first = leave(&mut runs, &tensor, None, 7);
        let second = leave(&mut runs, &layout(&["run.workers=3"]), Some(first), 13);
        let both = layout(&["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2"]);
        let end = runs.run(&both, from(&second)).expect("the last part");
        assert_eq!(end.hashes(), whole.hashes(), "{}", small.name);
    }
}

/// Twenty steps as ten and ten more, each part under another layout: ZeRO-3, tensor parallelism,
/// data parallelism, pipeline parallelism, one worker.
#[test]
fn ten_steps_and_ten_more_equal_twenty_across_any_change_of_layout() {
    let slices = "numerics.invariant_tensor_up_to=2";
    let chain: [&[&str]; 5] = [
        &["run.workers=4", "parallel.zero=3"],
        &["run.workers=2", "parallel.tensor=2"],
        &["run.workers=3"],
        &["run.workers=4", "parallel.pipeline=2", "checkpoint.compression=zstd"],
        &["run.workers=1"],
    ];
    for small in if soak() { &[LLAMA, GPT2, DROPOUT][..] } else { &[LLAMA] } {
        let mut runs = Runs::new("checkpoints");
        let every = |sets: &[&str]| {
            small.with(&[&["train.steps=20", "checkpoint.every=2", slices], sets].concat())
        };
        let whole = runs.finish(&small.with(&["train.steps=20", "run.workers=1", slices]));
        // Each link of the chain alone: ten steps, and ten more.
        for pair in chain.windows(2) {
            let first = leave(&mut runs, &every(pair[0]), None, 11);
            let end = runs.run(&every(pair[1]), from(&first)).expect("the second part");
            assert_eq!(end.losses.len(), 10, "it resumed after step 10");
            assert_eq!(end.hashes(), whole.hashes(), "{}: {pair:?}", small.name);
        }
        // And the whole chain, four steps at a time.
        let mut left = None;
        for (part, layout) in chain[..4].iter().enumerate() {
            left = Some(leave(&mut runs, &every(layout), left, 4 * part as u64 + 5));
        }
        let end = runs.run(&every(chain[4]), from(&left.expect("parts"))).expect("the last part");
        assert_eq!(end.hashes(), whole.hashes(), "{}: the whole chain", small.name);
    }
}

#[test]
fn checkpoints_hold_every_optimizer_and_frozen_parameters() {
    for sets in [
        ["optim.name=lamb", "optim.groups=[]"],
        ["optim.name=nesterov", "optim.groups=[]"],
        ["optim.name=schedule-free-adamw", "optim.groups=[]"],
        ["optim.name=muon", "optim.groups=[{match = \"*mlp*\", freeze_after = 8}]"],
        ["optim.name=adamw-8bit", "optim.groups=[{match = \"*norm*\", freeze_after = 8}]"],
        ["optim.name=adafactor", "optim.groups=[{match = \"*mlp*\", freeze_after = 8}]"],
        ["optim.name=adamw", "optim.groups=[{match = \"*norm*\", freeze_after = 8}]"],
    ] {
        let mut runs = Runs::new("checkpoints");
        let layout = |layout: &[&str]| recipe(&LLAMA, &[&sets, layout].concat());
        let whole = runs.finish(&LLAMA.with(&[&["train.steps=20"], &sets[..]].concat()));
        let left = leave(&mut runs, &layout(&["run.workers=2", "parallel.zero=3"]), None, 12);
        let end = runs.run(&layout(&["run.workers=3"]), from(&left)).expect("the second part");
        assert_eq!(end.hashes(), whole.hashes(), "{sets:?}");
    }
}

#[test]
fn checkpoints_in_background_or_foreground_change_no_bit_and_the_newest_stay() {
    let mut runs = Runs::new("checkpoints");
    let whole = runs.finish(&LLAMA.with(&["train.steps=20"]));
    for background in ["true", "false"] {
        let set = format!("checkpoint.background={background}");
        let saved = runs.finish(&recipe(&LLAMA, &["run.workers=2", &set, "checkpoint.keep=2"]));
        assert_eq!(saved.hashes(), whole.hashes());
        let store = Store::new(runs.world(), &saved.dir.join("checkpoints"));
        assert_eq!(store.steps().expect("a folder"), [15, 10]);
        let events = load_events(runs.world(), &saved.dir.join("events.jsonl")).expect("events");
        let saved = |event: &Event| matches!(event, Event::CheckpointSaved { .. });
        assert_eq!(events.iter().filter(|stamped| saved(&stamped.event)).count(), 3);
    }
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_a_warning() {
    let mut runs = Runs::new("checkpoints");
    let recipe = recipe(&LLAMA, &["run.workers=2"]);
    let whole = runs.finish(&recipe);
    let left = leave(&mut runs, &recipe, None, 12);
    let path = left.join("step-00000010").join("rank-0001.safetensors");
    let mut bytes = runs.world().files().read(&path).expect("a part");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    for (damaged, message) in [
        (&bytes[..], "rank-0001.safetensors does not have its checksum"),
        (&bytes[..middle], "rank-0001.safetensors has"),
    ] {
        runs.world().files().write_atomic(&path, damaged).expect("it can be written");
        let end = runs.run(&recipe, from(&left)).expect("the older one is valid");
        assert_eq!(end.losses.len(), 15, "it resumed after step 5");
        assert_eq!(end.hashes(), whole.hashes());
        let events = load_events(runs.world(), &end.dir.join("events.jsonl")).expect("events");
        let warning = events.iter().find_map(|stamped| match &stamped.event {
            Event::Warning { message } => Some(message.as_str()),
            _ => None,
        });
        let warning = warning.expect("a warning is reported");
        assert!(warning.contains(message), "{warning}");
    }

    // Without a valid checkpoint there is nothing to resume from.
    let older = left.join("step-00000005").join("manifest.json");
    runs.world().files().write_atomic(&older, b"{}").expect("no manifest");
    let error = runs.run(&recipe, from(&left)).expect_err("both are damaged");
    assert_eq!(error.blame(), Blame::Storage, "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn a_restarted_attempt_resumes_in_the_same_folder() {
    let mut runs = Runs::new("checkpoints");
    let mut recipe = recipe(&LLAMA, &["run.workers=2"]);
    let whole = runs.finish(&recipe);
    let dir = runs.path().join("attempts");
    recipe.run.dir = dir.display().to_string();
    let attempt = |restarts, stop_after| Options {
        stop_after,
        attempt: Attempt { restarts, dir: Some(dir.clone()) },
        ..Options::default()
    };
    let train = |options| lockstep_harness::runs::train_on_threads(&recipe, runs.world(), options);
    train(attempt(0, Some(13))).expect("the first attempt");
    let end = train(attempt(1, None)).expect("the second attempt");
    assert_eq!(end.weights_hash, whole.summary.weights_hash);
    assert_eq!(end.losses_hash, whole.summary.losses_hash);
    assert_eq!(end.restarts, 1);
}

/// A recipe that loads the matching tensors of a folder.
fn partial(dir: &Path, sets: &[&str]) -> Result<Recipe, TrainError> {
    let from = format!("model.from={}", dir.display());
    let recipe = LLAMA.with(&[&["train.steps=6"], sets].concat());
    let text = Some(("small.toml".to_owned(), recipe.to_toml()));
    let sets = vec![from, "model.partial=true".to_owned()];
    let sources = Sources { file: text, sets, ..Sources::default() };
    pretrained::resolve(&sources, &lockstep_platform::real())
}

#[test]
fn a_model_loads_the_matching_tensors_of_another_and_reports_them() {
    let mut runs = Runs::new("checkpoints");
    let left = leave(&mut runs, &recipe(&LLAMA, &["run.workers=2"]), None, 7);
    let checkpoint = left.join("step-00000005");
    // One more layer, and a feed-forward part of another size.
    let own = recipe(&LLAMA, &[]).model;
    let layers = own.layers + 1;
    let sets = [format!("model.layers={layers}"), "model.ffn=160".to_owned()];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let other = partial(&checkpoint, &sets).expect("a valid recipe");
    assert_eq!(
        (other.model.layers, other.model.ffn),
        (layers, 160),
        "the model keeps its own shape"
    );
    assert_ne!(own.ffn, 160);
    let end = runs.finish(&other);
    let events = load_events(runs.world(), &end.dir.join("events.jsonl")).expect("events");
    let warnings: Vec<_> = events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::Warning { message } => Some(message.as_str()),
            _ => None,
        })
        .collect();
    let [took, missing, reshaped] = warnings[..] else { panic!("three lines: {warnings:?}") };
    assert!(took.starts_with("took ") && took.contains(" tensors from "), "{took}");
    assert!(missing.contains(&format!("model.layers.{}.", layers - 1)), "{missing}");
    assert!(
        reshaped.contains("have another shape there") && reshaped.contains("mlp"),
        "{reshaped}"
    );
    // Every layout loads the same tensors, and they make a difference.
    let three = partial(&checkpoint, &[&sets[..], &["run.workers=3", "parallel.zero=3"]].concat());
    assert_eq!(runs.finish(&three.expect("a valid recipe")).hashes(), end.hashes());
    let random = LLAMA.with(&[&["train.steps=6"], &sets[..]].concat());
    assert_ne!(runs.finish(&random).hashes(), end.hashes());
    assert_ne!(random.hash(), other.hash(), "initial weights are part of the identity");

    let nothing = partial(&checkpoint, &["model.width=24", "model.heads=2", "model.ffn=96"]);
    let error = runs.run(&nothing.expect("a valid recipe"), Options::default());
    let error = error.expect_err("no tensor has a matching shape");
    assert_eq!(error.blame(), Blame::User);
    assert!(error.to_string().contains("has no tensor of this model"), "{error}");
}

#[test]
fn a_checkpoint_of_another_recipe_is_refused() {
    let mut runs = Runs::new("checkpoints");
    let left = leave(&mut runs, &recipe(&LLAMA, &[]), None, 7);
    let error = runs.run(&recipe(&LLAMA, &["train.seed=2"]), from(&left)).expect_err("another");
    assert_eq!(error.blame(), Blame::User);
    assert!(error.to_string().contains("train.seed = 1 there, train.seed = 2 here"), "{error}");
}

#[test]
fn a_file_in_place_of_the_checkpoint_folder_is_refused_before_the_first_step() {
    let mut runs = Runs::new("checkpoints");
    let occupied = runs.path().join("occupied");
    runs.world().files().write_atomic(&occupied, b"a file").expect("it can be written");
    let set = format!("checkpoint.dir={}", occupied.display());
    let error = runs.run(&recipe(&LLAMA, &[&set, "run.workers=1"]), Options::default());
    let error = error.expect_err("it is not a folder");
    assert_eq!(error.blame(), Blame::User, "{error}");
    assert!(error.to_string().starts_with("cannot create "), "{error}");
}

//! Mixtures of sources: bits are a function of the recipe, and every interruption resumes exactly,
//! also with other weights.

use lockstep_config::{Blame, Recipe};
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::Outcome;
use lockstep_harness::{Runs, corpora};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::{Options, TrainError};
use std::path::Path;

/// A scratch folder with `shards`, `texts` and `tokenizer.json` in it.
fn prepared() -> Runs {
    let runs = Runs::new("mixtures");
    let (world, path) = (runs.world(), runs.path());
    let chapters = corpora::chapters(world, 24);
    let tokenizer = corpora::write_word_tokenizer(world, &path.join("tokenizer.json"), &chapters);
    corpora::write_shards(world, &path.join("shards"), &tokenizer, &chapters);
    corpora::write_text_folder(world, &path.join("texts"), &chapters);
    runs
}

/// A small recipe on texts and shards with these weights.
fn recipe(runs: &Runs, weights: [f64; 2], sets: &[&str]) -> Recipe {
    let path = runs.path().display();
    let entry = |name: &str, weight| format!("{{source = \"{path}/{name}\", weight = {weight:?}}}");
    let [texts, shards] = [entry("texts", weights[0]), entry("shards", weights[1])];
    let mixture = format!("data.mixture=[{texts}, {shards}]");
    let tokenizer = format!("data.tokenizer={path}/tokenizer.json");
    let vocab = format!("model.vocab={}", corpora::VOCAB);
    let own = [&*mixture, &tokenizer, &vocab, "train.eval_batches=1", "data.validation=0.2"];
    let own = [&own[..], &["run.isolation=threads", "data.shuffle_buffer=3"]].concat();
    LLAMA.with(&[&own[..], sets].concat())
}

fn stop_after(runs: &mut Runs, recipe: &Recipe, num_steps: u64) -> Outcome {
    let options = Options { stop_after: Some(num_steps), ..Options::default() };
    runs.run(recipe, options).expect("the first part")
}

fn resume(runs: &mut Runs, recipe: &Recipe, dir: &Path) -> Result<Outcome, TrainError> {
    runs.run(recipe, Options { resume: Some(dir.to_owned()), ..Options::default() })
}

const STEPS: &str = "train.steps=6";

#[test]
fn every_layout_and_number_of_threads_gives_the_bits_of_one_worker() {
    let mut runs = prepared();
    let whole = runs.finish(&recipe(&runs, [3.0, 1.0], &[STEPS]));
    let tokens: Vec<u64> = whole.summary.sources.iter().map(|source| source.tokens).collect();
    assert_eq!(tokens.iter().sum::<u64>(), whole.summary.tokens);
    let share = tokens[0] as f64 / whole.summary.tokens as f64;
    assert!((share - 0.75).abs() < 0.15, "{tokens:?}");
    for layout in [
        ["run.workers=2", "parallel.zero=1", "data.tokenizer_threads=1"],
        ["run.workers=3", "parallel.zero=2", "data.tokenizer_threads=2"],
        ["run.workers=4", "parallel.zero=3", "data.tokenizer_threads=4"],
    ] {
        let found = runs.finish(&recipe(&runs, [3.0, 1.0], &[&[STEPS][..], &layout].concat()));
        assert_eq!(found.hashes(), whole.hashes(), "{layout:?}");
        assert_eq!(found.summary.sources, whole.summary.sources, "{layout:?}");
        let validation = |outcome: &Outcome| outcome.summary.validation_loss.map(f64::to_bits);
        assert_eq!(validation(&found), validation(&whole), "{layout:?}");
    }
}

#[test]
fn the_events_count_the_tokens_of_each_source() {
    let mut runs = prepared();
    let outcome = runs.finish(&recipe(&runs, [3.0, 1.0], &[STEPS, "train.eval_every=3"]));
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let of_step = |stamped: &lockstep_telemetry::Stamped| match &stamped.event {
        Event::SourcesRead { step, sources } => Some((*step, sources.clone())),
        _ => None,
    };
    let found: Vec<_> = events.iter().filter_map(of_step).collect();
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 6]);
    let tokens_of = |index: usize| found[index].1.iter().map(|source| source.tokens).sum::<u64>();
    assert_eq!([2 * tokens_of(0), tokens_of(1)], [outcome.summary.tokens; 2]);
    assert_eq!(found[1].1, outcome.summary.sources);
}

#[test]
fn a_run_resumes_on_another_layout_and_from_a_checkpoint() {
    let mut runs = prepared();
    let first = recipe(&runs, [3.0, 1.0], &[STEPS, "run.workers=2"]);
    let other = recipe(&runs, [3.0, 1.0], &[STEPS, "run.workers=3", "parallel.zero=2"]);
    let whole = runs.finish(&first);
    let part = stop_after(&mut runs, &first, 2);
    let rest = resume(&mut runs, &other, &part.dir).expect("the second part");
    assert_eq!(rest.hashes(), whole.hashes());
    assert_eq!(rest.summary.sources, whole.summary.sources);

    let saving = recipe(&runs, [3.0, 1.0], &[STEPS, "run.workers=2", "checkpoint.every=2"]);
    let saved = runs.finish(&saving);
    let newest = saved.dir.join("checkpoints/step-00000004");
    let rest = resume(&mut runs, &other, &newest).expect("from the checkpoint");
    assert_eq!(rest.hashes(), whole.hashes());
}

#[test]
fn other_weights_resume_exactly_and_other_sources_are_refused() {
    let mut runs = prepared();
    let first = recipe(&runs, [3.0, 1.0], &[STEPS]);
    let part = stop_after(&mut runs, &first, 2);
    let changed = recipe(&runs, [1.0, 9.0], &[STEPS]);
    let rest = resume(&mut runs, &changed, &part.dir).expect("other weights");
    let on_three = ["run.workers=3", "parallel.zero=1", STEPS];
    let on_three = recipe(&runs, [1.0, 9.0], &on_three);
    let on_three = resume(&mut runs, &on_three, &part.dir).expect("other weights");
    assert_eq!(on_three.hashes(), rest.hashes(), "the layout changes no bit of it");
    assert_eq!(on_three.summary.sources, rest.summary.sources);
    let whole = runs.finish(&first);
    assert_ne!(rest.hashes(), whole.hashes(), "the weights count");
    let tokens = |outcome: &Outcome, index: usize| outcome.summary.sources[index].tokens;
    assert!(tokens(&rest, 0) >= tokens(&part, 0) && tokens(&rest, 1) > tokens(&whole, 1));

    // A second interruption, after the change.
    let options =
        Options { resume: Some(part.dir.clone()), stop_after: Some(4), ..Options::default() };
    let second = runs.run(&changed, options).expect("two more steps");
    let third = resume(&mut runs, &changed, &second.dir).expect("the last part");
    assert_eq!(third.hashes(), rest.hashes());

    let mut other = first.clone();
    other.data.mixture.sources[0].epochs = Some(3);
    let error = resume(&mut runs, &other, &part.dir).expect_err("another source");
    assert_eq!(error.blame(), Blame::User);
    assert!(error.to_string().contains("data.mixture"), "{error}");
}

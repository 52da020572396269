//! A custom model from blocks with its own loss: the example of the library guide, on several
//! layouts.

#[expect(dead_code, reason = "the test calls the example's run, not its main")]
#[path = "../../../trainer/examples/own_model.rs"]
mod own_model;

use lockstep_config::{Sources, resolve};
use lockstep_harness::runs::{Runs, train_on_threads};
use lockstep_trainer::{Options, Summary};

/// Runs the example in a folder of its own.
fn run(runs: &Runs, name: &str, settings: &[&str]) -> Summary {
    let dir = run_dir(runs, name);
    let settings: Vec<_> = settings.iter().copied().chain([dir.as_str()]).collect();
    own_model::run(&settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))
}

/// Trains the family of the example's recipe, without the custom head.
fn run_family(runs: &Runs) -> Summary {
    let sets = vec!["run.workers=1".to_owned(), run_dir(runs, "family")];
    let sources = Sources { preset: Some("tiny".into()), sets, ..Sources::default() };
    let recipe = resolve(&sources).expect("it resolves");
    train_on_threads(&recipe, runs.world(), Options::default()).expect("it trains")
}

fn run_dir(runs: &Runs, name: &str) -> String {
    format!("run.dir={}", runs.path().join(name).display())
}

#[test]
fn every_layout_trains_it_to_equal_bits() {
    let runs = Runs::new("custom-model");
    let alone = run(&runs, "alone", &["run.workers=1"]);
    assert!(alone.final_loss < alone.first_loss, "{alone:?}");
    for (name, settings) in [
        ("zero-0", &["run.workers=4", "parallel.zero=0"][..]),
        ("zero-1", &["run.workers=4", "parallel.zero=1"]),
        ("zero-3", &["run.workers=2", "parallel.zero=3", "parallel.recompute=full"]),
        ("pipeline", &["run.workers=4", "parallel.pipeline=2", "parallel.zero=1"]),
    ] {
        let other = run(&runs, name, settings);
        assert_eq!(other.losses_hash, alone.losses_hash, "{settings:?}");
        assert_eq!(other.weights_hash, alone.weights_hash, "{settings:?}");
    }
    let family = run_family(&runs);
    assert_ne!(family.losses_hash, alone.losses_hash, "its own head and loss were trained");
}

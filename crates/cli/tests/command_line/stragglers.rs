//! Stragglers, and the learning-rate limit of a transformer.

use crate::process::{Folder, assert_keys};

#[test]
fn a_straggler_is_named_and_a_run_that_skips_it_resumes() {
    let folder = Folder::new();
    let train = |more: &[&'static str]| {
        let base = ["train", "--preset", "tiny", "--set", "train.steps=6", "--set"];
        let slow = [
            "run.workers=3",
            "--set=emulate.microbatch_ms=2",
            "--set=emulate.slow=[{rank = 2, factor = 5000}]",
            "--set=sync.stragglers=backup",
            "--set=checkpoint.every=2",
            "--set=checkpoint.dir=saved",
        ];
        [&base[..], &slow, more].concat()
    };
    let finished = folder.succeed(&train(&["--stop-after", "4", "--set", "run.dir=first"]));
    assert!(finished.stdout.contains("worker 2, skipped in 4 of 4 steps"), "{}", finished.stdout);
    let more = ["--resume", "saved", "--set", "run.dir=rest", "--json", "--quiet"];
    let rest = folder.json(&train(&more));
    assert_keys(&rest, "microbatch_seconds_by_rank missed_steps_by_rank slow_rank slow_factor");
    assert_eq!(rest["steps"], 6);
    let bits = rest["bits_depend_on"].as_str().expect("they do");
    assert!(
        bits.starts_with("sync.stragglers = backup: the gradients of a step depend on"),
        "{bits}"
    );
}

#[test]
fn curvature_limits_the_learning_rate_of_a_transformer() {
    let folder = Folder::new();
    let inspect = ["inspect", "--preset", "tiny", "--curvature", "12", "--json"];
    let sgd = ["--set", "optim.name=sgd"];
    let found = folder.json(&[&inspect[..], &sgd].concat());
    let curvature = found["curvature"]["largest_curvature"].as_f64().expect("found");
    assert!(curvature > 0.0, "{curvature}");
    let limit = |index: usize| {
        found["curvature"]["lr_limits"][index]["lr"].as_f64().expect("one per delay")
    };
    assert!((limit(0) / limit(1) - 2.0).abs() < 1e-9, "a delay of one step halves the limit");
    assert!((limit(0) * curvature - 2.0).abs() < 1e-9);
}

//! Small problems on the engine that trains transformers: they reach their known optimum, and every
//! layout computes the same bits.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::runs::soak;
use lockstep_trainer::Options;

const PRESETS: [&str; 4] = ["digits", "quadratic", "ridge", "logistic"];
const CONVEX: [&str; 3] = ["quadratic", "ridge", "logistic"];

/// Few samples: generating them takes longer than a few steps.
const FEW: [&str; 2] = ["problem.samples=256", "problem.held_out=40"];

fn recipe(preset: &str, sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn convex_problems_reach_their_optimum_to_a_millionth() {
    let mut runs = Runs::new("problems");
    for preset in CONVEX {
        let summary = runs.finish(&recipe(preset, &["run.workers=1"])).summary;
        let verdict = summary.solution;
        let surplus = verdict.suboptimality.expect("the optimum is known");
        let distance = verdict.distance.expect("the optimum is known");
        assert!(surplus.abs() < 1e-6, "{preset}: {surplus} above the optimum");
        assert!(distance < 1e-6, "{preset}: {distance} away from the optimum");
        let at_start = summary.first_loss - verdict.optimum_loss.expect("known");
        assert!(at_start > 1e-2, "{preset}: the start is not the optimum");
        assert!(verdict.accuracy.is_none());
    }
}

#[test]
fn gradient_noise_leaves_a_suboptimality_that_a_decaying_learning_rate_removes() {
    let mut runs = Runs::new("problems");
    let mut surplus = |schedule: &str| {
        let sets = [
            "run.workers=1",
            "problem.noise=0.3",
            "problem.condition=10",
            "problem.samples=4096",
            "train.steps=2000",
            "optim.momentum=0.0",
            "optim.lr=0.5",
            schedule,
        ];
        runs.finish(&recipe("quadratic", &sets)).summary.solution.suboptimality.expect("known")
    };
    let (constant, falling) =
        (surplus("optim.schedule=constant"), surplus("optim.schedule=linear"));
    assert!(constant > 1e-3, "a constant rate ends {constant} above the optimum");
    assert!(falling < constant / 2.0, "{falling} is not well below {constant}");
}

#[test]
fn the_digits_classifier_exceeds_95_percent_accuracy() {
    let summary = Runs::new("problems").finish(&recipe("digits", &["run.workers=1"])).summary;
    let accuracy = summary.solution.accuracy.expect("a classifier");
    assert!(accuracy > 0.95, "{accuracy}");
    assert!(summary.validation_loss.expect("evaluated") < summary.baseline_loss / 5.0);
}

#[test]
fn problems_are_the_same_on_all_layouts() {
    let mut runs = Runs::new("problems");
    let workers: &[usize] = if soak() { &[2, 3, 4, 5, 8] } else { &[4, 3] };
    for preset in PRESETS {
        let short = [&["train.steps=6", "train.eval_batches=1"], &FEW[..]].concat();
        let mut hashes = |layout: &[String]| {
            let layout = layout.iter().map(String::as_str);
            let sets: Vec<&str> = short.iter().copied().chain(layout).collect();
            runs.finish(&recipe(preset, &sets)).hashes()
        };
        let alone = hashes(&["run.workers=1".to_owned()]);
        for &workers in workers {
            for zero in 0..4 {
                let recompute = ["none", "full", "selective", "every-2"][(zero + workers) % 4];
                let layout = [
                    "run.isolation=threads".to_owned(),
                    format!("run.workers={workers}"),
                    format!("parallel.zero={zero}"),
                    format!("parallel.recompute={recompute}"),
                    format!("parallel.bucket_bytes={}", zero % 2),
                ];
                assert_eq!(hashes(&layout), alone, "{preset}: {layout:?}");
            }
        }
    }
}

#[test]
fn an_interrupted_problem_resumes_to_the_same_bits() {
    let mut runs = Runs::new("problems");
    for preset in PRESETS {
        let sets = [&["train.steps=8", "run.workers=1"], &FEW[..]].concat();
        let recipe = recipe(preset, &sets);
        let whole = runs.finish(&recipe);
        let stopped = Options { stop_after: Some(3), ..Options::default() };
        let half = runs.run(&recipe, stopped).expect("three steps");
        let resumed = Options { resume: Some(half.dir), ..Options::default() };
        let rest = runs.run(&recipe, resumed).expect("five more");
        assert_eq!(rest.hashes(), whole.hashes(), "{preset}");
        assert_eq!(rest.summary.solution, whole.summary.solution, "{preset}");
    }
}

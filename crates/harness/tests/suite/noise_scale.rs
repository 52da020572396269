//! The gradient noise that a run measures: its exact value on a problem whose gradients are known
//! sample by sample, and equal figures on every layout.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA, Small, THREE_MICROBATCHES};
use lockstep_harness::runs::Outcome;
use lockstep_planner::diagnosis::{self, NoiseFacts};
use lockstep_telemetry::{Event, load_events};
use lockstep_tensor::random::Key;

/// Measured noise of a step: its number, the two batches and the two squared norms.
type Noise = (u64, [f64; 4]);

fn noise_of(runs: &Runs, outcome: &Outcome) -> Vec<Noise> {
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let noise = events.into_iter().filter_map(|stamped| match stamped.event {
        Event::GradientNoise {
            step,
            small_batch,
            large_batch,
            small_norm_squared,
            large_norm_squared,
        } => Some((step, [small_batch, large_batch, small_norm_squared, large_norm_squared])),
        _ => None,
    });
    noise.collect()
}

/// Noise scale of the run as its diagnosis has it.
fn noise_scale(noise: &[Noise]) -> f64 {
    let facts =
        |&(_, [small_batch, large_batch, small_norm_squared, large_norm_squared]): &Noise| {
            NoiseFacts { small_batch, large_batch, small_norm_squared, large_norm_squared }
        };
    let facts: Vec<NoiseFacts> = noise.iter().map(facts).collect();
    diagnosis::noise_scale::noise_scale(&facts).expect("noise does not hide the gradient")
}

/// Quadratic of condition 1, whose gradient at zero is minus the optimum, with noise.
fn quadratic(sets: &[&str]) -> Recipe {
    let own = [
        "problem.samples=4096",
        "problem.dim=32",
        "problem.condition=1",
        "problem.noise=5",
        "train.steps=100",
        "train.batch=64",
        "train.microbatch=4",
        // The weights stay at zero.
        "optim.lr=1e-30",
        "telemetry.noise_scale=1",
    ];
    let sets = own.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    let sources = Sources { preset: Some("quadratic".to_owned()), sets, ..Sources::default() };
    resolve(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Exact noise scale at zero: samples are pairs of opposite noise around the gradient.
fn exact_noise_scale(recipe: &Recipe) -> f64 {
    let problem = &recipe.model.problem;
    let square = |key: Key| -> f64 {
        (0..problem.dim as u64).map(|index| f64::from(key.normal(index)).powi(2)).sum()
    };
    let gradient = square(Key::new(problem.seed, "truth"));
    let noise = Key::new(problem.seed, "gradient noise");
    let pairs = problem.samples as u64 / 2;
    let variance =
        (0..pairs).map(|pair| problem.noise.powi(2) * square(noise.with(pair))).sum::<f64>();
    variance / pairs as f64 / gradient
}

#[test]
fn the_noise_scale_of_a_run_is_the_exact_one_where_that_is_known() {
    let mut runs = Runs::new("noise-scale");
    for sets in [&["run.workers=1"][..], &["run.workers=2", "parallel.zero=2"]] {
        let recipe = quadratic(sets);
        let outcome = runs.finish(&recipe);
        let noise = noise_of(&runs, &outcome);
        assert_eq!(noise.len(), 100);
        assert_eq!(noise[0].1[..2], [8.0, 64.0], "sequences of a leaf and of the batch");
        let (found, exact) = (noise_scale(&noise), exact_noise_scale(&recipe));
        assert!(exact > 10.0 && (found / exact - 1.0).abs() < 0.2, "{found} is not {exact}");
    }
}

/// Asserts that all layouts measure the same figures, up to the order of `f64` sums over ranks.
fn assert_same_on_layouts(runs: &mut Runs, small: &Small, common: &[&str], layouts: &[&[&str]]) {
    let short = ["train.steps=2", "train.eval_batches=1", "telemetry.noise_scale=1"];
    let mut expected = Vec::new();
    for layout in layouts {
        let recipe = small.with(&[&short[..], common, layout].concat());
        let outcome = runs.finish(&recipe);
        let found = noise_of(runs, &outcome);
        assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2], "{layout:?}");
        if expected.is_empty() {
            expected.clone_from(&found);
        }
        for ((_, found), (_, expected)) in found.iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                let difference = (found / expected - 1.0).abs();
                assert!(difference < 1e-12, "{} {layout:?}: {found}, {expected}", small.name);
            }
        }
    }
    assert!(expected.iter().all(|(_, [.., small, large])| small > large), "leaves have more noise");
}

#[test]
fn every_layout_measures_the_noise_of_one_worker() {
    let mut runs = Runs::new("noise-scale");
    let layouts: &[&[&str]] = &[
        &["run.workers=1"],
        &["run.workers=1", "parallel.zero=3"],
        &["run.workers=2"],
        &["run.workers=3", "parallel.zero=1"],
        &["run.workers=3", "parallel.zero=2"],
        &["run.workers=4", "parallel.zero=3"],
        &["run.workers=2", "parallel.pipeline=2"],
        &["run.workers=4", "parallel.pipeline=2", "parallel.zero=2"],
    ];
    assert_same_on_layouts(&mut runs, &GPT2, &[], layouts);
    assert_same_on_layouts(&mut runs, &THREE_MICROBATCHES, &[], &layouts[..6]);
    let tensor: &[&[&str]] = &[
        &["run.workers=1"],
        &["run.workers=2", "parallel.tensor=2"],
        &["run.workers=4", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1"],
        &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2"],
    ];
    assert_same_on_layouts(&mut runs, &LLAMA, &["numerics.invariant_tensor_up_to=2"], tensor);
    let frozen = "optim.groups=[{match=\"*.mlp.*\",frozen=true}]";
    let rounded = [frozen, "precision.wire=bf16"];
    assert_same_on_layouts(&mut runs, &LLAMA, &rounded, &[layouts[0], layouts[2], layouts[5]]);
}

#[test]
fn measuring_changes_neither_a_bit_nor_a_byte_of_the_steps() {
    let mut runs = Runs::new("noise-scale");
    for layout in [&["run.workers=2"][..], &["run.workers=2", "parallel.zero=3"]] {
        let mut run = |set: &str| {
            let common = ["train.steps=3", "train.eval_every=2", "train.eval_batches=1", set];
            let recipe = LLAMA.with(&[&common[..], layout].concat());
            let outcome = runs.finish(&recipe);
            let bytes = outcome.summary.wire_bytes_by_rank.clone();
            (outcome.hashes(), bytes, noise_of(&runs, &outcome).len())
        };
        let (off, on) = (run("telemetry.noise_scale=0"), run("telemetry.noise_scale=1"));
        assert_eq!((off.2, on.2), (0, 3), "{layout:?}");
        assert_eq!((&off.0, &off.1), (&on.0, &on.1), "{layout:?}");
    }
}

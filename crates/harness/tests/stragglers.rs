//! Straggler policies, delayed gradients, and samples that differ between workers.
//!
//! A binary of its own: straggler policies compare the speed of workers, which a heavily loaded
//! process distorts.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA, THREE_MICROBATCHES};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::Options;

/// Worker 3 takes twenty seconds for a micro-batch.
const STUCK: [&str; 4] = [
    "run.workers=4",
    "emulate.microbatch_ms=2",
    "emulate.slow=[{rank = 3, factor = 10000}]",
    "run.check_replicas_every=1",
];

const SHORT: [&str; 2] = ["train.steps=6", "train.eval_batches=1"];

fn problem(preset: &str, sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// The events of a run.
fn events(runs: &Runs, outcome: &Outcome) -> Vec<Event> {
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    events.into_iter().map(|stamped| stamped.event).collect()
}

/// The ranks that were missing, step after step.
fn missing(runs: &Runs, outcome: &Outcome) -> Vec<Vec<usize>> {
    let of = |event: Event| match event {
        Event::WorkersMissing { missing, .. } => Some(missing),
        _ => None,
    };
    events(runs, outcome).into_iter().filter_map(of).collect()
}

#[test]
fn steps_proceed_without_a_stuck_worker_and_replicas_stay_equal() {
    let mut runs = Runs::new("stragglers");
    let policies: &[&[&str]] = &[
        &["sync.stragglers=backup"],
        &["sync.stragglers=timeout", "sync.timeout_ms=2000"],
        &["sync.stragglers=drop-slowest", "sync.straggler_factor=20"],
    ];
    for policy in if soak() { policies } else { &policies[..1] } {
        let recipe = LLAMA.with(&[&SHORT[..], &STUCK, policy].concat());
        assert!(
            recipe
                .layout_dependence()
                .expect("the bits depend on it")
                .contains("depend on which workers")
        );
        let outcome = runs.finish(&recipe);
        assert_eq!(missing(&runs, &outcome), vec![vec![3]; 6], "{policy:?}");
        assert_eq!(outcome.summary.stragglers.missed_steps_by_rank, [0, 0, 0, 6], "{policy:?}");
        assert!(outcome.losses[5] < outcome.losses[0], "it learns: {:?}", outcome.losses);
        // With the same workers missing, the bits are equal.
        assert_eq!(runs.finish(&recipe).hashes(), outcome.hashes(), "{policy:?}");
    }
}

#[test]
fn gradients_are_averaged_over_the_present_workers() {
    let mut runs = Runs::new("stragglers");
    // Loss and gradient of the first step are means over the micro-batches that ran, so their size
    // is that of a full batch.
    let policy = ["sync.stragglers=backup", "optim.name=sgd", "optim.clip=0"];
    let outcome = runs.finish(&LLAMA.with(&[&SHORT[..], &STUCK, &policy].concat()));
    let all = ["run.workers=4", "optim.name=sgd", "optim.clip=0"];
    let usual = runs.finish(&LLAMA.with(&[&SHORT[..], &all].concat()));
    let norm = |runs: &Runs, outcome: &Outcome| {
        let of = |event: &Event| match event {
            Event::Step { grad_norm, .. } => Some(*grad_norm),
            _ => None,
        };
        events(runs, outcome).iter().find_map(of).expect("a step")
    };
    let (part, whole) = (norm(&runs, &outcome), norm(&runs, &usual));
    assert!((part / whole - 1.0).abs() < 0.2, "{part} against {whole}: a quarter is missing");
    assert!((outcome.losses[0] / usual.losses[0] - 1.0).abs() < 0.05);
}

#[test]
fn without_stragglers_a_policy_changes_no_bit() {
    let mut runs = Runs::new("stragglers");
    for (small, workers) in [(LLAMA, "run.workers=4"), (THREE_MICROBATCHES, "run.workers=3")] {
        let sets = [&SHORT[..], &[workers]].concat();
        let usual = runs.finish(&small.with(&sets));
        let policy = ["sync.stragglers=timeout", "sync.timeout_ms=3600000"];
        let with_policy = runs.finish(&small.with(&[&sets[..], &policy].concat()));
        assert_eq!(with_policy.hashes(), usual.hashes(), "{}", small.name);
        assert!(missing(&runs, &with_policy).is_empty());
    }
}

#[test]
fn a_persistently_slow_worker_is_excluded_and_named() {
    let mut runs = Runs::new("stragglers");
    let sets = [
        "run.workers=4",
        "emulate.microbatch_ms=8",
        "emulate.slow=[{rank = 2, factor = 100}]",
        "sync.stragglers=exclude",
        // A busy machine may slow the others down twelvefold.
        "sync.straggler_factor=8",
        "sync.straggler_window=2",
        "run.check_replicas_every=1",
    ];
    let outcome = runs.finish(&LLAMA.with(&[&SHORT[..], &sets].concat()));
    assert_eq!(missing(&runs, &outcome), vec![vec![2]; 4], "after two steps");
    let is_named = |event: &Event| {
        matches!(event, Event::Warning { message }
            if message.starts_with("worker 2 is ") && message.ends_with("and is excluded"))
    };
    assert!(events(&runs, &outcome).iter().any(is_named));
    assert_eq!(outcome.summary.stragglers.slow_rank, Some(2));
}

#[test]
fn the_wait_for_a_slow_worker_is_no_communication() {
    let mut runs = Runs::new("stragglers");
    let sets =
        ["run.workers=2", "emulate.microbatch_ms=6", "emulate.slow=[{rank = 1, factor = 3}]"];
    for overlap in ["parallel.overlap=true", "parallel.overlap=false"] {
        let outcome = runs.finish(&LLAMA.with(&[&SHORT[..], &sets, &[overlap]].concat()));
        let num_microbatches = outcome.summary.microbatches_by_rank[1] as f64;
        // Rank 0 is done after a third of the time.
        let slow = 2.0 * 0.006 * num_microbatches;
        let waits = &outcome.summary.stragglers.straggler_wait_seconds_by_rank;
        assert!(waits[0] > 0.7 * slow && waits[1] < 0.3 * slow, "{slow}: {waits:?}");
        let exposed = outcome.summary.exposed_communication_seconds_median;
        assert!(exposed < 0.3 * slow, "{exposed} beside {waits:?}");
        for event in events(&runs, &outcome) {
            if let Event::Step { step_seconds, straggler_wait_seconds: wait, .. } = event {
                assert!((0.0..=step_seconds).contains(&wait), "{wait} of {step_seconds}");
            }
        }
    }
}

#[test]
fn microbatches_move_to_faster_workers_and_change_no_bit() {
    let mut runs = Runs::new("stragglers");
    let sets = [&SHORT[..], &["run.workers=3", "checkpoint.every=4"]].concat();
    let usual = runs.finish(&THREE_MICROBATCHES.with(&sets));
    let moving = [
        "emulate.microbatch_ms=4",
        "emulate.slow=[{rank = 0, factor = 40}]",
        "sync.stragglers=shares",
        "sync.straggler_window=2",
    ];
    let recipe = THREE_MICROBATCHES.with(&[&sets[..], &moving].concat());
    assert_eq!(recipe.hash(), THREE_MICROBATCHES.with(&sets).hash(), "no bit depends on it");
    let moved = runs.finish(&recipe);
    assert_eq!(moved.hashes(), usual.hashes());
    assert_eq!(usual.summary.microbatches_by_rank, [6, 3, 3]);
    assert_eq!(moved.summary.microbatches_by_rank[0], 3, "the slow worker has the minimum");
}

#[test]
fn delayed_gradients_do_not_depend_on_workers_and_survive_a_restart() {
    let mut runs = Runs::new("stragglers");
    for small in if soak() { &[LLAMA, GPT2, THREE_MICROBATCHES][..] } else { &[GPT2] } {
        let short = ["train.steps=7", "train.eval_batches=1"];
        let sets = [&short[..], &["checkpoint.every=3", "sync.gradient_delay=1"]].concat();
        let alone = runs.finish(&small.with(&[&sets[..], &["run.workers=1"]].concat()));
        assert_eq!(alone.summary.staleness_max, 1);
        assert_eq!(alone.losses.len(), 7);
        for layout in [
            ["run.workers=2", "parallel.overlap=true"],
            ["run.workers=4", "parallel.overlap=false"],
        ] {
            let others = runs.finish(&small.with(&[&sets[..], &layout].concat()));
            assert_eq!(others.hashes(), alone.hashes(), "{}: {layout:?}", small.name);
        }
        let recipe = small.with(&[&sets[..], &["run.workers=2"]].concat());
        let options = Options { stop_after: Some(5), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        let resume = Some(part.dir.join("checkpoints"));
        let rest = runs.run(&recipe, Options { resume, ..Options::default() }).expect("the rest");
        assert_eq!(rest.hashes(), alone.hashes(), "{}: resumed", small.name);
        let usual = small.with(&[&short[..], &["run.workers=2"]].concat());
        assert_ne!(runs.finish(&usual).hashes(), alone.hashes());
    }
}

#[test]
fn descent_with_delayed_gradients_is_stable_exactly_below_the_limit() {
    // 2 sin(π / (2 (2τ + 1))) for τ = 1, and curvatures up to 1.
    let limit = 1.0;
    let mut runs = Runs::new("stragglers");
    let mut grows = |factor: f64, delay: &str| {
        let lr = format!("optim.lr={}", factor * limit);
        let sets = [
            "optim.momentum=0",
            "train.steps=600",
            "train.eval_every=0",
            "run.workers=2",
            delay,
            &lr,
        ];
        let outcome = runs.finish(&problem("quadratic", &sets));
        let [first, last] = [outcome.summary.first_loss, outcome.summary.final_loss];
        last / first
    };
    assert!(grows(0.98, "sync.gradient_delay=1") < 1e-2);
    assert!(grows(1.02, "sync.gradient_delay=1") > 1e2);
    assert!(grows(1.02, "sync.gradient_delay=0") < 1e-2, "without delay the limit is twice that");
}

/// Distance from the optimum of local SGD with rounds of `local_steps` steps. Each worker has
/// samples of few classes and uses all of them in every step, so there is no sampling noise.
fn bias(runs: &mut Runs, lr: f64, local_steps: u64) -> f64 {
    // The product of steps and learning rate is constant.
    let steps = format!("train.steps={}", (24.0 / lr).round());
    let (lr, local_steps) = (format!("optim.lr={lr}"), format!("sync.local_steps={local_steps}"));
    let sets = [
        "problem.samples=64",
        "problem.dim=4",
        "problem.condition=1",
        "problem.noise=0.3",
        "sync.partition=by-class",
        "train.batch=64",
        "train.microbatch=8",
        "train.eval_every=0",
        "optim.momentum=0",
        "run.workers=2",
        "sync.mode=local-sgd",
        &steps,
        &lr,
        &local_steps,
    ];
    let outcome = runs.finish(&problem("ridge", &sets));
    outcome.summary.solution.distance.expect("the optimum is known")
}

#[test]
fn the_bias_of_local_sgd_grows_linearly_with_round_length_and_learning_rate() {
    // Averaged rounds of K steps with curvatures Aᵢ and local optima xᵢ converge to x with
    // Σ (I − (I − αAᵢ)^K) (x − xᵢ) = 0, that is α (K − 1) / 2 Ā⁻¹ Σ Aᵢ² (x* − xᵢ) away from the
    // global optimum for small α (K − 1): exponent one in both.
    let mut runs = Runs::new("stragglers");
    let none = bias(&mut runs, 0.03, 1);
    let [two, eight] = [2, 8].map(|local_steps| bias(&mut runs, 0.03, local_steps));
    assert!(none < two / 100.0, "averaged gradients have no bias: {none}, {two}");
    let in_steps = (eight / two).ln() / 7.0_f64.ln();
    assert!((0.93..1.05).contains(&in_steps), "{in_steps}: from {two} to {eight}");
    let half = bias(&mut runs, 0.015, 8);
    let in_lr = (eight / half).ln() / 2.0_f64.ln();
    assert!((0.93..1.05).contains(&in_lr), "{in_lr}: from {half} to {eight}");
}

#[test]
fn partitioned_samples_give_equal_bits_on_any_number_of_workers_and_train_in_every_mode() {
    let mut runs = Runs::new("stragglers");
    let partitions = ["sync.partition=dirichlet", "sync.partition=by-class"];
    for partition in if soak() { &partitions[..] } else { &partitions[..1] } {
        let sets = ["train.steps=12", "train.eval_every=0", *partition];
        let alone = runs.finish(&problem("logistic", &[&sets[..], &["run.workers=1"]].concat()));
        let four = runs.finish(&problem("logistic", &[&sets[..], &["run.workers=4"]].concat()));
        assert_eq!(four.hashes(), alone.hashes(), "{partition}");
        for mode in ["sync.mode=local-sgd", "compress.method=int8", "sync.gradient_delay=1"] {
            let sets = [&sets[..], &["run.workers=2", mode]].concat();
            let outcome = runs.finish(&problem("logistic", &sets));
            assert!(outcome.losses[11] < outcome.losses[0], "{partition}, {mode}");
        }
    }
}

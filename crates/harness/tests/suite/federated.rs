//! Federated averaging: bits independent of client placement, state that survives a restart, robust
//! aggregation, privacy.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::{Outcome, soak};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::Options;

fn problem(preset: &str, sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

const ROUNDS: [&str; 4] =
    ["sync.mode=federated", "sync.local_steps=4", "optim.name=sgd", "optim.schedule=constant"];

/// Eight of twenty clients a round, on synthetic digits.
fn digits(more: &[&str]) -> Recipe {
    let clients = ["federated.clients=20", "federated.sampled=8", "train.batch=64"];
    let steps = ["train.steps=80", "optim.lr=0.1", "optim.weight_decay=0", "train.eval_every=0"];
    problem("digits", &[&ROUNDS[..], &clients, &steps, more].concat())
}

#[test]
fn fedprox_and_scaffold_recover_from_client_drift() {
    if !soak() {
        return;
    }
    let mut runs = Runs::new("federated");
    let sets = [
        "problem.samples=16384",
        "sync.mode=federated",
        "sync.local_steps=80",
        "federated.clients=100",
        "federated.sampled=10",
        "train.steps=4800",
        "train.batch=80",
        "train.microbatch=2",
        "train.eval_every=0",
        "optim.name=sgd",
        "optim.lr=0.3",
        "train.seed=2",
    ];
    let mut surplus = |more: &[&str]| {
        let outcome = runs.finish(&problem("logistic", &[&sets[..], more].concat()));
        outcome.summary.solution.suboptimality.expect("known")
    };
    let skewed = ["sync.partition=dirichlet", "sync.dirichlet_alpha=0.1"];
    let alike = surplus(&["sync.partition=iid"]);
    let average = surplus(&skewed);
    let prox = [&skewed[..], &["federated.method=fedprox", "federated.mu=0.3"]].concat();
    let scaffold = [&skewed[..], &["federated.method=scaffold"]].concat();
    let drift = average - alike;
    for (method, found) in [("fedprox", surplus(&prox)), ("scaffold", surplus(&scaffold))] {
        let back = (average - found) / drift;
        assert!(drift > 3.0 * alike && back > 0.5, "{method}: {alike} {average} {found}");
    }
}

/// Few samples, for tests that compare bits.
const FEW: [&str; 2] = ["problem.samples=1024", "problem.held_out=128"];

fn accuracy(outcome: &Outcome) -> f64 {
    outcome.summary.solution.accuracy.expect("digits are right or wrong")
}

#[test]
fn client_placement_changes_no_bit() {
    let mut runs = Runs::new("federated");
    let variants: [&[&str]; 4] = [
        &[],
        &["federated.method=scaffold", "federated.min_steps_fraction=0.3"],
        &["federated.server=adam", "federated.server_lr=0.02", "federated.aggregation=median"],
        &["federated.secure_aggregation=true", "federated.dropout=0.2", "federated.clip=1.0"],
    ];
    for variant in variants {
        let mut of = |workers: &str| {
            let more = [variant, &FEW, &["train.steps=12", workers]].concat();
            runs.finish(&digits(&more)).hashes()
        };
        let alone = of("run.workers=1");
        assert_eq!(of("run.workers=2"), alone, "{variant:?}");
        assert_eq!(of("run.workers=4"), alone, "{variant:?}");
    }
}

#[test]
fn transformers_train_with_clients() {
    let mut runs = Runs::new("federated");
    let mut of = |workers: &str| {
        let more = ["federated.clients=6", "federated.sampled=2", "train.steps=16", workers];
        runs.finish(&LLAMA.with(&[&ROUNDS[..], &more, &["optim.lr=0.2"]].concat()))
    };
    let (alone, three) = (of("run.workers=1"), of("run.workers=3"));
    assert_eq!(alone.hashes(), three.hashes());
    assert!(alone.losses[15] < alone.losses[0], "{:?}", alone.losses);
    assert!(three.summary.wire_bytes > 0 && alone.summary.wire_bytes == 0);
}

#[test]
fn one_step_of_all_clients_is_a_step_of_gradient_descent() {
    let mut runs = Runs::new("federated");
    // Without noise all samples of the quadratic have the same gradient.
    let plain = ["optim.name=sgd", "optim.schedule=constant", "train.steps=50"];
    let usual = runs.finish(&problem("quadratic", &plain));
    let all = ["federated.clients=8", "federated.sampled=8", "sync.local_steps=1"];
    let sets = [&plain[..], &["sync.mode=federated"], &all].concat();
    let clients = runs.finish(&problem("quadratic", &sets));
    for (ours, theirs) in clients.losses.iter().zip(&usual.losses) {
        assert!((ours - theirs).abs() < 1e-5 * theirs.abs() + 1e-9, "{ours} {theirs}");
    }
}

#[test]
fn state_of_clients_and_coordinator_survives_a_restart() {
    let mut runs = Runs::new("federated");
    let variants: [&[&str]; 3] = [
        &["federated.method=scaffold"],
        &["federated.server=yogi", "federated.server_lr=0.02", "federated.late_fraction=0.4"],
        &[
            "federated.byzantine=0.3",
            "federated.attack=stale",
            "federated.aggregation=trimmed-mean",
        ],
    ];
    for variant in variants {
        let more = ["train.steps=24", "checkpoint.every=8", "run.workers=3"];
        let recipe = digits(&[variant, &FEW, &more].concat());
        let whole = runs.finish(&recipe);
        let options = Options { stop_after: Some(16), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        // Clients may be on other workers afterwards.
        let elsewhere = digits(&[variant, &FEW, &more[..2], &["run.workers=2"]].concat());
        let resume = Some(part.dir.join("checkpoints"));
        let rest = runs.run(&elsewhere, Options { resume, ..Options::default() });
        let rest = rest.unwrap_or_else(|error| panic!("{variant:?}: {error}"));
        assert!(rest.losses.len() < 24, "{variant:?} started over");
        assert_eq!(rest.hashes(), whole.hashes(), "{variant:?}");
    }
}

#[test]
fn byzantine_clients_break_the_mean_but_not_robust_aggregation() {
    let mut runs = Runs::new("federated");
    let mut of = |more: &[&str]| accuracy(&runs.finish(&digits(more)));
    let honest = of(&[]);
    let attack = ["federated.byzantine=0.2", "federated.attack=sign-flip"];
    let mean = of(&attack);
    assert!(honest > 0.5 && mean < 0.3, "honest {honest}, mean {mean}");
    for rule in [
        &["federated.aggregation=median"][..],
        &["federated.aggregation=trimmed-mean", "federated.assumed_byzantine=3"],
        &["federated.aggregation=krum", "federated.assumed_byzantine=2"],
    ] {
        let found = of(&[&attack, rule].concat());
        assert!(found > mean + 0.25, "{rule:?}: {found}, mean {mean}, honest {honest}");
    }
}

#[test]
fn noise_reports_its_epsilon_and_secure_aggregation_changes_no_result() {
    let mut runs = Runs::new("federated");
    let noisy = ["federated.clip=0.5", "federated.noise_multiplier=0.5", "train.steps=16"];
    let outcome = runs.finish(&digits(&noisy));
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let epsilon = |event: &Event| match event {
        Event::Aggregated { epsilon, .. } => *epsilon,
        _ => None,
    };
    let spent: Vec<_> = events.iter().filter_map(|stamped| epsilon(&stamped.event)).collect();
    assert!(spent.len() == 4 && spent.is_sorted() && spent[0] > 0.0, "{spent:?}");
    let reported = &outcome.summary.asynchronous;
    assert_eq!((reported.epsilon, reported.delta), (spent.last().copied(), Some(1e-5)));
    let plain = runs.finish(&digits(&["train.steps=40"]));
    assert_eq!(plain.summary.asynchronous.epsilon, None);
    let hidden = runs.finish(&digits(&["train.steps=40", "federated.secure_aggregation=true"]));
    for (a, b) in plain.losses.iter().zip(&hidden.losses) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

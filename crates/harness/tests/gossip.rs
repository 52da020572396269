//! Workers that average with neighbours only: when they are a data-parallel run, how far they are
//! apart, what they reach, and that nothing of them is lost with a process.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::moved::assert_moved_and_kept_as_predicted;
use lockstep_harness::recipes::{LLAMA, THREE_MICROBATCHES};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::Options;

const GRAPHS: [&str; 8] = [
    "ring",
    "torus",
    "exponential",
    "random-regular",
    "complete",
    "directed-ring",
    "one-peer",
    "random-directed",
];

fn problem(preset: &str, sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// The distances that a run tells of.
fn distances(runs: &Runs, outcome: &Outcome) -> Vec<f64> {
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let distance = |event: &Event| match event {
        Event::Consensus { distance, .. } => Some(*distance),
        _ => None,
    };
    events.iter().filter_map(|stamped| distance(&stamped.event)).collect()
}

#[test]
fn on_the_complete_graph_plain_descent_is_the_data_parallel_run() {
    let mut runs = Runs::new("gossip");
    for optim in ["optim.name=sgd", "optim.name=momentum"] {
        let sets = ["train.steps=10", "run.workers=4", "optim.clip=0", "train.eval_every=1", optim];
        let usual = runs.finish(&LLAMA.with(&sets));
        let gossip = ["sync.mode=gossip", "sync.graph=complete"];
        let gossip = runs.finish(&LLAMA.with(&[&sets[..], &gossip].concat()));
        for (step, (a, b)) in usual.losses.iter().zip(&gossip.losses).enumerate() {
            assert!((a - b).abs() <= 2e-6 * a.abs(), "{optim}: {a} and {b} in step {step}");
        }
        let apart = distances(&runs, &gossip);
        assert_eq!(apart, vec![0.0; 10], "the same sum in the same order is the same everywhere");
        assert_eq!(gossip.summary.asynchronous.spectral_gap, Some(1.0));
    }
}

#[test]
fn neighbours_move_and_keep_what_was_predicted() {
    let mut runs = Runs::new("gossip");
    let sets = ["train.steps=7", "train.eval_batches=1", "sync.mode=gossip", "run.workers=4"];
    for graph in ["ring", "torus", "exponential", "complete", "directed-ring", "one-peer"] {
        let graph = format!("sync.graph={graph}");
        let recipe = LLAMA.with(&[&sets[..], &[graph.as_str()]].concat());
        assert_moved_and_kept_as_predicted(&recipe, &runs.finish(&recipe));
    }
}

#[test]
fn weights_travel_to_neighbours_only() {
    let mut runs = Runs::new("gossip");
    let sets = ["train.steps=2", "run.workers=4", "train.eval_batches=1", "sync.mode=gossip"];
    let mut bytes = |graph: &str| {
        let graph = format!("sync.graph={graph}");
        runs.finish(&LLAMA.with(&[&sets[..], &[graph.as_str()]].concat())).summary
    };
    let (ring, complete, one_peer) = (bytes("ring"), bytes("complete"), bytes("one-peer"));
    let model = 4 * ring.num_params;
    // Two neighbours and three, whatever else of a step is no more than a few numbers.
    let near =
        |bytes: u64, times: u64| (times * model..times * model + 9 * model / 8).contains(&bytes);
    assert!(near(ring.wire_bytes, 2), "{} for {model}", ring.wire_bytes);
    assert!(near(complete.wire_bytes, 3), "{} for {model}", complete.wire_bytes);
    assert!(near(one_peer.wire_bytes, 1), "{} for {model}", one_peer.wire_bytes);
}

#[test]
fn sparse_graphs_learn_and_differ_and_depend_on_nothing_but_the_recipe() {
    let mut runs = Runs::new("gossip");
    let graphs = if soak() { &GRAPHS[..] } else { &["ring", "random-directed"] };
    for graph in graphs {
        // All others but one, where that is a choice: with all of them it would be complete.
        let degree = graph.starts_with("random").then_some("sync.degree=2");
        let graph = format!("sync.graph={graph}");
        let sets = ["train.steps=8", "run.workers=4", "sync.mode=gossip", graph.as_str()];
        let sets: Vec<_> = sets.into_iter().chain(degree).collect();
        let run =
            |runs: &mut Runs, more: &[&str]| runs.finish(&LLAMA.with(&[&sets[..], more].concat()));
        let outcome = run(&mut runs, &[]);
        assert!(outcome.losses[7] < outcome.losses[0], "{graph}: {:?}", outcome.losses);
        let apart = outcome.summary.asynchronous.consensus_distance.expect("measured at the end");
        let is_complete = ["complete", "exponential"].iter().any(|name| graph.ends_with(name));
        assert_eq!(apart > 0.0, !is_complete, "{graph}: {apart}");
        for layout in ["parallel.bucket_bytes=1", "run.threads=2"] {
            assert_eq!(run(&mut runs, &[layout]).hashes(), outcome.hashes(), "{graph}, {layout}");
        }
    }
}

#[test]
fn what_workers_keep_survives_the_end_of_the_process() {
    let mut runs = Runs::new("gossip");
    let graphs = if soak() { &GRAPHS[..] } else { &["ring", "random-directed"] };
    for graph in graphs {
        let graph = format!("sync.graph={graph}");
        let sets = ["train.steps=12", "sync.mode=gossip", graph.as_str(), "optim.name=adamw"];
        let more = ["checkpoint.every=5", "run.workers=3", "train.eval_batches=1"];
        let recipe = THREE_MICROBATCHES.with(&[&sets[..], &more].concat());
        let whole = runs.finish(&recipe);
        let options = Options { stop_after: Some(9), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        let resume = Some(part.dir.join("checkpoints"));
        let rest = runs.run(&recipe, Options { resume: resume.clone(), ..Options::default() });
        let rest = rest.unwrap_or_else(|error| panic!("{graph}: {error}"));
        assert!(rest.losses.len() < 12, "{graph} began again");
        assert_eq!(rest.hashes(), whole.hashes(), "{graph}");
        if graph.contains("random") {
            // Graphs drawn for other workers have another degree, and are another recipe.
            continue;
        }
        let other = THREE_MICROBATCHES.with(&[&sets[..], &more, &["run.workers=2"]].concat());
        let error = runs.run(&other, Options { resume, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("go on with run.workers = 3"), "{error}");
    }
}

#[test]
fn every_graph_reaches_the_optimum_of_convex_problems() {
    let mut runs = Runs::new("gossip");
    let graphs = if soak() { &GRAPHS[..] } else { &["ring", "one-peer", "random-directed"] };
    for graph in graphs {
        let graph = format!("sync.graph={graph}");
        // The minima of workers' own samples are those of all for the bowl without noise only.
        for (preset, limit) in [("quadratic", 1e-9), ("logistic", 1e-2)] {
            let sets = ["run.workers=4", "sync.mode=gossip", graph.as_str(), "train.steps=320"];
            let outcome = runs.finish(&problem(preset, &sets));
            let verdict = outcome.summary.solution;
            let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
            let surplus = verdict.suboptimality.expect("known");
            assert!(surplus < limit * start, "{preset}, {graph}: {surplus} of {start}");
        }
    }
}

#[test]
fn noise_keeps_workers_apart_by_what_theory_says_of_the_gap() {
    let mut runs = Runs::new("gossip");
    let mut apart = |graph: &str| {
        let graph = format!("sync.graph={graph}");
        let sets = [
            "run.workers=8",
            "train.batch=8",
            "problem.noise=0.5",
            "problem.samples=4096",
            "optim.momentum=0",
            "optim.lr=0.05",
            "optim.schedule=constant",
            "optim.warmup_steps=0",
            "train.steps=200",
            "train.eval_every=20",
            "sync.mode=gossip",
            graph.as_str(),
        ];
        let outcome = runs.finish(&problem("quadratic", &sets));
        let found = distances(&runs, &outcome);
        let late = &found[found.len() / 2..];
        late.iter().sum::<f64>() / late.len() as f64
    };
    // Of steps of deviation s a graph of rate r keeps about s^2 r^2 / (1 - r^2).
    let (ring, exponential, complete) = (apart("ring"), apart("exponential"), apart("complete"));
    assert!(ring > 2.0 * exponential, "{ring} and {exponential}");
    assert!(complete <= 0.0, "{complete}");
}

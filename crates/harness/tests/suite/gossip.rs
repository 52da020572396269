//! Gossip averaging with neighbours: equivalence to data parallelism on the complete graph,
//! consensus distance, convergence, and state that survives a restart.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{LLAMA, THREE_MICROBATCHES};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
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

/// Consensus distances that a run reports.
fn distances(runs: &Runs, outcome: &Outcome) -> Vec<f64> {
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let distance = |event: &Event| match event {
        Event::Consensus { distance, .. } => Some(*distance),
        _ => None,
    };
    events.iter().filter_map(|stamped| distance(&stamped.event)).collect()
}

#[test]
fn the_complete_graph_equals_the_data_parallel_run() {
    let mut runs = Runs::new("gossip");
    for optim in ["optim.name=sgd", "optim.name=momentum"] {
        let sets = ["train.steps=10", "run.workers=4", "optim.clip=0", "train.eval_every=1", optim];
        let usual = runs.finish(&LLAMA.with(&sets));
        let gossip = ["sync.mode=gossip", "sync.graph=complete"];
        let gossip = runs.finish(&LLAMA.with(&[&sets[..], &gossip].concat()));
        for (step, (a, b)) in usual.losses.iter().zip(&gossip.losses).enumerate() {
            assert!((a - b).abs() <= 2e-6 * a.abs(), "{optim}: {a} and {b} in step {step}");
        }
        let distance = distances(&runs, &gossip);
        assert_eq!(distance, vec![0.0; 10], "every worker adds in the same order");
        assert_eq!(gossip.summary.asynchronous.spectral_gap, Some(1.0));
    }
}

#[test]
fn traffic_and_memory_of_gossip_are_as_predicted() {
    let mut runs = Runs::new("gossip");
    let sets = ["train.steps=7", "train.eval_batches=1", "sync.mode=gossip", "run.workers=4"];
    for graph in ["ring", "torus", "exponential", "complete", "directed-ring", "one-peer"] {
        let graph = format!("sync.graph={graph}");
        let recipe = LLAMA.with(&[&sets[..], &[graph.as_str()]].concat());
        assert_traffic_and_memory_as_predicted(&recipe, &runs.finish(&recipe));
    }
}

#[test]
fn weights_are_sent_to_neighbours_only() {
    let mut runs = Runs::new("gossip");
    let sets = ["train.steps=2", "run.workers=4", "train.eval_batches=1", "sync.mode=gossip"];
    let mut bytes = |graph: &str| {
        let graph = format!("sync.graph={graph}");
        runs.finish(&LLAMA.with(&[&sets[..], &[graph.as_str()]].concat())).summary
    };
    let (ring, complete, one_peer) = (bytes("ring"), bytes("complete"), bytes("one-peer"));
    let model = 4 * ring.num_params;
    // Two, three or one neighbour; the rest of a step is a few numbers.
    let is_multiple =
        |bytes: u64, times: u64| (times * model..times * model + 9 * model / 8).contains(&bytes);
    assert!(is_multiple(ring.wire_bytes, 2), "{} for {model}", ring.wire_bytes);
    assert!(is_multiple(complete.wire_bytes, 3), "{} for {model}", complete.wire_bytes);
    assert!(is_multiple(one_peer.wire_bytes, 1), "{} for {model}", one_peer.wire_bytes);
}

#[test]
fn sparse_graphs_learn_and_depend_on_the_recipe_only() {
    let mut runs = Runs::new("gossip");
    let graphs = if soak() { &GRAPHS[..] } else { &["ring", "random-directed"] };
    for graph in graphs {
        // A random graph in which every worker has all others as neighbours would be complete.
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
fn local_state_survives_a_restart() {
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
        assert!(rest.losses.len() < 12, "{graph} started over");
        assert_eq!(rest.hashes(), whole.hashes(), "{graph}");
        if graph.contains("random") {
            // A random graph of other workers has another degree, which is another recipe.
            continue;
        }
        let other = THREE_MICROBATCHES.with(&[&sets[..], &more, &["run.workers=2"]].concat());
        let error = runs.run(&other, Options { resume, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("resume with run.workers = 3"), "{error}");
    }
}

#[test]
fn every_graph_reaches_the_optimum_of_convex_problems() {
    let mut runs = Runs::new("gossip");
    let graphs = if soak() { &GRAPHS[..] } else { &["ring", "one-peer", "random-directed"] };
    for graph in graphs {
        let graph = format!("sync.graph={graph}");
        // Only for the quadratic without noise do all workers have the same minimum.
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
fn consensus_distance_grows_as_the_spectral_gap_shrinks() {
    let mut runs = Runs::new("gossip");
    let mut consensus_distance = |graph: &str| {
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
        let second_half = &found[found.len() / 2..];
        second_half.iter().sum::<f64>() / second_half.len() as f64
    };
    // Steps of deviation s on a graph of mixing rate r leave about s^2 r^2 / (1 - r^2).
    let [ring, exponential, complete] =
        ["ring", "exponential", "complete"].map(&mut consensus_distance);
    assert!(ring > 2.0 * exponential, "{ring} and {exponential}");
    assert!(complete <= 0.0, "{complete}");
}

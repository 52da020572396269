//! Rounds of steps that workers take alone: what they cost, where they end, and that nothing of
//! them is lost with a process.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA, THREE_LANES};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::Options;

fn problem(preset: &str, sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// The drift of every round.
fn drifts(runs: &Runs, outcome: &Outcome) -> Vec<f64> {
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let drift = |event: &Event| match event {
        Event::RoundFinished { drift, .. } => Some(*drift),
        _ => None,
    };
    events.iter().filter_map(|stamped| drift(&stamped.event)).collect()
}

#[test]
fn rounds_of_one_step_are_the_data_parallel_run_to_the_bit() {
    let mut runs = Runs::new("local-sgd");
    for small in [LLAMA, GPT2, THREE_LANES] {
        for sets in [["optim.name=sgd", "run.workers=2"], ["optim.name=adamw", "run.workers=3"]] {
            let sets = [&sets[..], &["train.steps=6", "train.eval_batches=1"]].concat();
            let usual = runs.finish(&small.with(&sets));
            let lazy = ["sync.mode=local-sgd", "sync.local_steps=1"];
            let lazy = runs.finish(&small.with(&[&sets[..], &lazy].concat()));
            assert_eq!(lazy.hashes(), usual.hashes(), "{}: {sets:?}", small.name);
        }
    }
}

#[test]
fn one_worker_has_nobody_to_average_with() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "run.workers=1", "train.eval_batches=1"];
    let usual = runs.finish(&LLAMA.with(&sets));
    let rounds = ["sync.mode=local-sgd", "sync.local_steps=4"];
    let lazy = runs.finish(&LLAMA.with(&[&sets[..], &rounds].concat()));
    // A change that is added to where it began may round differently.
    let last = |outcome: &Outcome| outcome.losses[7];
    assert!((last(&lazy) - last(&usual)).abs() < 1e-5);
    assert!(drifts(&runs, &lazy).iter().all(|drift| *drift == 0.0));
}

#[test]
fn a_round_moves_the_bytes_of_one_step_and_tells_how_far_workers_were_apart() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "run.workers=4", "train.eval_batches=1"];
    let usual = runs.finish(&LLAMA.with(&sets));
    let lazy = |runs: &mut Runs, more: &[&str]| {
        let rounds = ["sync.mode=local-sgd", "sync.local_steps=4"];
        runs.finish(&LLAMA.with(&[&sets[..], &rounds, more].concat()))
    };
    let outcome = lazy(&mut runs, &[]);
    assert_eq!(4 * outcome.summary.wire_bytes, usual.summary.wire_bytes);
    let drifts = drifts(&runs, &outcome);
    assert!(drifts.len() == 2 && drifts.iter().all(|drift| *drift > 0.0), "{drifts:?}");
    assert!(outcome.losses[7] < outcome.losses[0], "it learns: {:?}", outcome.losses);
    for layout in ["parallel.bucket_bytes=1", "run.threads=2", "parallel.overlap=false"] {
        assert_eq!(lazy(&mut runs, &[layout]).hashes(), outcome.hashes(), "{layout}");
    }
    let uneven = lazy(&mut runs, &["parallel.shares=3,2,2,1"]);
    assert!(uneven.losses[7] < uneven.losses[0], "unequal parts of the batch learn too");
}

#[test]
fn what_workers_keep_survives_the_end_of_the_process() {
    let mut runs = Runs::new("local-sgd");
    let variants: &[&[&str]] = &[
        &["optim.name=adamw"],
        &["optim.name=adamw", "sync.outer=nesterov", "sync.average=state"],
        &["optim.name=momentum", "sync.outer=nesterov", "sync.synchronous=0.25"],
    ];
    let variants = if soak() { variants } else { &variants[1..] };
    for variant in variants {
        let sets = ["train.steps=16", "sync.mode=local-sgd", "sync.local_steps=3"];
        let more = ["checkpoint.every=5", "run.workers=3", "train.eval_batches=1"];
        let recipe = THREE_LANES.with(&[&sets[..], &more, variant].concat());
        let whole = runs.finish(&recipe);
        // The last checkpoint is of the end of a round before this one.
        let stop = (8..16).find(|step| recipe.is_round_over(*step)).expect("a round's end");
        let options = Options { stop_after: Some(stop), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        let resume = Some(part.dir.join("checkpoints"));
        let rest = runs.run(&recipe, Options { resume: resume.clone(), ..Options::default() });
        let rest = rest.unwrap_or_else(|error| panic!("{variant:?}: {error}"));
        assert!(rest.losses.len() < 16, "{variant:?} began again");
        assert_eq!(rest.hashes(), whole.hashes(), "{variant:?}");
        if recipe.has_own_state() {
            let other = THREE_LANES.with(&[&sets[..], &more, variant, &["run.workers=2"]].concat());
            let error = runs.run(&other, Options { resume, ..Options::default() }).unwrap_err();
            assert!(error.to_string().contains("go on with run.workers = 3"), "{error}");
        }
    }
}

#[test]
fn an_outer_optimizer_without_momentum_takes_the_mean_change_as_it_is() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "run.workers=2", "sync.mode=local-sgd", "sync.local_steps=4"];
    let average = runs.finish(&LLAMA.with(&sets));
    let mut outer = |more: &[&str]| {
        runs.finish(&LLAMA.with(&[&sets[..], &["sync.outer=nesterov"], more].concat()))
    };
    let plain = outer(&["sync.outer_lr=1.0", "sync.outer_momentum=0.0"]);
    assert_eq!(plain.hashes(), average.hashes());
    let diloco = outer(&[]);
    assert_ne!(diloco.hashes(), average.hashes());
    assert!(diloco.losses[7] < diloco.losses[0], "{:?}", diloco.losses);
}

#[test]
fn a_run_is_not_left_inside_a_round() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "sync.mode=local-sgd", "sync.local_steps=4", "run.workers=2"];
    let options = Options { stop_after: Some(6), ..Options::default() };
    let error = runs.run(&LLAMA.with(&sets), options).unwrap_err();
    assert!(error.to_string().contains("--stop-after 6 ends inside a round"), "{error}");
    assert!(error.to_string().ends_with("try 4 or 8"), "{error}");
}

#[test]
fn rounds_reach_the_optimum_of_convex_problems() {
    let mut runs = Runs::new("local-sgd");
    // The minima of workers' own samples are those of all for the bowl without noise only.
    for (preset, limit) in [("quadratic", 1e-9), ("logistic", 1e-2)] {
        for local_steps in ["sync.local_steps=4", "sync.local_steps=16"] {
            let sets = ["run.workers=4", "sync.mode=local-sgd", local_steps, "train.steps=320"];
            let outcome = runs.finish(&problem(preset, &sets));
            let verdict = outcome.summary.verdict;
            let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
            let surplus = verdict.suboptimality.expect("known");
            assert!(surplus < limit * start, "{preset}, {local_steps}: {surplus} of {start}");
        }
    }
}

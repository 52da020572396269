//! Local SGD and DiLoCo: bytes sent, drift, convergence, and state that survives a restart.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA, THREE_MICROBATCHES};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
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
fn rounds_of_one_step_equal_the_data_parallel_run_bit_for_bit() {
    let mut runs = Runs::new("local-sgd");
    for small in [LLAMA, GPT2, THREE_MICROBATCHES] {
        for sets in [["optim.name=sgd", "run.workers=2"], ["optim.name=adamw", "run.workers=3"]] {
            let sets = [&sets[..], &["train.steps=6", "train.eval_batches=1"]].concat();
            let usual = runs.finish(&small.with(&sets));
            let local = ["sync.mode=local-sgd", "sync.local_steps=1"];
            let local = runs.finish(&small.with(&[&sets[..], &local].concat()));
            assert_eq!(local.hashes(), usual.hashes(), "{}: {sets:?}", small.name);
        }
    }
}

#[test]
fn one_worker_trains_as_without_rounds() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "run.workers=1", "train.eval_batches=1"];
    let usual = runs.finish(&LLAMA.with(&sets));
    let rounds = ["sync.mode=local-sgd", "sync.local_steps=4"];
    let local = runs.finish(&LLAMA.with(&[&sets[..], &rounds].concat()));
    // Adding the change of a round to its start may round differently.
    let last = |outcome: &Outcome| outcome.losses[7];
    assert!((last(&local) - last(&usual)).abs() < 1e-5);
    assert!(drifts(&runs, &local).iter().all(|drift| *drift == 0.0));
}

#[test]
fn a_round_sends_the_bytes_of_one_step_and_reports_the_drift() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "run.workers=4", "train.eval_batches=1"];
    let usual = runs.finish(&LLAMA.with(&sets));
    let local = |runs: &mut Runs, more: &[&str]| {
        let rounds = ["sync.mode=local-sgd", "sync.local_steps=4"];
        runs.finish(&LLAMA.with(&[&sets[..], &rounds, more].concat()))
    };
    let outcome = local(&mut runs, &[]);
    assert_eq!(4 * outcome.summary.wire_bytes, usual.summary.wire_bytes);
    let drifts = drifts(&runs, &outcome);
    assert!(drifts.len() == 2 && drifts.iter().all(|drift| *drift > 0.0), "{drifts:?}");
    assert!(outcome.losses[7] < outcome.losses[0], "it learns: {:?}", outcome.losses);
    for layout in ["parallel.bucket_bytes=1", "run.threads=2", "parallel.overlap=false"] {
        assert_eq!(local(&mut runs, &[layout]).hashes(), outcome.hashes(), "{layout}");
    }
    let unequal = local(&mut runs, &["parallel.leaf_shares=3,2,2,1"]);
    assert!(unequal.losses[7] < unequal.losses[0], "unequal leaf shares learn too");
}

#[test]
fn traffic_and_memory_of_rounds_are_as_predicted() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=13", "train.eval_batches=1", "sync.mode=local-sgd"];
    let variants: &[(_, &[&str])] = &[
        (THREE_MICROBATCHES, &["run.workers=3", "sync.local_steps=4"]),
        (LLAMA, &["run.workers=2", "sync.local_steps=4", "parallel.bucket_bytes=1"]),
        (GPT2, &["run.workers=4", "sync.local_steps=2", "sync.outer=nesterov"]),
        (
            THREE_MICROBATCHES,
            &["run.workers=3", "sync.local_steps=3", "sync.synchronous_fraction=0.25"],
        ),
        (THREE_MICROBATCHES, &["run.workers=2", "sync.local_steps=1", "sync.final_local_steps=5"]),
        (LLAMA, &["run.workers=4", "sync.group_workers=2", "sync.inner_rounds=2"]),
        (LLAMA, &["run.workers=4", "sync.local_steps=4", "sync.fragments=3"]),
    ];
    for (small, variant) in variants {
        let recipe = small.with(&[&sets[..], variant].concat());
        assert_traffic_and_memory_as_predicted(&recipe, &runs.finish(&recipe));
    }
}

#[test]
fn local_state_survives_a_restart() {
    let mut runs = Runs::new("local-sgd");
    let variants: &[&[&str]] = &[
        &["optim.name=adamw"],
        &["optim.name=adamw", "sync.outer=nesterov", "sync.average=state"],
        &["sync.group_workers=3", "sync.inner_rounds=2", "sync.outer=nesterov"],
        &["sync.fragments=2", "sync.inner_rounds=2", "sync.outer=nesterov"],
        &["sync.worker_steps=[3,1,2]"],
        &["optim.name=momentum", "sync.outer=nesterov", "sync.synchronous_fraction=0.25"],
    ];
    let variants = if soak() { variants } else { &variants[1..] };
    for variant in variants {
        let sets = ["train.steps=16", "sync.mode=local-sgd", "sync.local_steps=3"];
        let more = ["checkpoint.every=5", "run.workers=3", "train.eval_batches=1"];
        let recipe = THREE_MICROBATCHES.with(&[&sets[..], &more, variant].concat());
        let whole = runs.finish(&recipe);
        let stop = (6..16).find(|step| recipe.is_round_over(*step)).expect("a round's end");
        let options = Options { stop_after: Some(stop), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        let resume = Some(part.dir);
        let rest = runs.run(&recipe, Options { resume: resume.clone(), ..Options::default() });
        let rest = rest.unwrap_or_else(|error| panic!("{variant:?}: {error}"));
        assert_eq!(rest.losses.len() as u64, 16 - stop, "{variant:?} resumed where it stopped");
        assert_eq!(rest.hashes(), whole.hashes(), "{variant:?}");
        let allows_other_sizes =
            recipe.sync.group_workers < 2 && recipe.sync.worker_steps.is_empty();
        if recipe.has_local_state() && allows_other_sizes {
            let other =
                THREE_MICROBATCHES.with(&[&sets[..], &more, variant, &["run.workers=2"]].concat());
            let error = runs.run(&other, Options { resume, ..Options::default() }).unwrap_err();
            assert!(error.to_string().contains("resume with run.workers = 3"), "{error}");
        }
    }
}

#[test]
fn groups_average_more_often_than_all_workers() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=8", "run.workers=4", "train.eval_batches=1", "sync.mode=local-sgd"];
    let mut with = |more: &[&str]| runs.finish(&LLAMA.with(&[&sets[..], more].concat()));
    let frequent = with(&["sync.local_steps=2"]);
    let rare = with(&["sync.local_steps=4"]);
    let groups = ["sync.local_steps=2", "sync.group_workers=2", "sync.inner_rounds=2"];
    let two_levels = with(&groups);
    let bytes = |outcome: &Outcome| outcome.summary.wire_bytes;
    assert!(bytes(&rare) < bytes(&two_levels) && bytes(&two_levels) < bytes(&frequent));
    for layout in ["parallel.bucket_bytes=1", "run.threads=2", "parallel.overlap=false"] {
        let other = with(&[&groups[..], &[layout]].concat());
        assert_eq!(other.hashes(), two_levels.hashes(), "{layout}");
    }
    // A group of all workers equals shorter rounds up to rounding.
    let all = with(&["sync.local_steps=2", "sync.group_workers=4", "sync.inner_rounds=2"]);
    let off = all.losses.iter().zip(&frequent.losses).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0.0, f64::max) < 1e-4, "{:?} and {:?}", all.losses, frequent.losses);
    let state = with(&[&groups[..], &["sync.average=state"]].concat());
    assert_ne!(state.hashes(), two_levels.hashes(), "momentum is averaged too");
    let [drift, less] = [&rare, &two_levels].map(|outcome| drifts(&runs, outcome));
    assert_eq!((drift.len(), less.len()), (2, 2));
    assert!(less[0] < drift[0], "{less:?} with groups, {drift:?} without");
}

#[test]
fn fragments_of_a_model_are_averaged_in_turn() {
    let mut runs = Runs::new("local-sgd");
    let sets = ["train.steps=16", "run.workers=4", "sync.mode=local-sgd", "sync.local_steps=4"];
    for outer in ["sync.outer=none", "sync.outer=nesterov"] {
        let mut with = |more: &[&str]| {
            runs.finish(&LLAMA.with(&[&sets[..], &["train.eval_batches=1", outer], more].concat()))
        };
        let streaming = ["sync.fragments=3", "sync.inner_rounds=2"];
        let outcome = with(&streaming);
        assert!(outcome.losses[15] < outcome.losses[0], "{:?}", outcome.losses);
        for layout in ["parallel.bucket_bytes=1", "run.threads=2", "parallel.overlap=false"] {
            let other = with(&[&streaming[..], &[layout]].concat());
            assert_eq!(other.hashes(), outcome.hashes(), "{layout}");
        }
        // Each fragment is averaged twice a round, and all of them at most once more at its end.
        let (once, found) = (with(&[]).summary.wire_bytes, outcome.summary.wire_bytes);
        assert!(found >= once && found < 2 * once, "{found} and {once} bytes a step");
    }
}

#[test]
fn a_finished_run_resumes_for_more_steps() {
    let mut runs = Runs::new("local-sgd");
    let diloco = ["sync.mode=local-sgd", "sync.local_steps=3", "sync.outer=nesterov"];
    let top_k = ["compress.method=top-k", "compress.ratio=0.1", "train.eval_batches=2"];
    for method in [diloco, top_k] {
        let recipe = |steps: &str| {
            let sets = ["run.workers=2", "optim.schedule=constant", "optim.warmup_steps=0", steps];
            LLAMA.with(&[&sets[..], &method].concat())
        };
        let whole = runs.finish(&recipe("train.steps=12"));
        let short = runs.finish(&recipe("train.steps=6"));
        let resume = Some(short.dir);
        let options = || Options { resume: resume.clone(), ..Options::default() };
        let rest = runs.run(&recipe("train.steps=12"), options());
        let rest = rest.unwrap_or_else(|error| panic!("{method:?}: {error}"));
        assert_eq!(rest.hashes(), whole.hashes(), "{method:?}");
        let error = runs.run(&recipe("train.steps=6"), options()).expect_err("it is done");
        assert!(error.to_string().contains('6'), "{error}");
    }
    let cut =
        |steps: &str| LLAMA.with(&[&diloco[..], &["optim.schedule=constant", steps]].concat());
    let short = runs.finish(&cut("train.steps=4"));
    let options = Options { resume: Some(short.dir), ..Options::default() };
    let error = runs.run(&cut("train.steps=8"), options).expect_err("its last round was cut");
    assert!(error.to_string().contains("changes the round at step 3"), "{error}");
}

#[test]
fn an_outer_optimizer_without_momentum_at_rate_one_is_plain_averaging() {
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
fn stopping_inside_a_round_is_refused() {
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
    // Only for the quadratic without noise do all workers have the same minimum.
    for (preset, limit) in [("quadratic", 1e-9), ("logistic", 1e-2)] {
        for local_steps in ["sync.local_steps=4", "sync.local_steps=16"] {
            let sets = ["run.workers=4", "sync.mode=local-sgd", local_steps, "train.steps=320"];
            let outcome = runs.finish(&problem(preset, &sets));
            let verdict = outcome.summary.solution;
            let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
            let surplus = verdict.suboptimality.expect("known");
            assert!(surplus < limit * start, "{preset}, {local_steps}: {surplus} of {start}");
        }
    }
}

#[test]
fn a_slow_worker_takes_fewer_steps_at_equal_weight() {
    let mut runs = Runs::new("local-sgd");
    let rounds = ["run.workers=4", "sync.mode=local-sgd", "sync.local_steps=8"];
    // Explicit equal step counts change no bit.
    let short =
        |steps: &'static [&str]| LLAMA.with(&[&rounds[..], &["train.steps=12"], steps].concat());
    let plain = runs.finish(&short(&[]));
    let explicit = runs.finish(&short(&["sync.worker_steps=[8,8,8,8]"]));
    assert_eq!(explicit.hashes(), plain.hashes());
    let fewer = runs.finish(&short(&["sync.worker_steps=[8,8,5,2]"]));
    assert_ne!(fewer.hashes(), plain.hashes());
    assert!(fewer.losses[11] < fewer.losses[0], "it learns: {:?}", fewer.losses);

    // Workers have samples of different classes, and those of the slowest have the weight of the
    // others (as FedNova does, Wang et al. 2020). Weighted by steps, the run converges to another
    // optimum: 44 times the suboptimality instead of 4.
    let mut surplus = |steps: &'static str| {
        let sets = ["sync.partition=by-class", "train.steps=240", "optim.name=sgd", "optim.lr=0.5"];
        let recipe = problem("logistic", &[&rounds[..], &sets, &[steps]].concat());
        runs.finish(&recipe).summary.solution.suboptimality.expect("known")
    };
    let (equal, unequal) =
        (surplus("sync.worker_steps=[8,8,8,8]"), surplus("sync.worker_steps=[8,8,5,2]"));
    assert!(unequal < 10.0 * equal, "{unequal} with unequal steps, {equal} with equal ones");
}

#[test]
fn diloco_comes_close_to_the_data_parallel_run() {
    let mut runs = Runs::new("local-sgd");
    // As many rounds as DiLoCo needs; fewer and shorter ones outside the long suite.
    let (local_steps, rounds, batch, limit) =
        if soak() { (64, 40, 256, 0.02) } else { (8, 16, 64, 0.25) };
    let sets = [
        format!("train.steps={}", local_steps * rounds),
        format!("train.batch={batch}"),
        format!("train.microbatch={}", batch / 8),
    ];
    let same = ["model.heads=4", "model.kv_heads=2", "train.eval_batches=8", "run.workers=4"];
    let rate = ["optim.lr=0.02", "optim.final_lr_fraction=0.01"];
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(same).chain(rate).collect();
    let usual = runs.finish(&problem("tiny", &sets)).summary;
    let local_steps = format!("sync.local_steps={local_steps}");
    let outer = ["sync.outer=nesterov", "sync.outer_lr=1.0", "sync.outer_momentum=0.7"];
    let diloco = [&sets[..], &["sync.mode=local-sgd", &local_steps], &outer].concat();
    let diloco = runs.finish(&problem("tiny", &diloco)).summary;
    let loss = |summary: &lockstep_trainer::Summary| summary.validation_loss.expect("held out");
    let worse = loss(&diloco) / loss(&usual) - 1.0;
    let saving = usual.wire_bytes as f64 / diloco.wire_bytes as f64;
    println!("{:.2} % above, a {saving:.0}th of the bytes", 100.0 * worse);
    assert!(worse < limit, "{worse} above {}", loss(&usual));
    assert!(saving > if soak() { 50.0 } else { 7.0 }, "a {saving}th of the bytes");
}

//! Traces of real runs pass the checker, and have the tasks of the programs and an arrow for every
//! message.

use lockstep_config::Recipe;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::runs::Runs;
use lockstep_harness::trace::{CheckedTrace, check_trace};
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::step_program::StepKind;
use lockstep_parallel::strategies::programs;
use lockstep_schedule::step::{Program, TaskOp};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

const NUM_STEPS: u64 = 4;

fn recipe(sets: &[&str]) -> Recipe {
    let common = [
        "telemetry.trace=true",
        "telemetry.trace_every=2",
        "train.steps=4",
        "train.eval_every=2",
        "train.batch=8",
        "train.microbatch=1",
        "numerics.invariant_up_to=4",
        "checkpoint.every=2",
    ];
    LLAMA.with(&[&common[..], sets].concat())
}

/// The programs of all ranks in a step, as the planner proves them.
fn programs_of(recipe: &Recipe, step: u64) -> Vec<Program> {
    let blueprint = blueprint_of_rank(recipe, 0);
    let plan = plan_at(recipe, &blueprint, 0);
    programs(recipe, &plan, &blueprint, &StepKind::at(recipe, step))
}

/// Trains and checks the trace.
fn train_and_check(recipe: &Recipe) -> CheckedTrace {
    let mut runs = Runs::new("traces");
    let path = runs.finish(recipe).dir.join("trace.json");
    let text = runs.world().files().read_to_string(&path).expect("a trace");
    check_trace(&text, recipe.run.workers).unwrap_or_else(|fault| panic!("{fault}"))
}

/// The checked trace of a run of stages: every task of every rank's program is in it.
fn traced(sets: &[&str]) -> CheckedTrace {
    let recipe = recipe(sets);
    let trace = train_and_check(&recipe);
    let mut expected = BTreeSet::new();
    let mut num_messages = 0;
    for step in (2..=NUM_STEPS).step_by(2) {
        for (rank, program) in programs_of(&recipe, step - 1).iter().enumerate() {
            let name = |op: TaskOp| op.to_string();
            expected.extend(
                program.iter().map(|(id, task)| (rank as u64, step, id.0.into(), name(task.op))),
            );
            num_messages +=
                program.tasks.iter().filter(|it| matches!(it.op, TaskOp::Send(_))).count();
        }
    }
    let is_background = |track| trace.tracks[&track].ends_with("in the background");
    let found: BTreeSet<_> = trace
        .spans
        .iter()
        .filter(|span| !is_background(span.track))
        .filter_map(|span| Some((span.track.0, span.step, span.task?, span.name.clone())))
        .collect();
    assert_eq!(found, expected, "{sets:?}");
    assert_eq!(trace.arrows.len(), num_messages, "{sets:?}: an arrow for every message");
    trace
}

/// Number of spans by category, without those of one rank only.
fn categories(trace: &CheckedTrace) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    for span in &trace.spans {
        *found.entry(span.category.as_str()).or_default() += 1;
    }
    found
}

/// Names of the background calls.
fn background(trace: &CheckedTrace) -> Vec<&str> {
    let is_background = |track| trace.tracks[&track].ends_with("in the background");
    let spans = trace.spans.iter().filter(|span| is_background(span.track));
    spans.map(|span| span.name.as_str()).collect()
}

#[test]
fn data_parallelism_has_a_background_call_for_every_bucket() {
    let trace = traced(&["run.workers=2", "parallel.zero=0"]);
    let found = categories(&trace);
    assert_eq!(found["step"], 2 * 2, "two steps of two ranks");
    assert_eq!(found["evaluation"], 2 * 2);
    assert_eq!(found["checkpoint"], 2, "the last step is saved as the final weights");
    let reduces = background(&trace);
    let tasks = trace.spans.iter().filter(|span| span.name.starts_with("reduce ")).count();
    assert!(!reduces.is_empty() && reduces.iter().all(|name| name.starts_with("reduce ")));
    assert_eq!(tasks, 2 * reduces.len(), "each is issued once and runs once");
}

#[test]
fn zero_3_gathers_parameters_in_the_background() {
    let trace = traced(&["run.workers=2", "parallel.zero=3", "parallel.recompute=full"]);
    let found = categories(&trace);
    assert!(found["recompute"] > 0, "{found:?}");
    assert!(background(&trace).iter().any(|name| name.starts_with("gather parameters ")));
}

#[test]
fn a_pipeline_has_an_arrow_for_every_activation() {
    let trace = traced(&["run.workers=2", "parallel.pipeline=2", "model.layers=2"]);
    let names: BTreeSet<&str> = trace.arrows.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains("activation 0 microbatch 0"), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("activation gradient ")), "{names:?}");
    // A receive is the bubble of its rank.
    assert_eq!(categories(&trace)["bubble"], trace.arrows.len());
}

#[test]
fn four_ranks_on_two_axes_have_their_tracks() {
    for sets in [
        &["run.workers=4", "parallel.pipeline=2", "parallel.tensor=2", "model.layers=2"][..],
        &["run.workers=4", "parallel.pipeline=2", "model.layers=2", "parallel.zero=1"],
        &["run.workers=2", "parallel.tensor=2"],
    ] {
        let trace = traced(sets);
        let names: BTreeSet<&str> = trace.tracks.values().map(String::as_str).collect();
        let has = |axis: &str| sets.iter().any(|set| set.starts_with(&format!("parallel.{axis}=")));
        for axis in ["pipeline", "tensor"] {
            assert_eq!(names.contains(format!("{axis} axis").as_str()), has(axis), "{names:?}");
        }
    }
}

#[test]
fn messages_outside_of_stages_have_no_arrow() {
    for mode in ["sync.mode=gossip", "sync.mode=parameter-server"] {
        let sets = ["run.workers=2", "optim.name=sgd", "checkpoint.every=0", mode];
        let trace = train_and_check(&recipe(&sets));
        assert!(trace.spans.iter().any(|span| span.category == "send"), "{mode}");
        assert_eq!(trace.arrows, [], "{mode}");
    }
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let span = |name: &str, ts: f64, dur: f64| {
        json!({"ph": "X", "name": name, "cat": "c", "pid": 0, "tid": 1, "ts": ts, "dur": dur,
               "args": {"step": 1}})
        .to_string()
    };
    let named = r#"{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}}"#;
    let file = |events: &[&str]| {
        format!(
            r#"{{"traceEvents":[{}],"otherData":{{"clock_error_ns_of_rank_0":"5"}}}}"#,
            events.join(",")
        )
    };
    let [a, inside, across] = [span("a", 1.0, 4.0), span("b", 1.0, 2.0), span("c", 2.0, 4.0)];
    assert!(check_trace(&file(&[named, &a, &inside]), 1).is_ok());
    let fault = |events: &[&str]| check_trace(&file(events), 1).expect_err("a fault");
    assert!(fault(&[named, &a, &across]).contains("overlaps"));
    assert!(fault(&[&a]).starts_with("no name of the track"));
    assert!(fault(&[named]).starts_with("rank 0 has no span"));
    let negative = span("a", -1.0, 4.0);
    assert!(fault(&[named, &negative]).starts_with("no span"));
    let end = r#"{"ph":"s","name":"m","cat":"message","id":"0x1","pid":0,"tid":1,"ts":1.0}"#;
    assert_eq!(fault(&[named, &a, end]), "arrow 0x1: 1 ends");
    assert!(check_trace(&file(&[named, &a]), 2).is_err(), "rank 1 is missing");
}

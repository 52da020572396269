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
use serde_json::{Value, json};
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

/// The checked trace of a run of stages: every task of every rank's program is in it, and an arrow
/// for every message.
fn traced(sets: &[&str]) -> CheckedTrace {
    let recipe = recipe(sets);
    let trace = train_and_check(&recipe);
    let num_messages = assert_tasks(&recipe, &trace);
    assert_eq!(trace.arrows.len(), num_messages, "{sets:?}: an arrow for every message");
    trace
}

/// Asserts that the trace has every task of every worker's program in the traced steps, and no
/// other; returns the number of messages that they send.
fn assert_tasks(recipe: &Recipe, trace: &CheckedTrace) -> usize {
    let mut expected = BTreeSet::new();
    let mut num_messages = 0;
    for step in (2..=NUM_STEPS).step_by(2) {
        // Servers train no step, and have no trace.
        let programs = programs_of(recipe, step - 1);
        for (rank, program) in programs.iter().take(recipe.run.workers).enumerate() {
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
    assert_eq!(found, expected, "{}", recipe.sync.mode);
    num_messages
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
        let recipe = recipe(&sets);
        let trace = train_and_check(&recipe);
        assert!(assert_tasks(&recipe, &trace) > 0, "{mode}");
        assert!(trace.spans.iter().any(|span| span.category == "send"), "{mode}");
        assert_eq!(trace.arrows, [], "{mode}");
    }
}

/// Spans of a mutant: track, name, start and duration, with a task if it is one.
fn span(track: [u64; 2], name: &str, [ts, dur]: [f64; 2], task: Option<u64>) -> Value {
    let mut args = json!({"step": 1});
    if let Some(task) = task {
        args["task"] = json!(task);
    }
    let [pid, tid] = track;
    json!({"ph": "X", "name": name, "cat": "c", "pid": pid, "tid": tid, "ts": ts, "dur": dur,
           "args": args})
}

fn track_name([pid, tid]: [u64; 2], name: &str) -> Value {
    json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
}

/// Both ends of an arrow from rank 0 to rank 1.
fn arrow([leaves, arrives]: [f64; 2]) -> [Value; 2] {
    let start = json!({"ph": "s", "name": "m", "cat": "message", "id": "0x1", "pid": 0, "tid": 1,
                       "ts": leaves});
    let mut finish = start.clone();
    finish["ph"] = json!("f");
    finish["bp"] = json!("e");
    finish["pid"] = json!(1);
    finish["ts"] = json!(arrives);
    [start, finish]
}

/// Checks a file of events; the clock of rank 1 errs by half a microsecond.
fn check(events: &[Value], num_ranks: usize) -> Result<CheckedTrace, String> {
    let clocks = json!({"clock_error_ns_of_rank_0": "0", "clock_error_ns_of_rank_1": "500"});
    check_trace(&json!({"traceEvents": events, "otherData": clocks}).to_string(), num_ranks)
}

const COMPUTE: [u64; 2] = [0, 1];

#[test]
fn the_checker_finds_spans_that_are_wrong() {
    let named = || track_name(COMPUTE, "compute");
    let plain = |name: &str, times: [f64; 2]| span(COMPUTE, name, times, None);
    let a = || plain("a", [1.0, 4.0]);
    assert!(check(&[named(), a(), plain("b", [1.0, 2.0])], 1).is_ok());
    let fault = |events: &[Value]| check(events, 1).expect_err("a fault");
    assert!(fault(&[named(), a(), plain("c", [2.0, 4.0])]).contains("overlaps"));
    assert!(fault(&[a()]).starts_with("no name of the track"));
    assert!(fault(&[named(), named(), a()]).starts_with("a track is named twice"));
    assert!(fault(&[named()]).starts_with("rank 0 has no span"));
    assert!(fault(&[named(), plain("a", [-1.0, 4.0])]).starts_with("no span"));
    assert!(fault(&[named(), plain("", [1.0, 4.0])]).starts_with("no span"));
    let mut odd = a();
    odd["ph"] = json!("B");
    assert!(fault(&[named(), odd]).starts_with("an unknown phase"));
    assert!(check(&[named(), a()], 2).is_err(), "rank 1 is missing");
}

#[test]
fn the_checker_finds_tasks_that_are_there_twice_or_out_of_order() {
    let link = [0, 2];
    let names = || [track_name(COMPUTE, "compute"), track_name(link, "data axis")];
    let task = |track, id: u64, start: f64| span(track, "t", [start, 2.0], Some(id));
    let with = |tasks: Vec<Value>| check(&[names().to_vec(), tasks].concat(), 1);
    assert!(with(vec![task(COMPUTE, 0, 1.0), task(link, 1, 3.0)]).is_ok());
    let twice = with(vec![task(COMPUTE, 0, 1.0), task(link, 0, 3.0)]).expect_err("a fault");
    assert_eq!(twice, "a task of step 1 of rank 0 is there twice");
    // One thread runs all tasks of a rank, so that they do not overlap even on two tracks.
    let early = with(vec![task(COMPUTE, 0, 1.0), task(link, 1, 2.0)]).expect_err("a fault");
    assert!(early.contains("begins before the end of"), "{early}");
    let swapped = with(vec![task(link, 1, 3.0), task(COMPUTE, 0, 1.0)]).expect_err("a fault");
    assert!(swapped.contains("begins before the end of"), "{swapped}");
}

#[test]
fn the_checker_finds_arrows_without_an_end_a_span_or_time() {
    let with = |arrows: &[Value]| {
        let spans = [0, 1].map(|rank| span([rank, 1], "m", [1.0, 4.0], None));
        let names = [0, 1].map(|rank| track_name([rank, 1], "data axis"));
        check(&[&names[..], &spans, arrows].concat(), 2)
    };
    assert_eq!(with(&arrow([1.0, 4.0])).expect("it is sound").arrows.len(), 1);
    assert!(with(&arrow([3.0, 2.5])).is_ok(), "clocks err by half a microsecond");
    let fault = |arrows: &[Value]| with(arrows).expect_err("a fault");
    let past = fault(&arrow([3.0, 2.4]));
    assert_eq!(past, "arrow 0x1: it arrives 600 ns before it leaves, and clocks err by 500 ns");
    let [start, finish] = arrow([1.0, 4.0]);
    assert_eq!(fault(std::slice::from_ref(&start)), "arrow 0x1: 1 ends");
    let twice = fault(&[start.clone(), finish.clone(), start.clone()]);
    assert_eq!(twice, "arrow 0x1: 3 ends");
    assert!(fault(&[start.clone(), start.clone()]).contains(" to "), "two starts");
    assert!(fault(&arrow([1.0, 6.0])).contains("no span of track (1, 1)"));
    let changed = |name: &str, value: Value| {
        let mut other = finish.clone();
        other[name] = value;
        fault(&[start.clone(), other])
    };
    assert!(changed("name", json!("n")).ends_with("the ends have different names"));
    assert!(changed("pid", json!(0)).ends_with("both ends on one rank"));
    assert!(changed("bp", json!("s")).contains(" to "), "it points to the next span");
}

//! Reader of a run folder: recipe, events, summary, trace, and the records of a failure.
//!
//! Commands that explain a run share it. Every file but the recipe may be missing or truncated: a
//! killed run has no summary, a run that did not fail no flight records. Files are read as they
//! are; unknown fields are ignored and damaged lines of the event file skipped.

use crate::failure_record::{RecordedFailure, read_failure};
use crate::run_folder::load_recipe;
use crate::{RunFolder, TrainError};
use lockstep_config::Recipe;
use lockstep_platform::{FileKind, World};
use lockstep_telemetry::Event;
use lockstep_telemetry::json_lines::visit_events;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Longest trace that is read: the spans of sampled steps of some hundred ranks.
const MAX_TRACE_BYTES: u64 = 256 << 20;

/// Durations of tasks in seconds, with their actions, by rank and task id.
pub type TracedTasks = BTreeMap<usize, BTreeMap<u32, (String, f64)>>;

/// Times of the ranks in each traced step, by step and rank.
pub type TracedSteps = BTreeMap<u64, BTreeMap<usize, TracedTimes>>;

/// Times of a rank in a traced step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TracedTimes {
    /// The whole step.
    pub step: f64,
    /// Forward and backward passes.
    pub compute: f64,
    /// Calls and messages, with the bubble; not those in the background.
    pub communication: f64,
    /// Optimizer.
    pub optimizer: f64,
    /// Wait for data.
    pub data: f64,
    /// Wait for later ranks.
    pub waiting: f64,
    /// End of the last pass, on the clock of rank 0.
    pub passes_end: f64,
}

/// A run as its folder records it.
#[derive(Debug)]
pub struct RecordedRun {
    /// Folder.
    pub folder: RunFolder,
    /// Recipe.
    pub recipe: Recipe,
    /// Summary of a run that came to its end.
    pub summary: Option<RecordedSummary>,
    /// Passes of the last traced step; empty without a trace.
    pub tasks: TracedTasks,
    /// Times of all traced steps; empty without a trace.
    pub traced: TracedSteps,
    /// Why the run failed, if it did.
    pub failure: Option<RecordedFailure>,
}

/// Figures of a summary; those of another version may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are those of `Summary`")]
pub struct RecordedSummary {
    pub compute_quartile_seconds_by_rank: Vec<[Option<f64>; 3]>,
    pub exposed_communication_seconds_by_rank: Vec<Option<f64>>,
    pub data_wait_seconds_by_rank: Vec<Option<f64>>,
    pub straggler_wait_seconds_by_rank: Vec<Option<f64>>,
    pub bucket_len: Option<usize>,
    pub device_bytes: Option<u64>,
    pub peak_rss_bytes: Option<u64>,
    pub predicted_peak_bytes: Option<u64>,
    pub predicted_device_bytes: Option<u64>,
    pub predicted_step_seconds: Option<f64>,
}

impl RecordedRun {
    /// Reads a run, finished or not.
    pub fn read(path: &Path, world: &World) -> Result<Self, TrainError> {
        let folder = RunFolder::started(path, world)?;
        let recipe = load_recipe(&folder, world)?;
        let summary = world.files().read(&folder.summary()).ok();
        let summary = summary.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let trace = read_trace(&folder.trace(), world).unwrap_or_default();
        let (tasks, traced) = (passes_of(&trace).unwrap_or_default(), times_of(&trace));
        let failed = [crate::failure_record::FAILURE, "flight"].map(|name| path.join(name));
        let has_failed = failed.iter().any(|path| world.files().metadata(path).is_some());
        let failure = if has_failed { read_failure(path, world) } else { None };
        Ok(Self { folder, recipe, summary, tasks, traced, failure })
    }

    /// Visits the events of the run in order, if it has any; they are not held in memory.
    pub fn visit_events(
        &self,
        world: &World,
        mut visit: impl FnMut(&Event),
    ) -> Result<(), TrainError> {
        let path = self.folder.events();
        if !matches!(world.files().metadata(&path), Some(FileKind::File { .. })) {
            return Ok(());
        }
        let visited = visit_events(world, &path, |stamped| {
            visit(&stamped.event);
            Ok(())
        });
        visited.map_err(|error| TrainError::SavedEvents {
            path: path.display().to_string(),
            reason: error.to_string(),
        })
    }
}

/// A span of the trace; other events have no task.
#[derive(Deserialize)]
struct TraceEvent {
    name: String,
    ph: String,
    #[serde(default)]
    pid: usize,
    #[serde(default)]
    tid: u32,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    args: TraceArguments,
}

#[derive(Default, Deserialize)]
struct TraceArguments {
    step: Option<u64>,
    task: Option<u32>,
    /// Name of a track.
    name: Option<String>,
}

/// Events of a trace.
fn read_trace(path: &Path, world: &World) -> Option<Vec<TraceEvent>> {
    #[derive(Deserialize)]
    struct Trace {
        #[serde(rename = "traceEvents")]
        events: Vec<TraceEvent>,
    }
    match world.files().metadata(path)? {
        FileKind::File { bytes } if bytes <= MAX_TRACE_BYTES => {}
        _ => return None,
    }
    let trace: Trace = serde_json::from_slice(&world.files().read(path).ok()?).ok()?;
    Some(trace.events)
}

/// Tasks of the last traced step, by rank.
fn passes_of(events: &[TraceEvent]) -> Option<TracedTasks> {
    // Calls in the background have the task that issued them; passes run on the compute queue.
    let is_pass = |event: &&TraceEvent| {
        event.ph == "X" && ["forward", "backward", "recompute"].contains(&event.cat.as_str())
    };
    let last = events.iter().filter(is_pass).filter_map(|event| event.args.step).max()?;
    let mut tasks = TracedTasks::new();
    for event in events.iter().filter(is_pass) {
        if let (Some(step), Some(task)) = (event.args.step, event.args.task)
            && step == last
        {
            let of_rank = tasks.entry(event.pid).or_default();
            of_rank.insert(task, (event.name.clone(), event.dur * 1e-6));
        }
    }
    Some(tasks)
}

/// Times of the ranks in all traced steps.
fn times_of(events: &[TraceEvent]) -> TracedSteps {
    let is_background = |event: &&TraceEvent| {
        event.ph == "M"
            && event.args.name.as_ref().is_some_and(|name| name.ends_with("in the background"))
    };
    let background: BTreeSet<(usize, u32)> =
        events.iter().filter(is_background).map(|event| (event.pid, event.tid)).collect();
    let mut steps = TracedSteps::new();
    for event in events.iter().filter(|event| event.ph == "X") {
        let Some(step) = event.args.step.filter(|_| !background.contains(&(event.pid, event.tid)))
        else {
            continue;
        };
        let (start, seconds) = (event.ts * 1e-6, event.dur * 1e-6);
        let times = steps.entry(step).or_default().entry(event.pid).or_default();
        match event.cat.as_str() {
            "step" => times.step += seconds,
            "forward" | "backward" | "recompute" => {
                times.compute += seconds;
                times.passes_end = times.passes_end.max(start + seconds);
            }
            "gather" | "reduce" | "tensor" | "send" | "receive" | "bubble" => {
                times.communication += seconds;
            }
            "optimizer" => times.optimizer += seconds,
            // The task that takes the batch contains the wait for it.
            "data" if event.args.task.is_none() => times.data += seconds,
            "wait" => times.waiting += seconds,
            _ => {}
        }
    }
    // Checkpoints and evaluations may follow any step, traced or not.
    steps.retain(|_, ranks| ranks.values().any(|times| times.step > 0.0));
    steps
}

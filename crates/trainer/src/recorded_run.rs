//! Reader of a run folder: recipe, events, summary, trace, and the records of a failure.
//!
//! Commands that explain a run share it. Every file but the recipe may be missing or truncated: a
//! killed run has no summary, a run that did not fail no flight records. Files are read as they
//! are; unknown fields are ignored and damaged lines of the event file skipped.

use crate::failure_record::{RecordedFailure, read_failure};
use crate::run_folder::load_recipe;
use crate::{RunFolder, TrainError};
use lockstep_config::Recipe;
use lockstep_platform::{FileError, FileKind, World};
use lockstep_telemetry::Event;
use lockstep_telemetry::json_lines::visit_events;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of flight records that this code reads.
const FLIGHT_VERSION: u32 = 1;

/// Longest trace that is read: the spans of sampled steps of some hundred ranks.
const MAX_TRACE_BYTES: u64 = 256 << 20;

/// Durations of tasks in seconds, with their actions, by rank and task id.
pub type TracedTasks = BTreeMap<usize, BTreeMap<u32, (String, f64)>>;

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
        let tasks = read_trace(&folder.trace(), world).unwrap_or_default();
        let failed = [crate::failure_record::FAILURE, "flight"].map(|name| path.join(name));
        let has_failed = failed.iter().any(|path| world.files().metadata(path).is_some());
        let failure = if has_failed { read_failure(path, world) } else { None };
        Ok(Self { folder, recipe, summary, tasks, failure })
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
}

/// Tasks of the last traced step, by rank.
fn read_trace(path: &Path, world: &World) -> Option<TracedTasks> {
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
    // Calls in the background have the task that issued them; passes run on the compute queue.
    let is_pass = |event: &&TraceEvent| {
        event.ph == "X" && ["forward", "backward", "recompute"].contains(&event.cat.as_str())
    };
    let last = trace.events.iter().filter(is_pass).filter_map(|event| event.args.step).max()?;
    let mut tasks = TracedTasks::new();
    for event in trace.events.iter().filter(is_pass) {
        if let (Some(step), Some(task)) = (event.args.step, event.args.task)
            && step == last
        {
            let of_rank = tasks.entry(event.pid).or_default();
            of_rank.insert(task, (event.name.clone(), event.dur * 1e-6));
        }
    }
    Some(tasks)
}

/// The flight record of one rank: its last calls.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the file")]
pub struct FlightRecord {
    pub version: u32,
    pub rank: usize,
    pub num_ranks: usize,
    /// Rank that wrote the file.
    pub written_by: usize,
    pub host: Option<String>,
    pub process: Option<u32>,
    pub culprit: Option<usize>,
    pub verdict: Option<String>,
    pub groups: Vec<FlightGroup>,
    pub calls: Vec<FlightCall>,
}

/// A group of a flight record.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the file")]
pub struct FlightGroup {
    pub id: u64,
    pub name: String,
    #[serde(rename = "group_size")]
    pub size: u64,
    pub first_rank: u64,
}

/// A call of a flight record.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "the fields are those of the file")]
pub struct FlightCall {
    pub group: u64,
    pub number: u64,
    #[serde(rename = "call")]
    pub what: String,
    pub message: bool,
    pub bytes: u64,
    pub label: String,
    pub start_ns: u64,
    pub state: String,
    pub end_ns: Option<u64>,
    pub done_bytes: Option<u64>,
}

/// Why flight records could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FlightError {
    /// The folder cannot be listed.
    #[error(transparent)]
    Folder(FileError),
    /// A record cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is no record, or of another version.
    #[error("{path}: {reason}")]
    Damaged {
        /// File.
        path: String,
        /// Reason.
        reason: String,
    },
}

/// Flight records of a run folder, or of a folder that holds them, by rank; empty without any.
pub fn read_flight_records(folder: &Path, world: &World) -> Result<Vec<FlightRecord>, FlightError> {
    let is_record = |path: &PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("flight-rank-"))
            && path.extension().is_some_and(|extension| extension == "json")
    };
    let list = |folder: &Path| -> Result<Vec<PathBuf>, FileError> {
        Ok(world.files().list(folder)?.into_iter().filter(is_record).collect())
    };
    let mut paths = list(folder).map_err(FlightError::Folder)?;
    if paths.is_empty() {
        paths = list(&folder.join("flight")).unwrap_or_default();
    }
    let records = paths.iter().map(|path| read_flight_record(path, world));
    let mut records = records.collect::<Result<Vec<_>, _>>()?;
    records.sort_by_key(|record| record.rank);
    Ok(records)
}

fn read_flight_record(path: &Path, world: &World) -> Result<FlightRecord, FlightError> {
    let text = world.files().read_to_string(path)?;
    let damaged =
        |reason: String| FlightError::Damaged { path: path.display().to_string(), reason };
    let record: FlightRecord = serde_json::from_str(&text)
        .map_err(|error| damaged(format!("not a flight record: {error}")))?;
    if record.version != FLIGHT_VERSION {
        let reason =
            format!("version {} is not supported; only {FLIGHT_VERSION} is", record.version);
        return Err(damaged(reason));
    }
    Ok(record)
}

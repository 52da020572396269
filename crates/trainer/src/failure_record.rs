//! Record of a failed run in its folder: `failure.json` with the reason.
//!
//! Rank 0 writes it as its last act. A rank 0 that was killed cannot; then the flight records of
//! the other ranks have the reason.

use crate::flight_record::flight_records;
use crate::{Options, TrainError};
use lockstep_config::Blame;
use lockstep_platform::{FileKind, World};
use lockstep_tensor::device::DeviceError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// File name of the record.
pub const FAILURE: &str = "failure.json";

/// Longest record that is read.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct Record {
    reason: String,
    exit_code: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
}

/// Failures that readers treat apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Loss or gradients were not finite.
    Diverged,
    /// Replicas that must be equal differed.
    ReplicasDiffer,
    /// The memory of a device was too small.
    OutOfMemory,
}

impl FailureKind {
    fn of(error: &TrainError) -> Option<Self> {
        match error {
            TrainError::ReplicasDiffer { .. } => Some(Self::ReplicasDiffer),
            TrainError::Device(DeviceError::OutOfMemory { .. }) => Some(Self::OutOfMemory),
            _ => (error.blame() == Blame::Diverged).then_some(Self::Diverged),
        }
    }
}

/// Failure of a past run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFailure {
    /// Error in one line.
    pub reason: String,
    /// Kind of the failure, if it is one that readers treat apart.
    pub kind: Option<FailureKind>,
}

/// The run folder, as soon as the run has one; the receiver of the options still gets it.
pub(crate) fn watch_run_folder(options: &mut Options) -> Arc<OnceLock<PathBuf>> {
    let folder = Arc::new(OnceLock::new());
    let (found, receiver) = (Arc::clone(&folder), options.on_run_folder.take());
    options.on_run_folder = Some(Box::new(move |path| {
        let _ = found.set(path.to_owned());
        if let Some(receive) = receiver {
            receive(path);
        }
    }));
    folder
}

/// Writes the record of a failed run. A stop on request is not a failure.
pub fn record_failure(folder: &Path, error: &TrainError, world: &World) {
    if matches!(error, TrainError::Interrupted { .. }) {
        return;
    }
    let (reason, exit_code) = (error.to_string(), error.blame().exit_code());
    let record = Record { reason, exit_code, kind: FailureKind::of(error) };
    let text = serde_json::to_vec_pretty(&record).expect("the record is JSON");
    // The caller reports the error itself, and a full disk may be its cause.
    let _ = world.files().write_atomic(&folder.join(FAILURE), &text);
}

/// Failure that a run folder records, if any.
pub fn read_failure(folder: &Path, world: &World) -> Option<RecordedFailure> {
    if let Some(Record { reason, exit_code, kind }) = read_record(&folder.join(FAILURE), world) {
        let has_diverged = exit_code == Blame::Diverged.exit_code();
        let kind = kind.or_else(|| has_diverged.then_some(FailureKind::Diverged));
        return Some(RecordedFailure { reason: one_line(&reason), kind });
    }
    world.files().metadata(&folder.join("flight"))?;
    // Ranks that were killed while they wrote leave damaged records; any other has the verdict.
    let mut records = flight_records(folder, world).ok()?.flatten();
    let verdict = records.find_map(|record| record.verdict);
    let reason = verdict.map_or_else(|| "no rank recorded a reason".to_owned(), |v| one_line(&v));
    Some(RecordedFailure { reason, kind: None })
}

fn read_record(path: &Path, world: &World) -> Option<Record> {
    match world.files().metadata(path)? {
        FileKind::File { bytes: 0..=MAX_RECORD_BYTES } => {}
        _ => return None,
    }
    serde_json::from_slice(&world.files().read(path).ok()?).ok()
}

/// Text of a file without line breaks and control characters, for a terminal.
fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

//! Record of a failed run in its folder: `failure.json` with the reason.
//!
//! Rank 0 writes it as its last act. A rank 0 that was killed cannot; then the flight records of
//! the other ranks have the reason.

use crate::{Options, TrainError};
use lockstep_config::Blame;
use lockstep_platform::{FileKind, World};
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
}

/// Part of a rank's flight record.
#[derive(Deserialize)]
struct FlightRecord {
    verdict: Option<String>,
}

/// Failure of a past run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedFailure {
    /// Error in one line.
    pub reason: String,
    /// Whether loss or gradients were not finite.
    pub is_diverged: bool,
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
    let record = Record { reason: error.to_string(), exit_code: error.blame().exit_code() };
    let text = serde_json::to_vec_pretty(&record).expect("the record is JSON");
    // The caller reports the error itself, and a full disk may be its cause.
    let _ = world.files().write_atomic(&folder.join(FAILURE), &text);
}

/// Failure that a run folder records, if any.
pub fn read_failure(folder: &Path, world: &World) -> Option<RecordedFailure> {
    if let Some(Record { reason, exit_code }) = read_record(&folder.join(FAILURE), world) {
        let is_diverged = exit_code == Blame::Diverged.exit_code();
        return Some(RecordedFailure { reason: one_line(&reason), is_diverged });
    }
    let records = world.files().list(&folder.join("flight")).ok()?;
    let verdict = records.iter().find_map(|path| read_record::<FlightRecord>(path, world)?.verdict);
    let reason = verdict.map_or_else(|| "no rank recorded a reason".to_owned(), |v| one_line(&v));
    Some(RecordedFailure { reason, is_diverged: false })
}

fn read_record<T: for<'a> Deserialize<'a>>(path: &Path, world: &World) -> Option<T> {
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

//! Flight records: the last calls of every rank of a run that failed.
//!
//! The one reader of these files: a run's failure, `lockstep doctor` and `lockstep explain` all
//! read them here. A folder may be copied from elsewhere, so lengths are bounded.

use lockstep_platform::{FileError, FileKind, World};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of flight records that this code reads.
const FLIGHT_VERSION: u32 = 1;

/// Longest record that is read: the calls of a ring buffer.
const MAX_RECORD_BYTES: u64 = 64 << 20;

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
/// A damaged record is an error.
pub fn read_flight_records(folder: &Path, world: &World) -> Result<Vec<FlightRecord>, FlightError> {
    let records = flight_records(folder, world).map_err(FlightError::Folder)?;
    let mut records = records.collect::<Result<Vec<_>, _>>()?;
    records.sort_by_key(|record| record.rank);
    Ok(records)
}

/// The records of a folder, one after the other.
pub(crate) fn flight_records<'a>(
    folder: &Path,
    world: &'a World,
) -> Result<impl Iterator<Item = Result<FlightRecord, FlightError>> + use<'a>, FileError> {
    let is_record = |path: &PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("flight-rank-"))
            && path.extension().is_some_and(|extension| extension == "json")
    };
    let list = |folder: &Path| -> Result<Vec<PathBuf>, FileError> {
        Ok(world.files().list(folder)?.into_iter().filter(is_record).collect())
    };
    let mut paths = list(folder)?;
    if paths.is_empty() {
        paths = list(&folder.join("flight")).unwrap_or_default();
    }
    Ok(paths.into_iter().map(|path| read_flight_record(&path, world)))
}

fn read_flight_record(path: &Path, world: &World) -> Result<FlightRecord, FlightError> {
    let damaged =
        |reason: String| FlightError::Damaged { path: path.display().to_string(), reason };
    if let Some(FileKind::File { bytes }) = world.files().metadata(path)
        && bytes > MAX_RECORD_BYTES
    {
        return Err(damaged(format!("{bytes} bytes are too many for a flight record")));
    }
    let text = world.files().read_to_string(path)?;
    let record: FlightRecord = serde_json::from_str(&text)
        .map_err(|error| damaged(format!("not a flight record: {error}")))?;
    if record.version != FLIGHT_VERSION {
        let reason =
            format!("version {} is not supported; only {FLIGHT_VERSION} is", record.version);
        return Err(damaged(reason));
    }
    Ok(record)
}

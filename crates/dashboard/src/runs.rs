//! The table of runs that a server shows. A run keeps its number while the server lives, and that
//! number is all that a request can name.

use crate::history::History;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most runs of a table.
pub const MAX_RUNS: usize = 64;

/// State of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// One word, such as `running`.
    pub name: String,
    /// Why it failed, if it did.
    pub reason: Option<String>,
}

/// Facts about a run that its events do not have. Absent ones are unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunInfo {
    /// Layout on one line.
    pub layout: Option<String>,
    /// Recipe as TOML.
    pub recipe: Option<String>,
    /// Settings of the layout, with names for people.
    pub settings: Vec<(String, String)>,
    /// Memory of each rank by purpose, as planned.
    pub planned_memory: Vec<PlannedMemory>,
    /// Bytes of a process that are predicted at its peak.
    pub planned_process_bytes: Option<u64>,
    /// Predicted step time.
    pub planned_step_seconds: Option<f64>,
    /// Bytes that all ranks send in a step, as planned.
    pub planned_wire_bytes: Option<u64>,
}

/// Memory of a rank by purpose, as planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedMemory {
    /// Rank.
    pub rank: usize,
    /// Purposes with their bytes.
    pub parts: Vec<(&'static str, u64)>,
}

/// Where runs are, and what the caller can compute about one. Calls may take seconds; they are
/// never made on the thread that serves connections.
pub trait Runs: Send + Sync {
    /// Folders of the runs, oldest first.
    fn folders(&self) -> Vec<PathBuf>;

    /// File of a run's events.
    fn events(&self, folder: &Path) -> PathBuf;

    /// State now.
    fn state(&self, folder: &Path) -> State;

    /// Facts beyond its events.
    fn info(&self, folder: &Path) -> RunInfo;

    /// Diagnosis, as `lockstep explain --json` prints it, or why there is none.
    fn explain(&self, folder: &Path) -> Result<Value, String>;

    /// Planned program of a step: tracks of a rank with their spans, or why there is none.
    fn planned_step(&self, folder: &Path) -> Result<Value, String>;
}

/// A run of the table.
#[derive(Debug)]
pub struct Run {
    /// Folder.
    pub folder: PathBuf,
    /// Name for people.
    pub name: String,
    /// State.
    pub state: State,
    /// Facts beyond its events.
    pub info: RunInfo,
    /// Its events so far.
    pub history: History,
    /// Whether its file was read to the end once.
    pub is_read: bool,
    /// Changes with every change of the run.
    pub version: u64,
}

/// Shared table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    runs: Arc<Mutex<Vec<Run>>>,
}

impl Table {
    /// Access to the runs. Hold it for memory operations only.
    pub fn lock(&self) -> MutexGuard<'_, Vec<Run>> {
        // No code can panic in the middle of a change, so a poisoned lock is sound.
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run with a name that no other has; false if it is there already or none fits.
    pub fn add(&self, folder: &Path, info: RunInfo, state: State) -> bool {
        let mut runs = self.lock();
        if runs.len() == MAX_RUNS || runs.iter().any(|run| run.folder == folder) {
            return false;
        }
        let name = name_of(folder, &runs);
        let history = History::default();
        let folder = folder.to_owned();
        runs.push(Run { folder, name, state, info, history, is_read: false, version: 0 });
        true
    }
}

/// The last part of the path, or the whole path where another run has that name.
fn name_of(folder: &Path, runs: &[Run]) -> String {
    let whole = folder.display().to_string();
    let short = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    short.filter(|name| runs.iter().all(|run| run.name != *name)).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_unique_and_the_table_is_bounded() {
        let table = Table::default();
        let state = || State { name: "running".to_owned(), reason: None };
        let add = |path: &str| table.add(Path::new(path), RunInfo::default(), state());
        assert!(add("runs/0001") && add("other/0001") && !add("runs/0001"));
        let names: Vec<String> = table.lock().iter().map(|run| run.name.clone()).collect();
        assert_eq!(names, ["0001", "other/0001"]);
        for number in 0..2 * MAX_RUNS {
            add(&format!("more/{number}"));
        }
        assert_eq!(table.lock().len(), MAX_RUNS);
    }
}

//! The folder of a sweep: its identity and the outcome of each run.
//!
//! ```text
//! sweep/sweep.json      the search space; the same command resumes the sweep
//!       owner           process id of the running sweep
//!       0001/           run directory of the first run
//!       0001.json       its outcome; a run without this file is not done
//!       0002.partial/   run directory of a killed run, until it has resumed from its checkpoint
//!       0003-rung1/     with --halving, each rung has its own folder
//! ```
//!
//! Files are written atomically, so a sweep can be killed at any moment. The table is made from
//! these files alone, so an interrupted sweep ends with the same table.

use crate::error::SweepError;
use crate::outcome::Outcome;
use crate::plan::{Plan, Run};
use lockstep_checkpoint::sharded;
use lockstep_platform::{FileKind, ProcessState, World};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// Identity of a sweep.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Identity {
    version: u32,
    keys: Vec<String>,
    by: String,
    eta: u64,
    runs: Vec<Run>,
}

/// The open folder of a sweep.
pub struct Store<'a> {
    world: &'a World,
    dir: PathBuf,
    has_rungs: bool,
}

impl<'a> Store<'a> {
    /// Opens the folder of this sweep or creates it; refuses any other folder.
    pub fn open(world: &'a World, dir: &Path, plan: &Plan) -> Result<Self, SweepError> {
        let store = Self { world, dir: dir.to_owned(), has_rungs: plan.rungs.len() > 1 };
        let shown = dir.display();
        let path = dir.join("sweep.json");
        let requested = Identity {
            version: VERSION,
            keys: plan.keys.clone(),
            by: plan.by.name().to_owned(),
            eta: plan.eta,
            runs: plan.runs.clone(),
        };
        match world.files().metadata(dir) {
            Some(FileKind::File { .. }) => {
                return Err(refuse(format!("{shown} is a file")));
            }
            Some(FileKind::Directory) if world.files().metadata(&path).is_some() => {
                let found: Identity = store.read(&path)?;
                if let Some(difference) = difference(&found, &requested) {
                    return Err(refuse(format!("{shown} holds another sweep: {difference}")));
                }
            }
            Some(FileKind::Directory) if !world.files().list(dir)?.is_empty() => {
                return Err(refuse(format!("{shown} is not empty and is not a sweep's folder")));
            }
            _ => world.files().create_dir_all(dir)?,
        }
        store.acquire()?;
        store.write(&path, &requested)?;
        Ok(store)
    }

    /// Takes ownership; refuses while another sweep process owns the folder.
    fn acquire(&self) -> Result<(), SweepError> {
        let path = self.dir.join("owner");
        let processes = self.world.processes();
        let owner = self.world.files().read_to_string(&path).unwrap_or_default();
        if let Some(owner) = owner.trim().parse::<u32>().ok().filter(|id| *id != processes.own_id())
        {
            let line = PathBuf::from(format!("/proc/{owner}/cmdline"));
            let line = self.world.files().read(&line).unwrap_or_default();
            let mut arguments = line.split(|byte| *byte == 0);
            let is_sweep = arguments.any(|one| one == b"sweep" || one == b"methods");
            if is_sweep && processes.state(owner) == Some(ProcessState::Alive) {
                let dir = self.dir.display();
                let reason = format!("process {owner} runs the sweep in {dir}");
                let fix = "wait for it, or choose another --out";
                return Err(SweepError::Folder { reason, fix });
            }
        }
        let id = processes.own_id().to_string();
        Ok(self.world.files().write_atomic(&path, id.as_bytes())?)
    }

    /// Releases ownership.
    pub fn release(&self) -> Result<(), SweepError> {
        Ok(self.world.files().remove_file(&self.dir.join("owner"))?)
    }

    /// The run directory of a run.
    pub fn run_dir(&self, run: &Run, rung: usize) -> PathBuf {
        if self.has_rungs {
            return self.dir.join(format!("{}-rung{}", run.name, rung + 1));
        }
        self.dir.join(&run.name)
    }

    fn record_path(&self, run: &Run, rung: usize) -> PathBuf {
        self.run_dir(run, rung).with_extension("json")
    }

    /// The outcome of a run, if it is done. A run with a summary but no record is recorded now.
    pub fn outcome(&self, run: &Run, rung: usize) -> Result<Option<Outcome>, SweepError> {
        let record = self.record_path(run, rung);
        if self.exists(&record) {
            return self.read(&record).map(Some);
        }
        if !self.exists(&self.run_dir(run, rung).join("summary.json")) {
            return Ok(None);
        }
        self.finish(run, rung).map(Some)
    }

    /// Records a finished run from its summary.
    pub fn finish(&self, run: &Run, rung: usize) -> Result<Outcome, SweepError> {
        let summary: Value = self.read(&self.run_dir(run, rung).join("summary.json"))?;
        self.record(run, rung, &Outcome::from_summary(&summary))
    }

    /// Records an outcome and reads it back, so that results never differ from the files.
    pub fn record(&self, run: &Run, rung: usize, outcome: &Outcome) -> Result<Outcome, SweepError> {
        let record = self.record_path(run, rung);
        self.write(&record, outcome)?;
        self.remove(&self.partial(run, rung))?;
        self.read(&record)
    }

    /// Frees the run directory of a run. Returns the checkpoints of a killed run to resume from;
    /// without any, its files are removed.
    pub fn prepare(&self, run: &Run, rung: usize) -> Result<Option<PathBuf>, SweepError> {
        let (dir, partial) = (self.run_dir(run, rung), self.partial(run, rung));
        if self.exists(&dir) {
            let checkpoints = sharded::Store::new(self.world, &dir.join("checkpoints")).steps();
            if checkpoints.is_ok_and(|steps| !steps.is_empty()) {
                // It is newer than the one that it resumed from itself.
                self.remove(&partial)?;
                self.world.files().rename(&dir, &partial)?;
            } else {
                self.remove(&dir)?;
            }
        }
        Ok(self.exists(&partial).then(|| partial.join("checkpoints")))
    }

    fn partial(&self, run: &Run, rung: usize) -> PathBuf {
        self.run_dir(run, rung).with_extension("partial")
    }

    fn exists(&self, path: &Path) -> bool {
        self.world.files().metadata(path).is_some()
    }

    fn remove(&self, dir: &Path) -> Result<(), SweepError> {
        if self.exists(dir) {
            self.world.files().remove_dir_all(dir)?;
        }
        Ok(())
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, path: &Path) -> Result<T, SweepError> {
        let text = self.world.files().read_to_string(path)?;
        serde_json::from_str(&text).map_err(|error| SweepError::Damaged {
            path: path.to_owned(),
            error: error.to_string(),
        })
    }

    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), SweepError> {
        let json = serde_json::to_string_pretty(value).expect("our values are JSON") + "\n";
        Ok(self.world.files().write_atomic(path, json.as_bytes())?)
    }
}

fn refuse(reason: String) -> SweepError {
    SweepError::Folder { reason, fix: "choose another --out" }
}

/// The first difference between two sweeps. A sweep without halving may grow: finished runs stay
/// valid. With halving each result depends on all runs.
fn difference(found: &Identity, requested: &Identity) -> Option<String> {
    if found.version != requested.version {
        return Some(format!("its version is {}, not {VERSION}", found.version));
    }
    if found.keys != requested.keys {
        return Some(format!("it is over {}", found.keys.join(", ")));
    }
    if found.eta != requested.eta || (found.by != requested.by && requested.eta > 1) {
        return Some(format!("it was started with --halving {} --by {}", found.eta, found.by));
    }
    let pairs = found.runs.iter().zip(&requested.runs);
    let is_other = |(found, requested): &(&Run, &Run)| {
        found.values != requested.values || found.name != requested.name
    };
    if let Some((other, _)) = pairs.clone().find(is_other) {
        return Some(format!("its run {} is {}", other.name, other.sets(&found.keys).join(" ")));
    }
    if let Some((other, _)) = pairs.clone().find(|(found, requested)| found != requested) {
        return Some(format!("the recipe of run {} differs", other.name));
    }
    let (old, new) = (found.runs.len(), requested.runs.len());
    (old > new || (old < new && requested.eta > 1)).then(|| format!("it has {old} runs, not {new}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(num_runs: usize, eta: u64) -> Identity {
        let run = |index: usize| Run {
            name: format!("{:04}", index + 1),
            values: vec![format!("{index}")],
            also: Vec::new(),
            steps: 10,
            recipe_hash: "ab".to_owned(),
        };
        Identity {
            version: VERSION,
            keys: vec!["optim.lr".to_owned()],
            by: "validation_loss".to_owned(),
            eta,
            runs: (0..num_runs).map(run).collect(),
        }
    }

    #[test]
    fn a_sweep_may_grow_but_not_change() {
        assert_eq!(difference(&identity(3, 1), &identity(3, 1)), None);
        assert_eq!(difference(&identity(3, 1), &identity(5, 1)), None);
        let first =
            |found: &Identity, requested: &Identity| difference(found, requested).expect("one");
        assert_eq!(first(&identity(5, 1), &identity(3, 1)), "it has 5 runs, not 3");
        assert_eq!(first(&identity(3, 2), &identity(5, 2)), "it has 3 runs, not 5");
        assert!(first(&identity(3, 1), &identity(3, 2)).contains("--halving 1"));
        let mut other = identity(3, 1);
        other.runs[1].values[0] = "7".to_owned();
        assert_eq!(first(&identity(3, 1), &other), "its run 0002 is optim.lr=1");
        let mut other = identity(3, 1);
        other.runs[2].recipe_hash = "cd".to_owned();
        assert_eq!(first(&identity(3, 1), &other), "the recipe of run 0003 differs");
        let mut other = identity(3, 1);
        other.by = "final_loss".to_owned();
        assert_eq!(difference(&identity(3, 1), &other), None, "every figure is recorded");
    }
}

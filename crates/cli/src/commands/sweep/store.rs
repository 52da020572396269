//! The folder of a sweep: what it is, and what came of each run so far.
//!
//! ```text
//! sweep/sweep.json      what is searched; the same command finds it and goes on
//!       owner           the process that works here
//!       0001/           the folder of the first run, as of any run
//!       0001.json       what came of it; without this file it is not done
//!       0002.partial/   what a killed run left, until it has gone on from its checkpoint
//!       0003-rung1/     with --halving, each rung has a folder of its own
//! ```
//!
//! Every file appears whole or not at all, so a sweep can be killed at any moment. The table is
//! made from these files alone, hence it is the same however often that happened.

use super::plan::{Plan, Run};
use crate::failure::Failure;
use lockstep_checkpoint::sharded;
use lockstep_config::Blame;
use lockstep_platform::{FileKind, ProcessState, World};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// The figures that are kept of a summary.
const FIGURES: &[&str] = &[
    "validation_loss",
    "final_loss",
    "suboptimality",
    "distance",
    "accuracy",
    "tokens",
    "wire_bytes",
    "seconds",
    "step_seconds_median",
    "tokens_per_second",
    "peak_rss_bytes",
    "train_seconds",
    "moved_bytes",
    "emulated_late_seconds",
    "slow_rank",
    "slow_factor",
];

/// What a folder is for.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Identity {
    version: u32,
    keys: Vec<String>,
    by: String,
    eta: u64,
    runs: Vec<Run>,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) status: Status,
    /// Steps that were done.
    pub(super) steps: u64,
    /// The last words of a run that diverged.
    pub(super) words: String,
    pub(super) figures: BTreeMap<String, f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Done,
    Diverged,
}

impl Outcome {
    /// Of a run that left the finite numbers, by its last words.
    pub(super) fn diverged(words: &str) -> Self {
        let number = words.split("at step ").nth(1).unwrap_or_default();
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        let (steps, words) = (digits.parse().unwrap_or(0), words.to_owned());
        Self { status: Status::Diverged, steps, words, figures: BTreeMap::new() }
    }

    fn of_summary(summary: &Value) -> Self {
        let figure = |name: &&str| Some(((*name).to_owned(), summary.get(*name)?.as_f64()?));
        Self {
            status: Status::Done,
            steps: summary["steps"].as_u64().unwrap_or(0),
            words: String::new(),
            figures: FIGURES.iter().filter_map(figure).collect(),
        }
    }
}

/// See the module's text.
pub(super) struct Store<'a> {
    world: &'a World,
    dir: PathBuf,
    has_rungs: bool,
}

impl<'a> Store<'a> {
    /// Opens the folder of this sweep, or begins it; refuses one of anything else.
    pub(super) fn open(world: &'a World, dir: &Path, plan: &Plan) -> Result<Self, Failure> {
        let store = Self { world, dir: dir.to_owned(), has_rungs: plan.rungs.len() > 1 };
        let shown = dir.display();
        let path = dir.join("sweep.json");
        let wanted = Identity {
            version: VERSION,
            keys: plan.keys.clone(),
            by: plan.by.name().to_owned(),
            eta: plan.eta,
            runs: plan.runs.clone(),
        };
        match world.files().metadata(dir) {
            Some(FileKind::File { .. }) => {
                return Err(Failure::user(format!("{shown} is a file; choose another --out")));
            }
            Some(FileKind::Directory) if world.files().metadata(&path).is_some() => {
                let found: Identity = store.read(&path)?;
                if let Some(difference) = difference(&found, &wanted) {
                    let rule = format!("{shown} holds another sweep: {difference}");
                    return Err(Failure::user(format!("{rule}; choose another --out")));
                }
            }
            Some(FileKind::Directory) if !world.files().list(dir)?.is_empty() => {
                let rule = format!("{shown} is not empty and no sweep's folder");
                return Err(Failure::user(format!("{rule}; choose another --out")));
            }
            _ => world.files().create_dir_all(dir)?,
        }
        store.take()?;
        store.write(&path, &wanted)?;
        Ok(store)
    }

    /// Refuses to work beside another process, whose runs would be taken for leftovers.
    fn take(&self) -> Result<(), Failure> {
        let path = self.dir.join("owner");
        let processes = self.world.processes();
        let owner = self.world.files().read_to_string(&path).unwrap_or_default();
        if let Some(owner) = owner.trim().parse::<u32>().ok().filter(|id| *id != processes.own_id())
        {
            let line = PathBuf::from(format!("/proc/{owner}/cmdline"));
            let line = self.world.files().read(&line).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let is_sweep = words.any(|word| word == b"sweep" || word == b"methods");
            if is_sweep && processes.state(owner) == Some(ProcessState::Alive) {
                let dir = self.dir.display();
                let rule = format!("process {owner} works on the sweep in {dir}");
                return Err(Failure::user(format!("{rule}; wait for it, or choose another --out")));
            }
        }
        let id = processes.own_id().to_string();
        Ok(self.world.files().write_atomic(&path, id.as_bytes())?)
    }

    /// Nobody works here any more.
    pub(super) fn leave(&self) -> Result<(), Failure> {
        Ok(self.world.files().remove_file(&self.dir.join("owner"))?)
    }

    /// The folder of a run.
    pub(super) fn run_dir(&self, run: &Run, rung: usize) -> PathBuf {
        if self.has_rungs {
            return self.dir.join(format!("{}-rung{}", run.name, rung + 1));
        }
        self.dir.join(&run.name)
    }

    fn record(&self, run: &Run, rung: usize) -> PathBuf {
        self.run_dir(run, rung).with_extension("json")
    }

    /// What came of a run, if it is done. One that ended without anybody to take note is, too.
    pub(super) fn outcome(&self, run: &Run, rung: usize) -> Result<Option<Outcome>, Failure> {
        let record = self.record(run, rung);
        if self.is_there(&record) {
            return self.read(&record).map(Some);
        }
        if !self.is_there(&self.run_dir(run, rung).join("summary.json")) {
            return Ok(None);
        }
        self.finish(run, rung).map(Some)
    }

    /// Takes note of a run that has ended with a result.
    pub(super) fn finish(&self, run: &Run, rung: usize) -> Result<Outcome, Failure> {
        let summary: Value = self.read(&self.run_dir(run, rung).join("summary.json"))?;
        self.keep(run, rung, &Outcome::of_summary(&summary))
    }

    /// Takes note of what came of a run, and gives back what the files say from now on.
    pub(super) fn keep(
        &self,
        run: &Run,
        rung: usize,
        outcome: &Outcome,
    ) -> Result<Outcome, Failure> {
        let record = self.record(run, rung);
        self.write(&record, outcome)?;
        self.remove(&self.partial(run, rung))?;
        self.read(&record)
    }

    /// Makes the folder of a run free. What a killed run left goes on from its newest checkpoint,
    /// if it has one: that is given back. Otherwise it begins again.
    pub(super) fn make_room(&self, run: &Run, rung: usize) -> Result<Option<PathBuf>, Failure> {
        let (dir, partial) = (self.run_dir(run, rung), self.partial(run, rung));
        if self.is_there(&dir) {
            let checkpoints = sharded::Store::new(self.world, &dir.join("checkpoints")).steps();
            if checkpoints.is_ok_and(|steps| !steps.is_empty()) {
                // Newer than what it went on from itself.
                self.remove(&partial)?;
                self.world.files().rename(&dir, &partial)?;
            } else {
                self.remove(&dir)?;
            }
        }
        Ok(self.is_there(&partial).then(|| partial.join("checkpoints")))
    }

    fn partial(&self, run: &Run, rung: usize) -> PathBuf {
        self.run_dir(run, rung).with_extension("partial")
    }

    fn is_there(&self, path: &Path) -> bool {
        self.world.files().metadata(path).is_some()
    }

    fn remove(&self, dir: &Path) -> Result<(), Failure> {
        if self.is_there(dir) {
            self.world.files().remove_dir_all(dir)?;
        }
        Ok(())
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, path: &Path) -> Result<T, Failure> {
        let text = self.world.files().read_to_string(path)?;
        serde_json::from_str(&text).map_err(|error| {
            let line = format!("{} is damaged: {error}; remove it to go on", path.display());
            Failure::new(Blame::Storage, line)
        })
    }

    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(value).expect("our values are JSON") + "\n";
        Ok(self.world.files().write_atomic(path, json.as_bytes())?)
    }
}

/// In what a sweep is another one. More runs of a plain search are no difference: those that are
/// done stay done. With rungs each result depends on all.
fn difference(found: &Identity, wanted: &Identity) -> Option<String> {
    if found.version != wanted.version {
        return Some(format!("its version is {}, not {VERSION}", found.version));
    }
    if found.keys != wanted.keys {
        return Some(format!("it is over {}", found.keys.join(", ")));
    }
    if found.eta != wanted.eta || (found.by != wanted.by && wanted.eta > 1) {
        return Some(format!("it was begun with --halving {} --by {}", found.eta, found.by));
    }
    let pairs = found.runs.iter().zip(&wanted.runs);
    let is_other =
        |(found, wanted): &(&Run, &Run)| found.values != wanted.values || found.name != wanted.name;
    if let Some((other, _)) = pairs.clone().find(is_other) {
        return Some(format!("its run {} is {}", other.name, other.sets(&found.keys).join(" ")));
    }
    if let Some((other, _)) = pairs.clone().find(|(found, wanted)| found != wanted) {
        return Some(format!("the recipe of run {} was another", other.name));
    }
    let (old, new) = (found.runs.len(), wanted.runs.len());
    (old > new || (old < new && wanted.eta > 1)).then(|| format!("it has {old} runs, not {new}"))
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
    fn a_sweep_may_grow_but_not_become_another() {
        assert_eq!(difference(&identity(3, 1), &identity(3, 1)), None);
        assert_eq!(difference(&identity(3, 1), &identity(5, 1)), None);
        let says = |found: &Identity, wanted: &Identity| difference(found, wanted).expect("one");
        assert_eq!(says(&identity(5, 1), &identity(3, 1)), "it has 5 runs, not 3");
        assert_eq!(says(&identity(3, 2), &identity(5, 2)), "it has 3 runs, not 5");
        assert!(says(&identity(3, 1), &identity(3, 2)).contains("--halving 1"));
        let mut other = identity(3, 1);
        other.runs[1].values[0] = "7".to_owned();
        assert_eq!(says(&identity(3, 1), &other), "its run 0002 is optim.lr=1");
        let mut other = identity(3, 1);
        other.runs[2].recipe_hash = "cd".to_owned();
        assert_eq!(says(&identity(3, 1), &other), "the recipe of run 0003 was another");
        let mut other = identity(3, 1);
        other.by = "final_loss".to_owned();
        assert_eq!(difference(&identity(3, 1), &other), None, "all figures are kept");
    }

    #[test]
    fn the_step_of_a_divergence_is_found_in_its_words() {
        let outcome = Outcome::diverged("loss became inf at step 17 (rank 0); lower optim.lr");
        assert_eq!((outcome.steps, outcome.status), (17, Status::Diverged));
        assert_eq!(Outcome::diverged("no number").steps, 0);
    }
}

//! Checkpoint store of a run: writing, listing and retention.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockstep_platform::{Deadline, FileKind, World};

use super::manifest::{Manifest, Position};
use super::rank_shard::RankShard;
use super::{Reader, Snapshot};
use crate::CheckpointError;

/// File with the number of the attempt that may write.
const GENERATION: &str = "generation";

/// Interval of polling for the shards of other ranks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Time to wait for the shards of other ranks before an abandoned checkpoint is removed.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// A folder of checkpoints.
#[derive(Clone)]
pub struct Store {
    world: World,
    dir: PathBuf,
}

/// Write access of a rank to a store, until a newer attempt takes over.
#[derive(Clone)]
pub struct Writer {
    store: Store,
    generation: u64,
    rank: usize,
    is_packed: bool,
}

/// Parameters of a commit by the first rank.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Position in the run.
    pub position: Position,
    /// Time limit for the shards of other ranks.
    pub timeout: Duration,
    /// Number of checkpoints to keep.
    pub keep: usize,
}

impl Store {
    /// The store in this folder, which need not exist.
    pub fn new(world: &World, dir: &Path) -> Self {
        Self { world: Arc::clone(world), dir: dir.to_owned() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Steps of all checkpoints, valid or not, newest first.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        if self.world.files().metadata(&self.dir) != Some(FileKind::Directory) {
            return Ok(Vec::new());
        }
        let paths = self.world.files().list(&self.dir)?;
        let mut steps: Vec<u64> = paths.iter().filter_map(|path| step_of(path)).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// Opens the checkpoint of a step.
    pub fn open(&self, step: u64) -> Result<Reader, CheckpointError> {
        let folder = self.folder(step);
        let reader = Reader::open(&self.world, &folder)?;
        let found = reader.manifest().position.step;
        if found != step {
            let reason = format!("its manifest is of step {found}");
            return Err(CheckpointError::BadCheckpoint { path: folder, reason });
        }
        Ok(reader)
    }

    /// Folder of the checkpoint of a step.
    pub fn folder(&self, step: u64) -> PathBuf {
        self.dir.join(format!("step-{step:08}"))
    }

    /// Starts a new attempt and returns its number; older attempts can no longer finish a
    /// checkpoint, and their unfinished ones are removed. One rank does this and broadcasts the
    /// number.
    pub fn take_over(&self) -> Result<u64, CheckpointError> {
        let files = self.world.files();
        files.create_dir_all(&self.dir)?;
        let generation = self.generation()? + 1;
        files.write_atomic(&self.dir.join(GENERATION), format!("{generation}\n").as_bytes())?;
        for path in files.list(&self.dir)? {
            if generation_of(&path).is_some_and(|older| older < generation) {
                let mut gone = path.clone().into_os_string();
                gone.push(".gone");
                self.remove(&path, Path::new(&gone))?;
            }
        }
        Ok(generation)
    }

    /// Write access of a rank in the attempt with this number.
    pub fn writer(&self, generation: u64, rank: usize) -> Writer {
        Writer { store: self.clone(), generation, rank, is_packed: false }
    }

    /// Number of the newest attempt; 0 if there was none.
    fn generation(&self) -> Result<u64, CheckpointError> {
        let path = self.dir.join(GENERATION);
        if self.world.files().metadata(&path).is_none() {
            return Ok(0);
        }
        let text = self.world.files().read_to_string(&path)?;
        text.trim().parse().map_err(|_| {
            let reason = "its file `generation` holds no number".to_owned();
            CheckpointError::BadCheckpoint { path: self.dir.clone(), reason }
        })
    }

    /// Removes all checkpoints older than the newest `keep` complete ones.
    fn retain(&self, keep: usize, generation: u64) -> Result<(), CheckpointError> {
        let mut num_whole = 0;
        for step in self.steps()? {
            if num_whole < keep {
                num_whole += usize::from(self.open(step).is_ok());
                continue;
            }
            self.remove(&self.folder(step), &self.hidden(step, generation, "gone"))?;
        }
        Ok(())
    }

    /// Removes a folder, which an older attempt may rename or remove at the same time. It is
    /// renamed first: one of both renames succeeds, and no partial removal can be mistaken for a
    /// checkpoint.
    fn remove(&self, folder: &Path, gone: &Path) -> Result<(), CheckpointError> {
        match self.world.files().rename(folder, gone) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            renamed => {
                renamed?;
                Ok(self.world.files().remove_dir_all(gone)?)
            }
        }
    }

    fn hidden(&self, step: u64, generation: u64, what: &str) -> PathBuf {
        self.dir.join(format!(".step-{step:08}.g{generation}.{what}"))
    }
}

impl Writer {
    /// Sets whether shards are compressed with zstd.
    pub fn packing(self, is_packed: bool) -> Self {
        Self { is_packed, ..self }
    }

    /// Number of this attempt.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Writes the shard of this rank for the checkpoint of a step.
    pub fn write(&self, step: u64, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        let folder = self.partial(step);
        self.begin(&folder).map_err(|error| self.unsaved(step, error))?;
        let (world, rank) = (&self.store.world, self.rank);
        let written = RankShard::write(world, &folder, rank, snapshot, self.is_packed);
        written.map_err(|error| {
            RankShard::report_failure(world, &folder, rank, &error.to_string());
            self.unsaved(step, error)
        })
    }

    /// Commits the checkpoint once the shards of `num_ranks` ranks are complete, and removes older
    /// checkpoints. One rank does this.
    pub fn commit(&self, num_ranks: usize, commit: Commit) -> Result<(), CheckpointError> {
        let step = commit.position.step;
        let done = self.try_commit(num_ranks, commit);
        done.map_err(|error| {
            // The first error is the one worth reporting.
            let _ = self.store.world.files().remove_dir_all(&self.partial(step));
            self.unsaved(step, error)
        })
    }

    /// Removes a checkpoint that cannot be completed, once the other ranks have written their
    /// shards or failed, or after a timeout. The committing rank does this.
    pub fn abandon(&self, step: u64, num_ranks: usize) {
        let (world, folder) = (&self.store.world, self.partial(step));
        let deadline = Deadline::after(world.clock(), ABANDON_TIMEOUT);
        for rank in 0..num_ranks {
            let is_pending = || matches!(RankShard::read(world, &folder, rank), Ok(None));
            while is_pending() && !deadline.has_passed(world.clock()) {
                world.clock().sleep(POLL_INTERVAL);
            }
        }
        // The checkpoint has failed already; the next attempt removes what remains.
        let _ = world.files().remove_dir_all(&folder);
    }

    /// Creates the folder, then checks that no newer attempt has taken over.
    fn begin(&self, folder: &Path) -> Result<(), CheckpointError> {
        self.store.world.files().create_dir_all(folder)?;
        let newer = self.store.generation()?;
        if newer == self.generation {
            return Ok(());
        }
        // A newer attempt that took over before the folder existed did not remove it.
        let _ = self.store.world.files().remove_dir_all(folder);
        Err(CheckpointError::Superseded { generation: self.generation, newer })
    }

    fn try_commit(&self, num_ranks: usize, commit: Commit) -> Result<(), CheckpointError> {
        let (store, world) = (&self.store, &self.store.world);
        let step = commit.position.step;
        let folder = self.partial(step);
        let parts = self.wait_for_shards(&folder, num_ranks, commit.timeout)?;
        (0..num_ranks).try_for_each(|rank| RankShard::remove_status(world, &folder, rank))?;
        RankShard::join(parts, self.generation, commit.position).save(world, &folder)?;
        if world.files().metadata(&store.folder(step)).is_some() {
            // The step was saved before: a valid checkpoint is equal, an invalid one is replaced.
            if store.open(step).and_then(|reader| reader.verify_all()).is_ok() {
                return Ok(world.files().remove_dir_all(&folder)?);
            }
            let gone = store.hidden(step, self.generation, "gone");
            store.remove(&store.folder(step), &gone)?;
        }
        world.files().rename(&folder, &store.folder(step))?;
        // Older checkpoints are removed only after the new one was read back.
        store.open(step)?;
        store.retain(commit.keep, self.generation)
    }

    fn wait_for_shards(
        &self,
        folder: &Path,
        num_ranks: usize,
        timeout: Duration,
    ) -> Result<Vec<RankShard>, CheckpointError> {
        let world = &self.store.world;
        let deadline = Deadline::after(world.clock(), timeout);
        let mut parts = Vec::with_capacity(num_ranks);
        while parts.len() < num_ranks {
            let rank = parts.len();
            if let Some(part) = RankShard::read(world, folder, rank)? {
                parts.push(part);
            } else if deadline.has_passed(world.clock()) {
                return Err(CheckpointError::ShardTimeout { rank, seconds: timeout.as_secs() });
            } else {
                world.clock().sleep(POLL_INTERVAL);
            }
        }
        Ok(parts)
    }

    fn partial(&self, step: u64) -> PathBuf {
        self.store.hidden(step, self.generation, "partial")
    }

    fn unsaved(&self, step: u64, error: CheckpointError) -> CheckpointError {
        match error {
            // These are not storage failures.
            CheckpointError::Superseded { .. } | CheckpointError::Diverged { .. } => error,
            error => {
                let is_valid = |step: &u64| self.store.open(*step).is_ok();
                let newest = self.store.steps().ok().and_then(|all| all.into_iter().find(is_valid));
                let newest = newest.map_or_else(
                    || "there is none yet".to_owned(),
                    |newest| {
                        format!("the newest whole one is {}", self.store.folder(newest).display())
                    },
                );
                CheckpointError::NotSaved { step, reason: error.to_string(), newest }
            }
        }
    }
}

impl Manifest {
    /// Size of all files.
    pub fn num_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// Attempt of a hidden folder.
fn generation_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_prefix(".step-")?;
    let mut parts = name.split('.');
    parts.nth(1)?.strip_prefix('g')?.parse().ok()
}

//! The folder of a run's checkpoints: writing the next, finding the newest, keeping a few.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockstep_platform::{Deadline, FileKind, World};

use super::manifest::{Manifest, Position};
use super::part::Part;
use super::{Reader, Snapshot};
use crate::CheckpointError;

/// The file with the number of the life that may write.
const GENERATION: &str = "generation";

/// Between two looks for the parts of others.
const LOOK: Duration = Duration::from_millis(5);

/// How long the parts of others are waited for, to be removed.
const ABANDONING: Duration = Duration::from_secs(1);

/// A folder of checkpoints.
#[derive(Clone)]
pub struct Store {
    world: World,
    dir: PathBuf,
}

/// A worker's right to write into a store, until somebody else takes over.
#[derive(Clone)]
pub struct Writer {
    store: Store,
    generation: u64,
    rank: usize,
    is_packed: bool,
}

/// What the first worker makes a checkpoint of.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Where in the run.
    pub position: Position,
    /// How long parts of other workers may take.
    pub patience: Duration,
    /// How many checkpoints stay.
    pub keep: usize,
}

impl Store {
    /// The checkpoints in this folder, which need not exist.
    pub fn new(world: &World, dir: &Path) -> Self {
        Self { world: Arc::clone(world), dir: dir.to_owned() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The steps of all checkpoints, sound or not, newest first.
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

    /// Where the checkpoint of a step lies.
    pub fn folder(&self, step: u64) -> PathBuf {
        self.dir.join(format!("step-{step:08}"))
    }

    /// Takes over: the number of a new life, after which no older one can finish a checkpoint.
    /// Whatever older ones left unfinished is removed. One worker does so, and tells the others.
    pub fn take_over(&self) -> Result<u64, CheckpointError> {
        let files = self.world.files();
        files.create_dir_all(&self.dir)?;
        let generation = self.generation()? + 1;
        files.write_atomic(&self.dir.join(GENERATION), format!("{generation}\n").as_bytes())?;
        for path in files.list(&self.dir)? {
            let is_older = generation_of(&path).is_some_and(|older| older < generation);
            if is_older {
                files.remove_dir_all(&path)?;
            }
        }
        Ok(generation)
    }

    /// A worker's end of the life with this number.
    pub fn writer(&self, generation: u64, rank: usize) -> Writer {
        Writer { store: self.clone(), generation, rank, is_packed: false }
    }

    /// The number of the newest life; 0 where there was none.
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

    /// Removes all checkpoints but the newest `keep` that are whole, and what is newer than those.
    fn retain(&self, keep: usize, generation: u64) -> Result<(), CheckpointError> {
        let mut num_whole = 0;
        for step in self.steps()? {
            if num_whole < keep {
                num_whole += usize::from(self.open(step).is_ok());
                continue;
            }
            // Its name goes first, so that no half of it can ever be taken for a checkpoint.
            let gone = self.hidden(step, generation, "gone");
            self.world.files().rename(&self.folder(step), &gone)?;
            self.world.files().remove_dir_all(&gone)?;
        }
        Ok(())
    }

    fn hidden(&self, step: u64, generation: u64, what: &str) -> PathBuf {
        self.dir.join(format!(".step-{step:08}.g{generation}.{what}"))
    }
}

impl Writer {
    /// The same, packing what it writes with zstd or not.
    pub fn packing(self, is_packed: bool) -> Self {
        Self { is_packed, ..self }
    }

    /// The number of this life.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Writes this worker's part of the checkpoint of a step.
    pub fn write(&self, step: u64, snapshot: &Snapshot) -> Result<(), CheckpointError> {
        let folder = self.partial(step);
        self.begin(&folder).map_err(|error| self.unsaved(step, error))?;
        let (world, rank) = (&self.store.world, self.rank);
        let written = Part::write(world, &folder, rank, snapshot, self.is_packed);
        written.map_err(|error| {
            Part::give_up(world, &folder, rank, &error.to_string());
            self.unsaved(step, error)
        })
    }

    /// Makes a checkpoint of the parts of `num_ranks` workers, once all are there, and lets older
    /// ones go. One worker does so.
    pub fn commit(&self, num_ranks: usize, commit: Commit) -> Result<(), CheckpointError> {
        let step = commit.position.step;
        let done = self.try_commit(num_ranks, commit);
        done.map_err(|error| {
            // The first error is the one worth reporting.
            let _ = self.store.world.files().remove_dir_all(&self.partial(step));
            self.unsaved(step, error)
        })
    }

    /// Removes what there is of a checkpoint that will never be whole, once the others have written
    /// their parts or given up too, or after a moment. The worker that would have made it does so.
    pub fn abandon(&self, step: u64, num_ranks: usize) {
        let (world, folder) = (&self.store.world, self.partial(step));
        let deadline = Deadline::after(world.clock(), ABANDONING);
        for rank in 0..num_ranks {
            let is_silent = || matches!(Part::read(world, &folder, rank), Ok(None));
            while is_silent() && !deadline.has_passed(world.clock()) {
                world.clock().sleep(LOOK);
            }
        }
        // It has failed already; what fails here is found by the next life.
        let _ = world.files().remove_dir_all(&folder);
    }

    /// Makes the folder, then makes sure that nobody has taken over.
    fn begin(&self, folder: &Path) -> Result<(), CheckpointError> {
        self.store.world.files().create_dir_all(folder)?;
        let newer = self.store.generation()?;
        if newer == self.generation {
            return Ok(());
        }
        // Whoever took over before the folder was made did not remove it.
        let _ = self.store.world.files().remove_dir_all(folder);
        Err(CheckpointError::Superseded { generation: self.generation, newer })
    }

    fn try_commit(&self, num_ranks: usize, commit: Commit) -> Result<(), CheckpointError> {
        let (store, world) = (&self.store, &self.store.world);
        let step = commit.position.step;
        let folder = self.partial(step);
        let parts = self.wait_for_parts(&folder, num_ranks, commit.patience)?;
        (0..num_ranks).try_for_each(|rank| Part::forget_note(world, &folder, rank))?;
        Part::join(parts, self.generation, commit.position).save(world, &folder)?;
        if world.files().metadata(&store.folder(step)).is_some() {
            // The run has come by here before. What is sound is the same; what is not makes room.
            if store.open(step).and_then(|reader| reader.verify_all()).is_ok() {
                return Ok(world.files().remove_dir_all(&folder)?);
            }
            let gone = store.hidden(step, self.generation, "gone");
            world.files().rename(&store.folder(step), &gone)?;
            world.files().remove_dir_all(&gone)?;
        }
        world.files().rename(&folder, &store.folder(step))?;
        // Nothing older goes before the new one was seen to be whole.
        store.open(step)?;
        store.retain(commit.keep, self.generation)
    }

    fn wait_for_parts(
        &self,
        folder: &Path,
        num_ranks: usize,
        patience: Duration,
    ) -> Result<Vec<Part>, CheckpointError> {
        let world = &self.store.world;
        let deadline = Deadline::after(world.clock(), patience);
        let mut parts = Vec::with_capacity(num_ranks);
        while parts.len() < num_ranks {
            let rank = parts.len();
            if let Some(part) = Part::read(world, folder, rank)? {
                parts.push(part);
            } else if deadline.has_passed(world.clock()) {
                return Err(CheckpointError::Late { rank, seconds: patience.as_secs() });
            } else {
                world.clock().sleep(LOOK);
            }
        }
        Ok(parts)
    }

    fn partial(&self, step: u64) -> PathBuf {
        self.store.hidden(step, self.generation, "partial")
    }

    fn unsaved(&self, step: u64, error: CheckpointError) -> CheckpointError {
        match error {
            // These are no fault of the disk.
            CheckpointError::Superseded { .. } | CheckpointError::Diverged { .. } => error,
            error => {
                let sound = |step: &u64| self.store.open(*step).is_ok();
                let newest = self.store.steps().ok().and_then(|all| all.into_iter().find(sound));
                let newest = newest.map_or_else(
                    || "there is none yet".to_owned(),
                    |newest| {
                        format!("the newest whole one is {}", self.store.folder(newest).display())
                    },
                );
                CheckpointError::Unsaved { step, reason: error.to_string(), newest }
            }
        }
    }
}

impl Manifest {
    /// The bytes of all files.
    pub fn num_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

/// The life that a hidden folder belongs to.
fn generation_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_prefix(".step-")?;
    let mut parts = name.split('.');
    parts.nth(1)?.strip_prefix('g')?.parse().ok()
}

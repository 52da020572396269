//! The folder of a run: what was asked for, what happened, and what came out.
//!
//! ```text
//! runs/0001/recipe.toml         the resolved recipe
//!           events.jsonl        typed events, one JSON line each
//!           model.safetensors   final weights
//!           tokenizer.json      what makes text of its tokens, where they are no bytes
//!           optimizer.safetensors, state.json   what resuming needs
//!           summary.json        the figures that `train --json` prints
//!           checkpoints/        what was saved on the way
//!           flight/             after a failure: the last calls of every worker
//! ```
//! A folder that holds anything is never written into.

use crate::TrainError;
use crate::train::Life;
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_platform::{FileKind, World};
use std::path::{Path, PathBuf};

/// Where runs go that were not given a folder.
pub const RUNS: &str = "runs";

/// What makes text of a model's tokens, in its folder.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The folder of one run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// The folder that the recipe asks for, created by the first worker; the others keep none.
    pub fn of_worker(
        worker: usize,
        recipe: &Recipe,
        world: &World,
        life: &Life,
    ) -> Result<Option<Self>, TrainError> {
        match &life.dir {
            _ if worker > 0 => Ok(None),
            None => Self::create(recipe, world).map(Some),
            Some(dir) => {
                // The folder was found free before the first life, and is this run's since then.
                let folder = Self { path: dir.clone() };
                if life.restarts == 0 {
                    folder.refuse_taken(world)?;
                }
                folder.fill(recipe, world).map(Some)
            }
        }
    }

    /// Creates the folder that the recipe asks for, or the next free number under `runs`.
    pub fn create(recipe: &Recipe, world: &World) -> Result<Self, TrainError> {
        Self::planned(recipe, world)?.fill(recipe, world)
    }

    fn fill(self, recipe: &Recipe, world: &World) -> Result<Self, TrainError> {
        world.files().create_dir_all(&self.path)?;
        world.files().write_atomic(&self.recipe(), recipe.to_toml().as_bytes())?;
        Ok(self)
    }

    /// The folder that [`RunFolder::create`] would create now.
    pub fn planned(recipe: &Recipe, world: &World) -> Result<Self, TrainError> {
        let path = match recipe.run.dir.as_str() {
            "" => next_number(world, Path::new(RUNS))?,
            dir => PathBuf::from(dir),
        };
        let folder = Self { path };
        folder.refuse_taken(world)?;
        Ok(folder)
    }

    fn refuse_taken(&self, world: &World) -> Result<(), TrainError> {
        let taken = match world.files().metadata(&self.path) {
            None => false,
            Some(FileKind::File { .. }) => true,
            Some(FileKind::Directory) => !world.files().list(&self.path)?.is_empty(),
        };
        if taken {
            return Err(TrainError::FolderTaken { dir: self.path.display().to_string() });
        }
        Ok(())
    }

    /// A folder that is about to become one.
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The folder of a run, finished or not.
    pub fn started(path: &Path, world: &World) -> Result<Self, TrainError> {
        Self { path: path.to_owned() }.having(&[Self::recipe], world)
    }

    /// The folder of a finished run.
    pub fn finished(path: &Path, world: &World) -> Result<Self, TrainError> {
        Self { path: path.to_owned() }.having(&[Self::recipe, Self::weights], world)
    }

    fn having(self, files: &[fn(&Self) -> PathBuf], world: &World) -> Result<Self, TrainError> {
        if world.files().metadata(&self.path).is_none() && !self.path.as_os_str().is_empty() {
            return Err(TrainError::NoFolder { dir: self.path.display().to_string() });
        }
        for file in files {
            let missing = file(&self);
            if world.files().metadata(&missing).is_none() {
                return Err(TrainError::NoRun {
                    dir: self.path.display().to_string(),
                    missing: missing.file_name().unwrap_or_default().display().to_string(),
                });
            }
        }
        Ok(self)
    }

    /// The newest finished run under `runs`.
    pub fn newest(world: &World) -> Result<Self, TrainError> {
        let runs = Path::new(RUNS);
        let mut folders = match world.files().metadata(runs) {
            Some(FileKind::Directory) => world.files().list(runs)?,
            _ => Vec::new(),
        };
        folders.retain(|path| number_of(path).is_some());
        folders.sort_by_key(|path| number_of(path));
        let finished = folders.iter().rev().find_map(|path| Self::finished(path, world).ok());
        finished.ok_or_else(|| TrainError::NoRun {
            dir: RUNS.to_owned(),
            missing: "model.safetensors".to_owned(),
        })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The resolved recipe.
    pub fn recipe(&self) -> PathBuf {
        self.path.join("recipe.toml")
    }

    /// Typed events, one JSON line each.
    pub fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// The final weights.
    pub fn weights(&self) -> PathBuf {
        self.path.join("model.safetensors")
    }

    /// The tokenizer, where a token is no byte.
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// The optimizer's state.
    pub fn optimizer(&self) -> PathBuf {
        self.path.join("optimizer.safetensors")
    }

    /// Step and data cursor.
    pub fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// The run's figures.
    pub fn summary(&self) -> PathBuf {
        self.path.join("summary.json")
    }
}

/// The first unused number; two runs that start together get different ones or an error.
fn next_number(world: &World, runs: &Path) -> Result<PathBuf, TrainError> {
    let used = match world.files().metadata(runs) {
        Some(FileKind::Directory) => world.files().list(runs)?,
        _ => Vec::new(),
    };
    let last = used.iter().filter_map(|path| number_of(path)).max().unwrap_or(0);
    Ok(runs.join(format!("{:04}", last + 1)))
}

fn number_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
}
/// Lets all workers write their last calls into the run's folder if the run fails. Only the first
/// worker knows the folder, so it tells the others; this returns it.
pub fn record_failures(comm: &Comm, folder: Option<&RunFolder>) -> Result<PathBuf, TrainError> {
    let own = folder.map_or_else(String::new, |folder| folder.path.display().to_string());
    let mut all = Vec::new();
    comm.all_gather_v(own.as_bytes(), &mut all)?;
    let path = PathBuf::from(&*String::from_utf8_lossy(&all));
    comm.record_into(&path.join("flight"));
    Ok(path)
}

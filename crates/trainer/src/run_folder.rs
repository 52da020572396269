//! Folder of a run: recipe, events, weights and figures.
//!
//! ```text
//! runs/0001/recipe.toml         the resolved recipe
//!           events.jsonl        typed events, one JSON line each
//!           model.safetensors   final weights
//!           adapter/            final low-rank adapters, if it trains some, as `peft` reads them
//!           tokenizer.json      the tokenizer, if tokens are not bytes
//!           tokenizer_config.json, chat_template.jinja, generation_config.json, ...
//!                               files that belong to it: chat template, tokens that end a text
//!           optimizer.safetensors, state.json   optimizer state and position, for resuming
//!           summary.json        the figures that `train --json` prints
//!           checkpoints/        checkpoints during training
//!           tensorboard/        TensorBoard event files, with telemetry.tensorboard
//!           metrics.csv         metrics, with telemetry.csv
//!           trace.json          trace of sampled steps, with telemetry.trace
//!           flight/             after a failure: the last calls of every worker
//!           failure.json        after a failure: the reason
//! ```
//! A folder with content is never overwritten.

use crate::TrainError;
use crate::options::Attempt;
use lockstep_comm::Comm;
use lockstep_config::{Recipe, Source, Sources};
use lockstep_data::{ShardSet, Tokenizer};
use lockstep_platform::{FileKind, World};
use std::path::{Path, PathBuf};

/// Parent of run folders that the recipe does not name.
pub const RUNS: &str = "runs";

/// File name of the tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// The folder of one run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Creates the recipe's folder on worker 0; the other workers have none.
    pub fn of_worker(
        worker: usize,
        recipe: &Recipe,
        world: &World,
        attempt: &Attempt,
    ) -> Result<Option<Self>, TrainError> {
        match &attempt.dir {
            _ if worker > 0 => Ok(None),
            None => Self::create(recipe, world).map(Some),
            Some(dir) => {
                // The folder was empty before the first attempt and belongs to this run since.
                let folder = Self { path: dir.clone() };
                if attempt.restarts == 0 {
                    folder.refuse_taken(world)?;
                }
                folder.fill(recipe, world).map(Some)
            }
        }
    }

    /// Creates the recipe's folder, or the next free number under `runs`.
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

    /// A path that is about to become a run folder.
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
        let newest = Self::newest_of(Self::finished, world)?;
        newest.ok_or_else(|| TrainError::NoRun {
            dir: RUNS.to_owned(),
            missing: "model.safetensors".to_owned(),
        })
    }

    /// The newest run under `runs`, finished or not; `None` if there is none.
    pub fn newest_started(world: &World) -> Result<Option<Self>, TrainError> {
        Self::newest_of(Self::started, world)
    }

    /// The newest numbered folder under `runs` that `open` accepts.
    fn newest_of(
        open: fn(&Path, &World) -> Result<Self, TrainError>,
        world: &World,
    ) -> Result<Option<Self>, TrainError> {
        let runs = Path::new(RUNS);
        let mut folders = match world.files().metadata(runs) {
            Some(FileKind::Directory) => world.files().list(runs)?,
            _ => Vec::new(),
        };
        folders.retain(|path| number_of(path).is_some());
        folders.sort_by_key(|path| number_of(path));
        Ok(folders.iter().rev().find_map(|path| open(path, world).ok()))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the resolved recipe.
    pub fn recipe(&self) -> PathBuf {
        self.path.join("recipe.toml")
    }

    /// Path of the event file, one JSON object per line.
    pub fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// Folder of TensorBoard event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }

    /// Path of the metrics as CSV.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.csv")
    }

    /// Path of the trace.
    pub fn trace(&self) -> PathBuf {
        self.path.join("trace.json")
    }

    /// Path of the final weights.
    pub fn weights(&self) -> PathBuf {
        self.path.join("model.safetensors")
    }

    /// Path of the final adapters, if the run trains some.
    pub fn adapter(&self) -> PathBuf {
        self.path.join("adapter")
    }

    /// Path of the tokenizer, if tokens are not bytes.
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// Path of the optimizer state.
    pub fn optimizer(&self) -> PathBuf {
        self.path.join("optimizer.safetensors")
    }

    /// Path of step and data cursor.
    pub fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Path of the summary.
    pub fn summary(&self) -> PathBuf {
        self.path.join("summary.json")
    }
}

/// First unused number. Two runs that start together get different numbers or an error.
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
/// Lets all ranks dump their flight recorder into the run folder if the run fails. Rank 0
/// broadcasts the path, which is returned.
pub fn record_failures(comm: &Comm, folder: Option<&RunFolder>) -> Result<PathBuf, TrainError> {
    let own = folder.map_or_else(String::new, |folder| folder.path.display().to_string());
    let mut all = Vec::new();
    comm.all_gather_v(own.as_bytes(), &mut all)?;
    let path = PathBuf::from(&*String::from_utf8_lossy(&all));
    comm.record_into(&path.join("flight"));
    Ok(path)
}

/// Tokenizer of a model folder: its `tokenizer.json`, or bytes without one.
pub fn load_tokenizer(folder: &Path, world: &World) -> Result<Tokenizer, TrainError> {
    Ok(Tokenizer::of_model(folder, world.files())?)
}

/// Largest vocabulary of a model of bytes: a model may have special tokens and padding beside them.
const MAX_BYTE_VOCAB: usize = 512;

/// Refuses to train a model of tokens on bytes because its tokenizer is missing.
pub(crate) fn refuse_bytes(
    folder: &Path,
    recipe: &Recipe,
    world: &World,
) -> Result<(), TrainError> {
    let source = recipe.data.source.to_string();
    let has_own = recipe.data.source == Source::Zipf || recipe.model.family.is_problem();
    let is_bytes = recipe.data.tokenizer == lockstep_config::Tokenizer::Byte;
    if has_own || !is_bytes || ShardSet::is_at(Path::new(&source), world.files()) {
        return Ok(());
    }
    // The error names a tokenizer of another format.
    load_tokenizer(folder, world)?;
    let (dir, vocab) = (folder.display().to_string(), recipe.model.vocab);
    if vocab <= MAX_BYTE_VOCAB {
        return Ok(());
    }
    Err(TrainError::NoTokenizer { dir, vocab })
}

/// Recipe of a run.
pub fn load_recipe(folder: &RunFolder, world: &World) -> Result<Recipe, TrainError> {
    let path = folder.recipe();
    let name = path.display().to_string();
    let text = world.files().read_to_string(&path)?;
    let file = Some((name.clone(), text));
    lockstep_config::resolve(&Sources { file, ..Sources::default() })
        .map_err(|errors| TrainError::SavedRecipe { path: name, reason: errors.to_string() })
}

//! A model that exists already, in a folder of ours or of Hugging Face: its shape and its weights.
//!
//! A folder with a `recipe.toml` is a run, one with a `manifest.json` is a checkpoint of one, and
//! one with a `config.json` is a model of Hugging Face. All keep weights as safetensors under the
//! same names, so everything after opening them is the same: prove that the tensors are those of
//! the model, then read each part where it is needed. A worker reads what it owns and nothing else,
//! and no copy of the whole model is made.

use crate::saved::{self, Learner};
use crate::{RunFolder, TrainError, restore};
use lockstep_checkpoint::huggingface::{self, Folder};
use lockstep_checkpoint::sharded::{MANIFEST, Reader};
use lockstep_checkpoint::{CheckpointError, Tensors};
use lockstep_config::{self as config, Model, ModelFolder, Recipe, Sources};
use lockstep_model::{Blueprint, describe};
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// See the module's text.
pub struct Pretrained {
    path: PathBuf,
    origin: Origin,
}

enum Origin {
    Run { recipe: Box<Recipe>, tensors: Tensors },
    Checkpoint { recipe: Box<Recipe>, reader: Box<Reader> },
    HuggingFace(Box<Folder>),
}

impl Pretrained {
    /// Opens a folder: shape and headers are read, weights are not.
    pub fn open(path: &Path, world: &World) -> Result<Self, TrainError> {
        let has = |name: &str| world.files().metadata(&path.join(name)).is_some();
        let origin = if has(MANIFEST) {
            return Self::of_checkpoint(Reader::open(world, path)?, world);
        } else if has("recipe.toml") {
            // A run that has not ended has checkpoints at best.
            if RunFolder::finished(path, world).is_err()
                && let Some(reader) = restore::newest_in(path, world)?
            {
                return Self::of_checkpoint(reader, world);
            }
            let folder = RunFolder::finished(path, world)?;
            let recipe = Box::new(saved::recipe_of(&folder, world)?);
            Origin::Run { recipe, tensors: Tensors::open(world, &folder.weights())? }
        } else if has(huggingface::CONFIG) {
            Origin::HuggingFace(Box::new(Folder::open(world, path)?))
        } else {
            return Err(TrainError::NoModel { dir: path.display().to_string() });
        };
        Ok(Self { path: path.to_owned(), origin })
    }

    /// A checkpoint. What makes text of its tokens lies in the folder of its run.
    fn of_checkpoint(reader: Reader, world: &World) -> Result<Self, TrainError> {
        let recipe = restore::recipe_in(&reader.manifest().position.recipe, reader.folder())?;
        let run = reader.folder().ancestors().nth(2).map(Path::to_owned);
        let is_run = |path: &PathBuf| RunFolder::started(path, world).is_ok();
        let path = run.filter(is_run).unwrap_or_else(|| reader.folder().to_owned());
        let (recipe, reader) = (Box::new(recipe), Box::new(reader));
        Ok(Self { path, origin: Origin::Checkpoint { recipe, reader } })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shape of the model.
    pub fn model(&self) -> &Model {
        match &self.origin {
            Origin::Run { recipe, .. } | Origin::Checkpoint { recipe, .. } => &recipe.model,
            Origin::HuggingFace(folder) => &folder.config.model,
        }
    }

    /// The folder, where it is one of Hugging Face.
    pub fn hugging_face(&self) -> Option<&Folder> {
        match &self.origin {
            Origin::Run { .. } | Origin::Checkpoint { .. } => None,
            Origin::HuggingFace(folder) => Some(folder),
        }
    }

    /// The recipe of the run, or the default one with the model of the folder.
    pub fn recipe(&self, world: &World) -> Result<Recipe, TrainError> {
        self.recipe_with(world, |_| {})
    }

    /// The same, after a change of what the folder says.
    pub(crate) fn recipe_with(
        &self,
        world: &World,
        change: impl FnOnce(&mut ModelFolder),
    ) -> Result<Recipe, TrainError> {
        match &self.origin {
            Origin::Run { recipe, .. } | Origin::Checkpoint { recipe, .. } => {
                Ok((**recipe).clone())
            }
            Origin::HuggingFace(_) => {
                let mut folder = self.model_folder(world);
                change(&mut folder);
                let resolved = config::resolve_with(&Sources::default(), &folder);
                resolved.map_err(|errors| TrainError::Recipe(errors.to_string()))
            }
        }
    }

    /// What it says about the keys of a recipe.
    pub fn model_folder(&self, world: &World) -> ModelFolder {
        let file = match &self.origin {
            Origin::Run { .. } => "recipe.toml",
            Origin::Checkpoint { .. } => MANIFEST,
            Origin::HuggingFace(_) => huggingface::CONFIG,
        };
        let tokenizer = self.path.join(huggingface::TOKENIZER);
        let has_one = world.files().metadata(&tokenizer).is_some();
        ModelFolder {
            name: self.path.join(file).display().to_string(),
            model: self.model().to_toml(),
            tokenizer: has_one.then(|| tokenizer.display().to_string()),
        }
    }

    /// Proves that the weights are those of this model.
    pub fn prove(&self, blueprint: &Blueprint) -> Result<(), TrainError> {
        let needed = outlines(blueprint);
        match &self.origin {
            Origin::Run { tensors, .. } => tensors.prove(&needed)?,
            Origin::Checkpoint { reader, .. } => {
                reader.verify_all()?;
                needed.iter().try_for_each(|(name, shape)| reader.read(name, shape, 0, &mut []))?;
            }
            Origin::HuggingFace(folder) => folder.prove(&needed)?,
        }
        Ok(())
    }

    /// The elements of a parameter from number `first` on.
    pub fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        match &self.origin {
            Origin::Run { tensors, .. } => tensors.read(name, first, out),
            Origin::HuggingFace(folder) => folder.tensors.read(name, first, out),
            Origin::Checkpoint { reader, .. } => {
                let shape = reader.manifest().tensors.get(name).map(|tensor| tensor.shape.clone());
                reader.read(name, &shape.unwrap_or_default(), first, out)
            }
        }
    }

    /// The flat parameter buffer of each block, mirrors included.
    pub fn params(&self, blueprint: &Blueprint) -> Result<Vec<Vec<f32>>, TrainError> {
        self.prove(blueprint)?;
        saved::load_params(blueprint, |name, values| self.read(name, 0, values))
    }
}

/// Names and shapes of the parameters that are saved.
pub fn outlines(blueprint: &Blueprint) -> BTreeMap<String, Vec<usize>> {
    blueprint.owned_params().map(|(_, p)| (p.name.clone(), p.shape.clone())).collect()
}

/// Proves a recipe; the folder that its `model.from` names is read first.
pub fn resolve(sources: &Sources, world: &World) -> Result<Recipe, TrainError> {
    let resolved = match config::model_from(sources) {
        None => config::resolve(sources),
        Some(path) => {
            let pretrained = Pretrained::open(Path::new(&path), world)?;
            config::resolve_with(sources, &pretrained.model_folder(world))
        }
    };
    resolved.map_err(|errors| TrainError::Recipe(errors.to_string()))
}

/// Refuses a recipe that could not start from its folder; nothing where it has none.
pub fn check(recipe: &Recipe, world: &World) -> Result<(), TrainError> {
    if recipe.from.is_empty() {
        return Ok(());
    }
    Pretrained::open(Path::new(&recipe.from), world)?.prove(&describe(&recipe.model))
}

/// Gives a fresh learner the weights of the recipe's folder, where it has one. All workers do so
/// together, each for what it owns, and find out whether they read the same.
pub fn load(recipe: &Recipe, world: &World, learner: &mut Learner) -> Result<(), TrainError> {
    if recipe.from.is_empty() {
        return Ok(());
    }
    let pretrained = Pretrained::open(Path::new(&recipe.from), world)?;
    pretrained.prove(learner.replica.blueprint())?;
    learner.replica.fill(|param, first, values| {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        Ok::<_, TrainError>(pretrained.read(name, first, values)?)
    })?;
    match learner.replica.find_difference()? {
        None => Ok(()),
        Some(differs) => Err(TrainError::FoldersDiffer {
            dir: recipe.from.clone(),
            worker: differs.worker,
            tensor: differs.name,
        }),
    }
}

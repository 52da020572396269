//! Pretrained models: shape and weights of a run folder, a checkpoint or a Hugging Face folder.
//!
//! A folder with `recipe.toml` is a run, one with `manifest.json` is a checkpoint (a folder of
//! several stands for the newest), and one with `config.json` is a Hugging Face model. All of them
//! keep weights as safetensors under the same names. A rank verifies names and shapes and reads
//! only the elements that it owns. With `model.partial`, tensors that match in name and shape are
//! loaded, the others keep their initial values, and a warning lists them.
//!
//! Adapters keep their initial values too, unless the folder is a run that has trained them, or
//! `finetune.adapter` is a folder of `peft` with them. A folder of `peft` opens as the model of its
//! base with its adapters.

use crate::adapter_folder::{self, ModelPath, PeftAdapters};
use crate::checkpoint_dir::{newest_in, recipe_in};
use crate::epochs::count_steps;
use crate::frozen_base::{FrozenBase, ReadBase, dequantised, whole};
use crate::learner::Learner;
use crate::run_folder::{load_recipe, refuse_bytes};
use crate::{RunFolder, TrainError};
use lockstep_checkpoint::huggingface::{self, Folder};
use lockstep_checkpoint::peft::AdapterFolder;
use lockstep_checkpoint::sharded::{MANIFEST, Reader};
use lockstep_checkpoint::{Tensors, pytorch};
use lockstep_config::{self as config, EpochSteps, Model, ModelFolder, Recipe, Sources};
use lockstep_model::{Blueprint, Param, describe, init, lora};
use lockstep_platform::World;
use lockstep_tensor::{Cpu, Isa};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use crate::overlap::Overlap;

/// State of AdamW and Adam: the first and the second moment.
pub(crate) const MOMENTS: [&str; 2] = ["m", "v"];

/// An opened model folder.
pub struct Pretrained {
    path: PathBuf,
    origin: Origin,
    /// Base of its adapters, where that is not among its tensors.
    base: Option<FrozenBase>,
    /// Adapters of a folder of their own, beside the tensors of the origin.
    adapters: Option<Box<PeftAdapters>>,
}

enum Origin {
    Run { recipe: Box<Recipe>, tensors: Tensors },
    Checkpoint { recipe: Box<Recipe>, reader: Box<Reader> },
    HuggingFace(Box<Folder>),
}

impl Pretrained {
    /// Opens a folder and reads shapes and headers, not weights. One of adapters needs the folder
    /// of their base model, which it names unless the path does.
    pub fn open<'a>(path: impl Into<ModelPath<'a>>, world: &World) -> Result<Self, TrainError> {
        let ModelPath { folder, base } = path.into();
        if !adapter_folder::is_one(folder, world) {
            let model = Self::open_model(folder, world)?;
            let dir = || folder.display().to_string();
            return if base.is_some() {
                Err(TrainError::BaseOfModel { dir: dir() })
            } else {
                Ok(model)
            };
        }
        let adapters = AdapterFolder::open(world, folder)?;
        let base = match base {
            Some(base) => base.to_owned(),
            None => adapter_folder::base_of(&adapters, world)?,
        };
        let mut opened = Self::open_model(&base, world)?;
        let adapters = PeftAdapters::beside(adapters, base, opened.model())?;
        adapters.folder.prove(&adapter_outlines(&describe(&adapters.model)))?;
        if world.files().metadata(&folder.join(huggingface::TOKENIZER)).is_some() {
            // Trainers save the tokenizer of their data beside the adapters.
            folder.clone_into(&mut opened.path);
        }
        Ok(Self { adapters: Some(Box::new(adapters)), ..opened })
    }

    /// Opens a folder with weights.
    fn open_model(path: &Path, world: &World) -> Result<Self, TrainError> {
        let has = |name: &str| world.files().metadata(&path.join(name)).is_some();
        let origin = if has(MANIFEST) {
            return Self::of_checkpoint(Reader::open(world, path)?, world);
        } else if has("recipe.toml") {
            // An unfinished run has at most checkpoints.
            if RunFolder::finished(path, world).is_err()
                && let Some(reader) = newest_in(path, world)?
            {
                return Self::of_checkpoint(reader, world);
            }
            let folder = RunFolder::finished(path, world)?;
            let mut recipe = Box::new(load_recipe(&folder, world)?);
            let base = take_base(&mut recipe, world)?;
            let tensors = Tensors::open(world, &folder.weights())?;
            let origin = Origin::Run { recipe, tensors };
            return Ok(Self { path: path.to_owned(), origin, base, adapters: None });
        } else if has(huggingface::CONFIG) {
            Origin::HuggingFace(Box::new(Folder::open(world, path)?))
        } else if let Some(reader) = newest_in(path, world)? {
            return Self::of_checkpoint(reader, world);
        } else {
            let dir = path.display().to_string();
            if pytorch::is_one(world, path) {
                return Err(TrainError::NoModelConfig { dir });
            }
            let exists = world.files().metadata(path).is_some();
            return Err(if exists {
                TrainError::NoModel { dir }
            } else {
                TrainError::NoFolder { dir }
            });
        };
        Ok(Self { path: path.to_owned(), origin, base: None, adapters: None })
    }

    /// Whether the weights beside its adapters are quantised.
    pub(crate) fn is_quantised(&self) -> bool {
        self.base.is_some()
    }

    /// Opens the folder that a key of the recipe names.
    pub(crate) fn of_key(key: &'static str, path: &str, world: &World) -> Result<Self, TrainError> {
        Self::open(Path::new(path), world).map_err(|error| match error {
            TrainError::NoFolder { dir } => TrainError::NoFolderOfKey { key, dir },
            TrainError::NoBase { dir, why } => TrainError::NoBaseOfKey { key, dir, why },
            other => other,
        })
    }

    /// Opens the folder of `model.from`, which may have a `config.json` alone.
    fn of_shape(path: &str, world: &World) -> Result<Self, TrainError> {
        let folder = Path::new(path);
        if !Folder::has_shape_only(world, folder) {
            return Self::of_key(FROM, path, world);
        }
        let origin = Origin::HuggingFace(Box::new(Folder::open_shape(world, folder)?));
        Ok(Self { path: folder.to_owned(), origin, base: None, adapters: None })
    }

    /// Opens a checkpoint; its tokenizer lies in the run folder.
    fn of_checkpoint(reader: Reader, world: &World) -> Result<Self, TrainError> {
        let mut recipe = recipe_in(&reader.manifest().position.recipe, reader.folder())?;
        let base = take_base(&mut recipe, world)?;
        let run = reader.folder().ancestors().nth(2).map(Path::to_owned);
        let is_run = |path: &PathBuf| RunFolder::started(path, world).is_ok();
        let path = run.filter(is_run).unwrap_or_else(|| reader.folder().to_owned());
        let (recipe, reader) = (Box::new(recipe), Box::new(reader));
        let origin = Origin::Checkpoint { recipe, reader };
        Ok(Self { path, origin, base, adapters: None })
    }

    /// Path of the folder with its tokenizer: that of the model, or of its adapters.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shape of the model.
    pub fn model(&self) -> &Model {
        if let Some(adapters) = &self.adapters {
            return &adapters.model;
        }
        match &self.origin {
            Origin::Run { recipe, .. } | Origin::Checkpoint { recipe, .. } => &recipe.model,
            Origin::HuggingFace(folder) => &folder.config.model,
        }
    }

    /// Maximum number of positions that the folder declares, where it may not be the context.
    fn max_positions(&self) -> Option<usize> {
        match &self.origin {
            Origin::Run { recipe, .. } | Origin::Checkpoint { recipe, .. } => recipe.max_positions,
            Origin::HuggingFace(folder) => Some(folder.config.model.context),
        }
    }

    /// Hugging Face folder, if it is one.
    pub fn hugging_face(&self) -> Option<&Folder> {
        match &self.origin {
            Origin::Run { .. } | Origin::Checkpoint { .. } => None,
            Origin::HuggingFace(folder) => Some(folder),
        }
    }

    /// Number of finished steps, if it is a checkpoint.
    pub(crate) fn checkpoint_step(&self) -> Option<u64> {
        match &self.origin {
            Origin::Checkpoint { reader, .. } => Some(reader.manifest().position.step),
            Origin::Run { .. } | Origin::HuggingFace(_) => None,
        }
    }

    /// Recipe of the run that has written the folder, if one has.
    pub(crate) fn run_recipe(&self) -> Option<&Recipe> {
        match &self.origin {
            Origin::Run { recipe, .. } | Origin::Checkpoint { recipe, .. } => Some(recipe),
            Origin::HuggingFace(_) => None,
        }
    }

    /// Recipe of the run, or the default recipe with the folder's model.
    pub fn recipe(&self, world: &World) -> Result<Recipe, TrainError> {
        self.recipe_with(world, |_| {})
    }

    /// As [`Pretrained::recipe`], with the format of the weights beside adapters in the run.
    pub(crate) fn recorded_recipe(&self, world: &World) -> Result<Recipe, TrainError> {
        let mut recipe = self.recipe(world)?;
        recipe.model = self.recorded_model();
        Ok(recipe)
    }

    /// Shape of the model, with the format of the weights beside adapters in the run.
    fn recorded_model(&self) -> Model {
        let model = self.model().clone();
        let lora = self.base.as_ref().map_or(model.lora, |base| base.lora);
        Model { lora, ..model }
    }

    /// As [`Pretrained::recipe`], after `change` edits the folder's settings.
    pub(crate) fn recipe_with(
        &self,
        world: &World,
        change: impl FnOnce(&mut ModelFolder),
    ) -> Result<Recipe, TrainError> {
        match &self.origin {
            Origin::Run { recipe, .. } | Origin::Checkpoint { recipe, .. } => {
                Ok(Recipe { model: self.model().clone(), ..(**recipe).clone() })
            }
            Origin::HuggingFace(_) => {
                let mut folder = self.model_folder(world);
                change(&mut folder);
                let resolved = config::resolve_with(&Sources::default(), &folder);
                resolved.map_err(|errors| TrainError::Recipe(errors.to_string()))
            }
        }
    }

    /// Recipe keys that the folder sets.
    pub fn model_folder(&self, world: &World) -> ModelFolder {
        let file = match &self.origin {
            Origin::Run { .. } => "recipe.toml",
            Origin::Checkpoint { .. } => MANIFEST,
            Origin::HuggingFace(_) => huggingface::CONFIG,
        };
        let tokenizer = self.path.join(huggingface::TOKENIZER);
        let has_one = world.files().metadata(&tokenizer).is_some();
        let adapters = self.adapters.as_ref().map(|adapters| adapters.folder.config());
        ModelFolder {
            name: adapters.unwrap_or_else(|| self.path.join(file)).display().to_string(),
            model: self.recorded_model().to_toml(),
            max_positions: self.max_positions(),
            tokenizer: has_one.then(|| tokenizer.display().to_string()),
        }
    }

    /// Whether adapters are among its tensors.
    fn has_adapters(&self) -> bool {
        self.model().lora.is_on()
    }

    /// Whether a parameter of this name is a tensor of the folder, as a model of its shape is.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.has_adapters() || !lora::is_adapter(name)
    }

    /// Number of elements of a tensor, if the folder has it.
    pub(crate) fn tensor_len(&self, name: &str) -> Option<usize> {
        if let Some(param) = self.base_tensor(name) {
            return Some(param.tensor_len());
        }
        if let Some(adapters) = self.adapters_with(name) {
            return Some(adapters.folder.tensors.shape(name)?.iter().product());
        }
        let shape = match &self.origin {
            Origin::Run { tensors, .. } => tensors.shape(name)?,
            Origin::HuggingFace(folder) => folder.tensors.shape(name)?,
            Origin::Checkpoint { reader, .. } => &reader.manifest().tensors.get(name)?.shape[..],
        };
        Some(shape.iter().product())
    }

    /// Verifies that the tensors match the blueprint; adapters may be missing.
    pub fn prove(&self, blueprint: &Blueprint) -> Result<(), TrainError> {
        let mut needed = outlines(blueprint);
        if let Some(adapters) = &self.adapters {
            adapters.folder.prove(&adapter_outlines(blueprint))?;
        }
        needed.retain(|name, _| self.has(name) && self.base_tensor(name).is_none());
        needed.retain(|name, _| self.adapters_with(name).is_none());
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

    /// Tensors that a different model can load.
    pub fn overlap(&self, blueprint: &Blueprint) -> Result<Overlap, TrainError> {
        let shapes = |tensors: &Tensors| {
            let shape = |name: &str| tensors.shape(name).unwrap_or_default().to_vec();
            tensors.names().map(|name| (name.to_owned(), shape(name))).collect::<BTreeMap<_, _>>()
        };
        let found = match &self.origin {
            Origin::Run { tensors, .. } => shapes(tensors),
            Origin::HuggingFace(folder) => shapes(&folder.tensors),
            Origin::Checkpoint { recipe, reader } => {
                reader.verify_all()?;
                // Optimizer state is not a weight.
                let mut own = outlines(&describe(&recipe.model));
                own.retain(|name, _| reader.manifest().tensors.contains_key(name));
                own
            }
        };
        let mut found = found;
        if let Some(adapters) = &self.adapters {
            found.extend(shapes(&adapters.folder.tensors));
        }
        let base = self.base.iter().flat_map(FrozenBase::outlines);
        found.extend(base.map(|(name, shape)| (name.clone(), shape.clone())));
        let overlap = Overlap::new(&outlines(blueprint), &found);
        if overlap.taken.is_empty() {
            let (dir, name) = (self.path.display().to_string(), found.into_keys().next());
            return Err(TrainError::NothingInCommon { dir, name: name.unwrap_or_default() });
        }
        Ok(overlap)
    }

    /// Reads elements of a parameter, starting at `first`.
    pub fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), TrainError> {
        if let Some(base) = self.base.as_ref().filter(|base| base.tensor(name).is_some()) {
            return base.read_dequantised(name, first, out);
        }
        if let Some(adapters) = self.adapters_with(name) {
            return Ok(adapters.folder.tensors.read(name, first, out)?);
        }
        match &self.origin {
            Origin::Run { tensors, .. } => tensors.read(name, first, out)?,
            Origin::HuggingFace(folder) => folder.tensors.read(name, first, out)?,
            Origin::Checkpoint { reader, .. } => {
                let shape = reader.manifest().tensors.get(name).map(|tensor| tensor.shape.clone());
                reader.read(name, &shape.unwrap_or_default(), first, out)?;
            }
        }
        Ok(())
    }

    /// As [`Self::read`], of a weight before it was quantised.
    fn read_unquantised(
        &self,
        name: &str,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), TrainError> {
        match self.base.as_ref().filter(|base| base.tensor(name).is_some()) {
            Some(base) => base.read(name, first, out),
            None => self.read(name, first, out),
        }
    }

    /// Adapters of a folder of their own, if a tensor of this name is one of them.
    fn adapters_with(&self, name: &str) -> Option<&PeftAdapters> {
        self.adapters.as_deref().filter(|_| lora::is_adapter(name))
    }

    /// Folder of the weights beside adapters of a folder of their own.
    pub(crate) fn base_of_adapters(&self) -> Option<&Path> {
        self.adapters.as_deref().map(|adapters| adapters.base.as_path())
    }

    /// A tensor of the base that is not in the folder.
    fn base_tensor(&self, name: &str) -> Option<&Param> {
        self.base.as_ref()?.tensor(name)
    }

    /// Reads elements of a parameter or of a shard of one, starting at `first`.
    pub fn read_piece(
        &self,
        param: &Param,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), TrainError> {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        for (run, place) in param.runs(first..first + out.len()) {
            self.read(name, place, &mut out[run.start - first..run.end - first])?;
        }
        Ok(())
    }

    /// Flat parameter buffer of each block, with tied parameters.
    pub fn params(&self, blueprint: &Blueprint) -> Result<Vec<Vec<f32>>, TrainError> {
        self.prove(blueprint)?;
        let blocks = blueprint.blocks.iter();
        let mut params: Vec<_> = blocks.map(|block| vec![0.0; block.num_params()]).collect();
        for (block, param) in blueprint.params() {
            self.read_piece(param, 0, &mut params[block][param.range()])?;
        }
        Ok(params)
    }
}

/// Key of the folder that a model starts from.
pub(crate) const FROM: &str = "model.from";

/// Key of the folder of a teacher.
pub(crate) const TEACHER: &str = "finetune.teacher";

/// Base of a run's adapters, if it is quantised; the recipe becomes one without.
fn take_base(recipe: &mut Recipe, world: &World) -> Result<Option<FrozenBase>, TrainError> {
    if !recipe.model.lora.is_quantised() {
        return Ok(None);
    }
    let base = FrozenBase::new(&recipe.model, read_base(recipe, world)?);
    recipe.model = dequantised(&recipe.model);
    Ok(Some(base))
}

/// Reader of the weights that a recipe quantises: those of `model.from`, or initial values.
pub(crate) fn read_base(recipe: &Recipe, world: &World) -> Result<ReadBase, TrainError> {
    let blueprint = describe(&dequantised(&recipe.model));
    let (mut folder, mut taken) = (None, None);
    if !recipe.from.is_empty() {
        let opened = Pretrained::of_key(FROM, &recipe.from, world)?;
        if recipe.partial {
            taken = Some(opened.overlap(&blueprint)?.taken);
        } else {
            opened.prove(&blueprint)?;
        }
        folder = Some(opened);
    }
    let (seed, cpu) = (recipe.train.seed, Cpu::single(Isa::detect()));
    Ok(Box::new(move |param, first, out| {
        let is_taken = taken.as_ref().is_none_or(|taken| taken.contains(&param.name));
        match folder.as_ref().filter(|_| is_taken) {
            Some(folder) => folder.read_unquantised(&param.name, first, out)?,
            None => init::fill(&cpu, seed, &whole(param), first, out),
        }
        Ok(())
    }))
}

/// Most runs that continue one another's adapters.
const MAX_CONTINUED: usize = 64;

/// Folder of the model beside which the adapters of a run are trained: runs that continue adapters
/// have that of the first.
pub(crate) fn base_model(recipe: &Recipe, world: &World) -> Option<String> {
    let mut from = recipe.from.clone();
    for _ in 0..MAX_CONTINUED {
        let parent = Pretrained::open(Path::new(&from), world).ok();
        if let Some(base) = parent.as_ref().and_then(Pretrained::base_of_adapters) {
            from = base.display().to_string();
            continue;
        }
        let parent = parent.as_ref().and_then(Pretrained::run_recipe);
        let Some(parent) = parent.filter(|parent| parent.model.lora.is_on()) else { break };
        from.clone_from(&parent.from);
    }
    (!from.is_empty()).then_some(from)
}

/// Names and shapes of the saved parameters.
pub fn outlines(blueprint: &Blueprint) -> BTreeMap<String, Vec<usize>> {
    let tensors = blueprint.tensors().into_iter();
    tensors.map(|(_, param)| (param.name.clone(), param.shape.clone())).collect()
}

/// Names and shapes of the matrices of adapters.
pub(crate) fn adapter_outlines(blueprint: &Blueprint) -> BTreeMap<String, Vec<usize>> {
    let mut outlines = outlines(blueprint);
    outlines.retain(|name, _| lora::is_adapter(name));
    outlines
}

/// Resolves a recipe, with the model of its `model.from` folder and the adapters of its
/// `finetune.adapter` folder, where it names them, and the steps of its `train.epochs`.
pub fn resolve(sources: &Sources, world: &World) -> Result<Recipe, TrainError> {
    let open = |path: &str| Pretrained::of_key(FROM, path, world);
    resolve_with_folders(&with_epoch_steps(sources, world)?, world, open)
}

/// As [`resolve`], for a description of the model: its folder may have no weights.
pub fn resolve_shape(sources: &Sources, world: &World) -> Result<Recipe, TrainError> {
    let open = |path: &str| Pretrained::of_shape(path, world);
    resolve_with_folders(&with_epoch_steps(sources, world)?, world, open)
}

/// The sources with the number of steps that `train.epochs` makes of the data, where it decides
/// it.
pub fn with_epoch_steps(sources: &Sources, world: &World) -> Result<Sources, TrainError> {
    if !config::needs_epoch_steps(sources) {
        return Ok(sources.clone());
    }
    let sources = Sources { epoch_steps: EpochSteps::ToCount, ..sources.clone() };
    let open = |path: &str| Pretrained::of_key(FROM, path, world);
    let steps = count_steps(&resolve_with_folders(&sources, world, open)?, world)?;
    let epoch_steps = steps.map_or(EpochSteps::NotCounted, EpochSteps::Counted);
    Ok(Sources { epoch_steps, ..sources })
}

/// Resolves a recipe with the folders that it names.
fn resolve_with_folders(
    sources: &Sources,
    world: &World,
    open: impl Fn(&str) -> Result<Pretrained, TrainError>,
) -> Result<Recipe, TrainError> {
    let pretrained = config::model_from(sources).map(|path| open(&path)).transpose()?;
    let model = pretrained.as_ref().map(|pretrained| pretrained.model_folder(world));
    let adapter = match config::adapter_from(sources) {
        None => None,
        Some(path) => {
            let folder = AdapterFolder::open(world, Path::new(&path))?;
            let (name, lora) = (folder.config().display().to_string(), folder.lora.to_toml());
            Some(config::AdapterFolder { name, lora })
        }
    };
    let teacher = match config::teacher_from(sources) {
        None => None,
        Some(path) => Some(Pretrained::of_key(TEACHER, &path, world)?.model_folder(world)),
    };
    let folders = (model.as_ref(), adapter.as_ref(), teacher.as_ref());
    let resolved = config::resolve_with_folders(sources, folders.0, folders.1, folders.2);
    let recipe = resolved.map_err(|errors| TrainError::Recipe(errors.to_string()))?;
    if let Some(folder) = pretrained.as_ref().and_then(Pretrained::hugging_face)
        && !sources.sets_explicitly("data.tokenizer")
    {
        refuse_bytes(folder.path(), &recipe, world)?;
    }
    Ok(recipe)
}

/// Refuses a recipe whose `model.from` or `finetune.adapter` folder does not fit its model.
pub fn check(recipe: &Recipe, world: &World) -> Result<(), TrainError> {
    let blueprint = describe(&dequantised(&recipe.model));
    if !recipe.adapter.is_empty() {
        open_adapter(recipe, world, &blueprint)?;
    }
    if recipe.from.is_empty() {
        return Ok(());
    }
    let pretrained = Pretrained::of_key(FROM, &recipe.from, world)?;
    if recipe.partial {
        return pretrained.overlap(&blueprint).map(|_| ());
    }
    pretrained.prove(&blueprint)
}

/// Opens `finetune.adapter` and verifies that its matrices are those of the model.
fn open_adapter(
    recipe: &Recipe,
    world: &World,
    blueprint: &Blueprint,
) -> Result<AdapterFolder, TrainError> {
    let folder = AdapterFolder::open(world, Path::new(&recipe.adapter))?;
    folder.prove(&adapter_outlines(blueprint))?;
    Ok(folder)
}

/// Loads the weights of `model.from` and the adapters of `finetune.adapter` into a new learner, and
/// returns warnings. All ranks call it together, each for the shards it owns, and verify that they
/// read the same values.
pub fn load(
    recipe: &Recipe,
    world: &World,
    learner: &mut Learner,
) -> Result<Vec<String>, TrainError> {
    let mut warnings = Vec::new();
    if !recipe.from.is_empty() {
        warnings = load_weights(recipe, world, learner)?;
    }
    if !recipe.adapter.is_empty() {
        let folder = open_adapter(recipe, world, learner.replica.blueprint())?;
        learner.replica.fill(|param, first, values| {
            if lora::is_adapter(&param.name) {
                for (run, place) in param.runs(first..first + values.len()) {
                    let values = &mut values[run.start - first..run.end - first];
                    folder.tensors.read(&param.name, place, values)?;
                }
            }
            Ok::<_, TrainError>(())
        })?;
        refuse_other_values(&recipe.adapter, learner)?;
    }
    Ok(warnings)
}

/// Loads the weights of `model.from`.
fn load_weights(
    recipe: &Recipe,
    world: &World,
    learner: &mut Learner,
) -> Result<Vec<String>, TrainError> {
    let pretrained = Pretrained::of_key(FROM, &recipe.from, world)?;
    let mut overlap = None;
    if recipe.partial {
        overlap = Some(pretrained.overlap(&describe(&dequantised(&recipe.model)))?);
    } else {
        pretrained.prove(&describe(&dequantised(&recipe.model)))?;
    }
    learner.replica.fill(|param, first, values| {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        let is_taken = overlap
            .as_ref()
            .map_or_else(|| pretrained.has(name), |overlap| overlap.taken.contains(name));
        if !is_taken {
            return Ok(());
        }
        pretrained.read_piece(param, first, values)
    })?;
    refuse_other_values(&recipe.from, learner)?;
    Ok(overlap.map_or_else(Vec::new, |overlap| overlap.lines(&recipe.from)))
}

/// Refuses a folder from which workers have read different values.
fn refuse_other_values(dir: &str, learner: &mut Learner) -> Result<(), TrainError> {
    match learner.replica.find_difference()? {
        None => Ok(()),
        Some(differs) => Err(TrainError::FoldersDiffer {
            dir: dir.to_owned(),
            worker: differs.worker,
            tensor: differs.name,
        }),
    }
}

//! From one kind of folder to the other: a run as Hugging Face keeps models, and back.
//!
//! Tensors keep their names and their bits; only a smaller number format rounds them. They pass by
//! one at a time, so a conversion needs memory for the largest tensor, not for the model.

use crate::pretrained::{Pretrained, outlines};
use crate::{RunFolder, TrainError};
use lockstep_checkpoint::huggingface::{self, Config, Export};
use lockstep_checkpoint::weights::{self, WeightsHasher};
use lockstep_checkpoint::{ElementType, new_folder};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_platform::World;
use serde::Serialize;
use serde_json::Map;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder that `transformers` loads.
    HuggingFace {
        /// The number format of the weights.
        format: ElementType,
        /// The largest file of weights.
        shard_bytes: u64,
    },
    /// The folder of a run, without a past to resume.
    Lockstep,
}

/// What was written.
#[derive(Clone, Debug, Serialize)]
pub struct Converted {
    /// The new folder.
    pub folder: String,
    /// Number of parameters, tied ones once.
    pub num_params: u64,
    /// Number of tensors.
    pub num_tensors: u64,
    /// Bytes of all weights.
    pub num_bytes: u64,
    /// Number format of the weights.
    pub dtype: &'static str,
    /// Files with weights.
    pub files: Vec<String>,
    /// Other files, written or copied.
    pub others: Vec<String>,
    /// Hash of the weights before rounding, as `train --json` prints it.
    pub weights_hash: String,
    /// What the new folder cannot say.
    pub notes: Vec<String>,
}

/// Writes the model of `source` into a new folder. `progress` hears how many parameters are done,
/// and of how many.
pub fn convert(
    source: &Path,
    folder: &Path,
    target: Target,
    world: &World,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, TrainError> {
    new_folder::refuse_taken(world, folder)?;
    let pretrained = Pretrained::open(source, world)?;
    let recipe = pretrained.recipe(world)?;
    let blueprint = describe(&recipe.model);
    pretrained.prove(&blueprint)?;
    let total = blueprint.num_params() as u64;
    let mut done = 0;
    let mut read = |name: &str, out: &mut [f32]| {
        pretrained.read(name, 0, out)?;
        done += out.len() as u64;
        progress(done, total);
        Ok::<_, TrainError>(())
    };
    let outlines = outlines(&blueprint);
    let companions = companions(&pretrained, &recipe, world);
    let mut converted = Converted {
        folder: folder.display().to_string(),
        num_params: total,
        num_tensors: outlines.len() as u64,
        num_bytes: 0,
        dtype: ElementType::F32.name(),
        files: Vec::new(),
        others: companions.iter().map(|path| file_name(path)).collect(),
        weights_hash: String::new(),
        notes: Vec::new(),
    };
    match target {
        Target::HuggingFace { format, shard_bytes } => {
            let config = config_of(&pretrained, &recipe, world);
            converted.dtype = format.name();
            converted.others.insert(0, huggingface::CONFIG.to_owned());
            converted.notes.extend(what_is_lost(&recipe));
            let export = Export {
                config: &config,
                outlines: &outlines,
                format,
                shard_bytes,
                companions: &companions,
            };
            let saved = huggingface::save(world, folder, &export, read)?;
            converted.num_bytes = saved.num_bytes;
            converted.files = saved.files;
            converted.weights_hash = saved.weights_hash;
        }
        Target::Lockstep => {
            converted.num_bytes = total * ElementType::F32.num_bytes() as u64;
            converted.files = vec![weights::FILE_NAME.to_owned()];
            converted.others.insert(0, "recipe.toml".to_owned());
            converted.weights_hash =
                save_run(world, folder, &recipe, &outlines, &companions, &mut read)?;
        }
    }
    Ok(converted)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// A folder that `generate` and `inspect` take for a finished run.
fn save_run(
    world: &World,
    folder: &Path,
    recipe: &Recipe,
    outlines: &BTreeMap<String, Vec<usize>>,
    companions: &[PathBuf],
    read: &mut dyn FnMut(&str, &mut [f32]) -> Result<(), TrainError>,
) -> Result<String, TrainError> {
    new_folder::create(world, folder, |partial| {
        let run = RunFolder::at(partial);
        let notes = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let list: Vec<_> =
            outlines.iter().map(|(name, shape)| (name.clone(), shape.clone())).collect();
        let mut hasher = WeightsHasher::default();
        weights::save_each(world, &run.weights(), &list, &notes, |take| {
            for (name, shape) in &list {
                let mut data = vec![0.0; shape.iter().product()];
                read(name, &mut data)?;
                hasher.update(&data);
                take(&data)?;
            }
            Ok::<_, TrainError>(())
        })?;
        for companion in companions {
            new_folder::copy_into(world, partial, companion)?;
        }
        world.files().write_atomic(&run.recipe(), recipe.to_toml().as_bytes())?;
        Ok(hasher.finish())
    })
}

/// The `config.json` of a model; the numbers of its special tokens come from the folder that it was
/// read from, or that its training began with.
fn config_of(pretrained: &Pretrained, recipe: &Recipe, world: &World) -> Config {
    let special_tokens = match pretrained.hugging_face() {
        Some(folder) => folder.config.special_tokens.clone(),
        None => parent(recipe, world).map_or(Map::new(), |folder| folder.config.special_tokens),
    };
    Config { model: recipe.model.clone(), special_tokens }
}

/// Files that go with the vocabulary.
fn companions(pretrained: &Pretrained, recipe: &Recipe, world: &World) -> Vec<PathBuf> {
    let folder = match pretrained.hugging_face() {
        Some(folder) => Some(folder.path().to_owned()),
        None => parent(recipe, world).map(|folder| folder.path().to_owned()),
    };
    let exists = |path: &PathBuf| world.files().metadata(path).is_some();
    let files = folder.into_iter().flat_map(|folder| {
        huggingface::COMPANIONS.iter().map(move |name| folder.join(name)).collect::<Vec<_>>()
    });
    files.filter(exists).collect()
}

/// The folder of Hugging Face that a run's training began with, if it is still there and still the
/// same model.
fn parent(recipe: &Recipe, world: &World) -> Option<huggingface::Folder> {
    let path = (!recipe.from.is_empty()).then(|| PathBuf::from(&recipe.from))?;
    let folder = huggingface::Folder::open(world, &path).ok()?;
    (folder.config.model.vocab == recipe.model.vocab).then_some(folder)
}

/// What a `config.json` has no words for.
fn what_is_lost(recipe: &Recipe) -> Option<String> {
    let dropout = recipe.model.dropout;
    let llama = recipe.model.family == lockstep_config::Family::Llama;
    (llama && dropout > 0.0).then(|| {
        format!(
            "model.dropout = {dropout} is not written: Llama in transformers has no such option"
        )
    })
}

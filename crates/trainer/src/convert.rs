//! Converts between run folders and Hugging Face model folders.
//!
//! Tensors keep their names and bits; only a smaller element type rounds them. They are streamed
//! one at a time, so memory is bounded by the largest tensor. A model with rotary positions keeps
//! the maximum number of positions of the folder that it was initialized from; learned positions
//! are as many as the model has rows for them.

use crate::pretrained::{Pretrained, outlines};
use crate::{RunFolder, TrainError};
use lockstep_checkpoint::huggingface::{self, Companions, Config, Export};
use lockstep_checkpoint::weights::{self, WeightsHasher};
use lockstep_checkpoint::{ElementType, new_folder};
use lockstep_config::{Family, Model, Recipe};
use lockstep_model::describe;
use lockstep_platform::World;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Target format of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Folder that `transformers` loads.
    HuggingFace {
        /// Element type of the weights.
        format: ElementType,
        /// Maximum size of a weight file.
        shard_bytes: u64,
        /// Maximum number of positions to declare, where it is not that of the model.
        max_positions: Option<usize>,
    },
    /// Run folder without a state to resume from.
    Lockstep,
}

/// Report of a conversion.
#[derive(Clone, Debug, Serialize)]
pub struct Converted {
    /// Path of the new folder.
    pub folder: String,
    /// Number of parameters; tied ones count once.
    pub num_params: u64,
    /// Number of tensors.
    pub num_tensors: u64,
    /// Size of all weights in bytes.
    pub num_bytes: u64,
    /// Element type of the weights.
    pub dtype: &'static str,
    /// Weight files.
    pub files: Vec<String>,
    /// Other files, written or copied.
    pub others: Vec<String>,
    /// Hash of the weights before rounding, as `train --json` prints it.
    pub weights_hash: String,
    /// Settings that the new format cannot express.
    pub notes: Vec<String>,
}

/// Writes the model of `source` into a new folder. `progress` receives the number of parameters
/// done and the total.
pub fn convert(
    source: &Path,
    folder: &Path,
    target: Target,
    world: &World,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, TrainError> {
    new_folder::refuse_existing(world, folder)?;
    let pretrained = Pretrained::open(source, world)?;
    let recipe = pretrained.recipe(world)?;
    pretrained.prove(&describe(&recipe.model))?;
    let model = model_of_copy(&recipe, target)?;
    let blueprint = describe(&model);
    let total = blueprint.num_params() as u64;
    let mut done = 0;
    let read = |name: &str, out: &mut [f32]| {
        pretrained.read(name, 0, out)?;
        done += out.len() as u64;
        progress(done, total);
        Ok::<_, TrainError>(())
    };
    let outlines = outlines(&blueprint);
    let (special_tokens, companions) = vocabulary(&pretrained, &recipe, world);
    let mut converted = Converted {
        folder: folder.display().to_string(),
        num_params: total,
        num_tensors: outlines.len() as u64,
        num_bytes: 0,
        dtype: ElementType::F32.name(),
        files: Vec::new(),
        others: companions.names(),
        weights_hash: String::new(),
        notes: Vec::new(),
    };
    match target {
        Target::HuggingFace { format, shard_bytes, .. } => {
            let config = Config::new(model, special_tokens)?;
            converted.dtype = format.name();
            converted.others.insert(0, huggingface::CONFIG.to_owned());
            converted.notes.extend(what_is_lost(&recipe));
            converted.notes.extend(lost_positions(&recipe, config.model.context, world));
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
            let recipe = recipe_of_copy(&pretrained, &companions, folder, world)?;
            converted.weights_hash =
                save_run(world, folder, &recipe, &outlines, &companions, read)?;
        }
    }
    Ok(converted)
}

/// Model of the new folder, whose context is the maximum number of positions that it declares.
fn model_of_copy(recipe: &Recipe, target: Target) -> Result<Model, TrainError> {
    let mut model = recipe.model.clone();
    let Target::HuggingFace { max_positions, .. } = target else { return Ok(model) };
    let trained = model.context;
    match max_positions {
        None => model.context = recipe.max_positions.unwrap_or(trained),
        Some(max) if max > trained && model.family == Family::Gpt2 => {
            return Err(TrainError::Recipe(format!(
                "--max-positions {max} is above the {trained} learned positions of this model, and \
                 gpt2 has a tensor row for each; try --max-positions {trained}"
            )));
        }
        Some(max) => model.context = max,
    }
    Ok(model)
}

/// Recipe of the new run, which refers to the copied tokenizer.
fn recipe_of_copy(
    pretrained: &Pretrained,
    companions: &Companions,
    folder: &Path,
    world: &World,
) -> Result<Recipe, TrainError> {
    let has_tokenizer = companions.files.contains_key(huggingface::TOKENIZER);
    pretrained.recipe_with(world, |model| {
        if has_tokenizer {
            model.tokenizer = Some(folder.join(huggingface::TOKENIZER).display().to_string());
        }
    })
}

/// Writes a folder that `generate` and `inspect` accept as a finished run.
fn save_run(
    world: &World,
    folder: &Path,
    recipe: &Recipe,
    outlines: &BTreeMap<String, Vec<usize>>,
    companions: &Companions,
    mut read: impl FnMut(&str, &mut [f32]) -> Result<(), TrainError>,
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
        companions.save(world, partial)?;
        world.files().write_atomic(&run.recipe(), recipe.to_toml().as_bytes())?;
        Ok(hasher.finish())
    })
}

/// Tokenizer files and special token ids of a model. They lie beside the weights; a run takes
/// missing ones from the folder that it was initialized from.
fn vocabulary(
    pretrained: &Pretrained,
    recipe: &Recipe,
    world: &World,
) -> (Map<String, Value>, Companions) {
    let mut companions = huggingface::companions(world, pretrained.path());
    let special_tokens = match (pretrained.hugging_face(), parent(recipe, world)) {
        (Some(folder), _) => folder.config.special_tokens.clone(),
        (None, Some(parent)) => {
            let theirs = huggingface::companions(world, parent.path());
            if same_tokenizer(&companions, &theirs, world) {
                companions = theirs;
            }
            parent.config.special_tokens
        }
        (None, None) => huggingface::special_tokens(world, pretrained.path()),
    };
    let companions = companions.with_special_tokens(&special_tokens);
    (special_tokens, companions)
}

/// Whether two folders have the same `tokenizer.json`.
fn same_tokenizer(ours: &Companions, theirs: &Companions, world: &World) -> bool {
    let text = |companions: &Companions| {
        let path = companions.files.get(huggingface::TOKENIZER)?;
        world.files().read(path).ok()
    };
    text(ours).is_some_and(|ours| text(theirs) == Some(ours))
}

/// Hugging Face folder that the run was initialized from, if it still exists with the same
/// vocabulary.
fn parent(recipe: &Recipe, world: &World) -> Option<huggingface::Folder> {
    let path = (!recipe.from.is_empty()).then(|| PathBuf::from(&recipe.from))?;
    let folder = huggingface::Folder::open(world, &path).ok()?;
    (folder.config.model.vocab == recipe.model.vocab).then_some(folder)
}

/// Learned positions of the original model for which an export has no rows.
fn lost_positions(recipe: &Recipe, num_kept: usize, world: &World) -> Option<String> {
    let original = parent(recipe, world)?.config.model;
    let lost = original.family == Family::Gpt2 && original.context > num_kept;
    lost.then(|| {
        format!(
            "n_positions is {num_kept}, and {} in {}: learned positions after model.context are \
             not part of a run",
            original.context, recipe.from
        )
    })
}

/// Settings that `config.json` cannot express.
fn what_is_lost(recipe: &Recipe) -> Option<String> {
    let dropout = recipe.model.dropout;
    let llama = recipe.model.family == Family::Llama;
    (llama && dropout > 0.0).then(|| {
        format!(
            "model.dropout = {dropout} is not written: Llama in transformers has no such option"
        )
    })
}

//! Converts between run folders and Hugging Face model folders, and writes adapters, GGUF files and
//! folders of `torch.distributed.checkpoint`.
//!
//! A Hugging Face folder and a GGUF file have no adapters: they are merged into the weights beside
//! them. `peft` reads them from a folder of their own. Nor have they the multipliers of muP, which
//! move into weights.
//!
//! Tensors keep their names and bits; only a smaller element type rounds them. They are streamed
//! one at a time, so memory is bounded by the largest tensor. A model with rotary positions keeps
//! the maximum number of positions of the folder that it was initialized from; learned positions
//! are as many as the model has rows for them.

use crate::pretrained::{Pretrained, adapter_outlines, base_model, outlines};
use crate::run_folder::load_tokenizer;
use crate::vocabulary::companions_of_run;
use crate::{RunFolder, TrainError, dcp_export};
use lockstep_checkpoint::gguf::{self, TensorType};
use lockstep_checkpoint::huggingface::{self, Companions, Config, Export};
use lockstep_checkpoint::peft::{self, AdapterExport};
use lockstep_checkpoint::pytorch::export;
use lockstep_checkpoint::weights::{self, WeightsHasher};
use lockstep_checkpoint::{ElementType, new_folder};
use lockstep_config::{Family, Lora, Model, Mup, Recipe};
use lockstep_model::{describe, lora, mup_folding};
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
    /// Folder of low-rank adapters that `peft` loads.
    Peft {
        /// Element type of the matrices.
        format: ElementType,
    },
    /// File that llama.cpp runs.
    Gguf {
        /// Type of the matrices.
        tensor_type: TensorType,
    },
    /// Folder of `torch.distributed.checkpoint`, with the optimizer state where it was saved.
    Dcp,
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
    if let Target::Peft { format } = target {
        return save_adapters(&pretrained, &recipe, folder, format, world);
    }
    if target == Target::Dcp {
        return save_dcp(&pretrained, &recipe, folder, world, progress);
    }
    let model = model_of_copy(&recipe, target)?;
    let blueprint = describe(&model);
    let (total, mut done) = (blueprint.num_params() as u64, 0);
    let read = |name: &str, out: &mut [f32]| {
        read_plain(&pretrained, &recipe.model, target, name, out)?;
        done += out.len() as u64;
        progress(done, total);
        Ok::<_, TrainError>(())
    };
    let outlines = outlines(&blueprint);
    let (special_tokens, companions) = vocabulary(&pretrained, &recipe, world)?;
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
        Target::Peft { .. } | Target::Dcp => unreachable!("they have returned above"),
        Target::Gguf { tensor_type } => {
            converted.dtype = tensor_type.name();
            // Everything is in one file.
            converted.others.clear();
            let export = gguf::Export {
                model: &model,
                outlines: &outlines,
                tensor_type,
                companions: &companions,
                special_tokens: &special_tokens,
            };
            let saved = gguf::save(world, folder, &export, read)?;
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

/// Reads a whole tensor; formats of others get it without adapters and multipliers.
fn read_plain(
    pretrained: &Pretrained,
    model: &Model,
    target: Target,
    name: &str,
    out: &mut [f32],
) -> Result<(), TrainError> {
    pretrained.read(name, 0, out)?;
    if target != Target::Lockstep {
        merge_adapter(pretrained, &model.lora, name, out)?;
        mup_folding::fold(model, name, out);
    }
    Ok(())
}

/// Adds the product of an adapter's matrices to the weight beside it, if it has one.
fn merge_adapter(
    pretrained: &Pretrained,
    lora: &Lora,
    name: &str,
    weight: &mut [f32],
) -> Result<(), TrainError> {
    let Some([a, b]) = lora::names_beside(name).filter(|_| lora.is_on()) else { return Ok(()) };
    let (Some(a_len), Some(b_len)) = (pretrained.tensor_len(&a), pretrained.tensor_len(&b)) else {
        return Ok(());
    };
    let (mut of_a, mut of_b) = (vec![0.0; a_len], vec![0.0; b_len]);
    pretrained.read(&a, 0, &mut of_a)?;
    pretrained.read(&b, 0, &mut of_b)?;
    lora::merge(lora.rank, lora.scale(), &of_a, &of_b, weight);
    Ok(())
}

/// Writes the adapters of a run into a folder of their own.
fn save_adapters(
    pretrained: &Pretrained,
    recipe: &Recipe,
    folder: &Path,
    format: ElementType,
    world: &World,
) -> Result<Converted, TrainError> {
    let outlines = adapter_outlines(&describe(&recipe.model));
    if outlines.is_empty() {
        return Err(TrainError::NoAdapters { dir: pretrained.path().display().to_string() });
    }
    let num_params: usize = outlines.values().map(|shape| shape.iter().product::<usize>()).sum();
    let base_model = base_model(recipe, world);
    let export = AdapterExport {
        lora: &recipe.model.lora,
        base_model: base_model.as_deref(),
        outlines: &outlines,
        format,
    };
    let weights_hash =
        peft::save(world, folder, &export, |name, out| pretrained.read(name, 0, out))?;
    Ok(Converted {
        folder: folder.display().to_string(),
        num_params: num_params as u64,
        num_tensors: outlines.len() as u64,
        num_bytes: (num_params * format.num_bytes()) as u64,
        dtype: format.name(),
        files: vec![peft::FILE_NAME.to_owned()],
        others: vec![peft::CONFIG.to_owned()],
        weights_hash,
        notes: Vec::new(),
    })
}

/// Writes a folder of `torch.distributed.checkpoint`, whose names are those of the model.
fn save_dcp(
    pretrained: &Pretrained,
    recipe: &Recipe,
    folder: &Path,
    world: &World,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, TrainError> {
    if recipe.model.lora.is_on() {
        let dir = pretrained.path().display().to_string();
        return Err(TrainError::AdaptersInDcp { dir });
    }
    if recipe.model.mup.base_width.is_some() {
        let dir = pretrained.path().display().to_string();
        return Err(TrainError::MupInDcp { dir });
    }
    let outlines = outlines(&describe(&recipe.model));
    let total = describe(&recipe.model).num_params() as u64;
    let (mut hasher, mut done) = (WeightsHasher::default(), 0);
    let exported = dcp_export::save(pretrained, recipe, folder, world, |values| {
        hasher.update(values);
        done += values.len() as u64;
        progress(done, total);
    })?;
    let lost =
        "the optimizer state is not written: it was not saved, or is not that of adamw or adam";
    Ok(Converted {
        folder: folder.display().to_string(),
        num_params: total,
        num_tensors: outlines.len() as u64,
        num_bytes: exported.num_bytes,
        dtype: ElementType::F32.name(),
        files: vec![export::FILE_NAME.to_owned()],
        others: vec![".metadata".to_owned()],
        weights_hash: hasher.finish(),
        notes: (!exported.has_state).then(|| lost.to_owned()).into_iter().collect(),
    })
}

/// Model of the new folder, whose context is the maximum number of positions that it declares.
fn model_of_copy(recipe: &Recipe, target: Target) -> Result<Model, TrainError> {
    let mut model = recipe.model.clone();
    let max_positions = match target {
        Target::HuggingFace { max_positions, .. } => max_positions,
        Target::Gguf { .. } => None,
        Target::Peft { .. } | Target::Dcp | Target::Lockstep => return Ok(model),
    };
    (model.lora, model.mup) = (Lora::NONE, Mup::OFF);
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

/// Tokenizer files and special token ids of a model. They lie beside the weights; a run of an older
/// version takes missing ones from the folders that it has read.
fn vocabulary(
    pretrained: &Pretrained,
    recipe: &Recipe,
    world: &World,
) -> Result<(Map<String, Value>, Companions), TrainError> {
    let own = huggingface::companions(world, pretrained.path());
    if let Some(folder) = pretrained.hugging_face() {
        let special_tokens = folder.config.special_tokens.clone();
        let companions = own.with_special_tokens(&special_tokens);
        return Ok((special_tokens, companions));
    }
    let json = own.read(world, huggingface::TOKENIZER)?;
    let tokenizer = load_tokenizer(pretrained.path(), world)?;
    let end = recipe.data.end_of_document.parse().unwrap_or_default();
    let tokenizer = tokenizer.with_end_of_document(&end)?;
    let others = companions_of_run(recipe, json.as_deref(), Some(&tokenizer), world);
    let companions = own.or(others);
    let generation = companions.read(world, huggingface::GENERATION)?.unwrap_or_default();
    Ok((huggingface::special_tokens_in(&generation), companions))
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

//! Export of a folder that `transformers` loads.
//!
//! Weights are written to one file, or to several of at most the requested size (a tensor is never
//! split, so a larger one has a file of its own). Tensors are streamed one at a time, by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_platform::World;
use serde::Serialize;
use serde_json::json;

use super::{CONFIG, Config, shards};
use crate::weights::{FILE_NAME, WeightsHasher, save_each_as};
use crate::{CheckpointError, ElementType, new_folder};

/// Parameters of an export.
pub struct Export<'a> {
    /// Model configuration.
    pub config: &'a Config,
    /// Names and shapes of the tensors.
    pub outlines: &'a BTreeMap<String, Vec<usize>>,
    /// Number format of the weights.
    pub format: ElementType,
    /// Maximum size of a file.
    pub shard_bytes: u64,
    /// Vocabulary files.
    pub companions: &'a Companions,
}

/// Files of the vocabulary, which are copied with the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions {
    /// Files to copy, by target name.
    pub files: BTreeMap<String, PathBuf>,
    /// Texts of files that are written, by target name: such as a `generation_config.json` with
    /// the special tokens where no file has them.
    pub texts: BTreeMap<String, String>,
}

impl Companions {
    /// Target names.
    pub fn names(&self) -> Vec<String> {
        self.files.keys().chain(self.texts.keys()).cloned().collect()
    }

    /// Writes the files into a folder.
    pub fn save(&self, world: &World, folder: &Path) -> Result<(), CheckpointError> {
        for (name, file) in &self.files {
            new_folder::copy(world, file, &folder.join(name))?;
        }
        for (name, text) in &self.texts {
            world.files().write_atomic(&folder.join(name), text.as_bytes())?;
        }
        Ok(())
    }
}

/// Result of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// Files with weights, in order.
    pub files: Vec<String>,
    /// Size of all weights in bytes.
    pub num_bytes: u64,
    /// The [`crate::weights_hash`] of the weights before rounding.
    pub weights_hash: String,
}

/// Writes a new folder atomically. `read` returns the elements of a tensor by name.
pub fn save<E: From<CheckpointError>>(
    world: &World,
    folder: &Path,
    export: &Export<'_>,
    mut read: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<Saved, E> {
    new_folder::create(world, folder, |partial| {
        let mut hasher = WeightsHasher::default();
        let plan = plan(export);
        let notes = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        for (file_name, outlines) in &plan {
            let path = partial.join(file_name);
            save_each_as(world, &path, export.format, outlines, &notes, |take| {
                for (name, shape) in outlines {
                    let mut data = vec![0.0; shape.iter().product()];
                    read(name, &mut data)?;
                    hasher.update(&data);
                    take(&data)?;
                }
                Ok::<(), E>(())
            })?;
        }
        let write = |name: &str, text: &str| {
            let written = world.files().write_atomic(&partial.join(name), text.as_bytes());
            written.map_err(CheckpointError::from)
        };
        if plan.len() > 1 {
            write(shards::INDEX, &index(export, &plan))?;
        }
        export.companions.save(world, partial)?;
        write(CONFIG, &export.config.to_json(export.format))?;
        Ok(Saved {
            files: plan.into_iter().map(|(name, _)| name).collect(),
            num_bytes: num_bytes(export),
            weights_hash: hasher.finish(),
        })
    })
}

type Outlines = Vec<(String, Vec<usize>)>;

/// The files, each with its tensors.
fn plan(export: &Export<'_>) -> Vec<(String, Outlines)> {
    let mut parts: Vec<Outlines> = vec![Vec::new()];
    let mut part_bytes = 0;
    for (name, shape) in export.outlines {
        let bytes = tensor_bytes(shape, export.format);
        let part = parts.last_mut().expect("there is at least one");
        if part_bytes + bytes > export.shard_bytes && !part.is_empty() {
            parts.push(vec![(name.clone(), shape.clone())]);
            part_bytes = bytes;
        } else {
            part.push((name.clone(), shape.clone()));
            part_bytes += bytes;
        }
    }
    let num_parts = parts.len();
    let file_name = |index: usize| match num_parts {
        1 => FILE_NAME.to_owned(),
        _ => format!("model-{:05}-of-{num_parts:05}.safetensors", index + 1),
    };
    parts.into_iter().enumerate().map(|(index, part)| (file_name(index), part)).collect()
}

fn index(export: &Export<'_>, plan: &[(String, Outlines)]) -> String {
    let places = plan.iter().flat_map(|(file, outlines)| {
        outlines.iter().map(move |(name, _)| (name.as_str(), file.as_str()))
    });
    let weight_map: BTreeMap<&str, &str> = places.collect();
    let num_params: usize =
        export.outlines.values().map(|shape| shape.iter().product::<usize>()).sum();
    let value = json!({
        "metadata": { "total_parameters": num_params, "total_size": num_bytes(export) },
        "weight_map": weight_map,
    });
    serde_json::to_string_pretty(&value).expect("a map by text is JSON") + "\n"
}

fn num_bytes(export: &Export<'_>) -> u64 {
    export.outlines.values().map(|shape| tensor_bytes(shape, export.format)).sum()
}

fn tensor_bytes(shape: &[usize], format: ElementType) -> u64 {
    (shape.iter().product::<usize>() * format.num_bytes()) as u64
}

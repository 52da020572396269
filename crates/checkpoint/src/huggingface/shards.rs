//! Weight shards of a folder and their index.
//!
//! A small model is one file. A large one is several with an index; index and files must agree on
//! every name, so that an index of another model is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lockstep_platform::World;
use serde::Deserialize;

use super::config::Config;
use crate::error::quoted;
use crate::weights::{FILE_NAME, Tensors, WeightsFile};
use crate::{CheckpointError, pytorch};

/// File name of the shard index.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Weight files in unsupported formats.
const UNSUPPORTED: &[&str] = &[
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "consolidated.00.pth",
];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Tensors of a folder, from one file or from the shards of its index.
pub(super) fn open(
    world: &World,
    folder: &Path,
    config: &Config,
) -> Result<Tensors, CheckpointError> {
    let exists = |name: &str| world.files().metadata(&folder.join(name)).is_some();
    let mut tensors = Tensors::empty(folder);
    let names = |stored: &str| config.name_of(stored);
    if exists(FILE_NAME) {
        tensors.add(WeightsFile::open(world, &folder.join(FILE_NAME))?, names)?;
        return Ok(tensors);
    }
    let foreign = |reason: String| CheckpointError::Foreign { path: folder.to_owned(), reason };
    if !exists(INDEX) {
        if let Some(tensors) = pytorch::weights(world, folder, &config.model, names)? {
            return Ok(tensors);
        }
        return Err(foreign(match UNSUPPORTED.iter().find(|name| exists(name)) {
            Some(name) => format!("its weights are in {name}; save them as safetensors"),
            None => format!("it holds no weights (no {FILE_NAME}, no {INDEX})"),
        }));
    }
    let Index { weight_map } = read_index(world, &folder.join(INDEX))?;
    for file_name in weight_map.values().collect::<BTreeSet<_>>() {
        let file = WeightsFile::open(world, &folder.join(file_name))?;
        compare_with_index(folder, file_name, &file, &weight_map)?;
        tensors.add(file, names)?;
    }
    Ok(tensors)
}

/// Whether a folder has no weights in any format.
pub(super) fn are_missing(world: &World, folder: &Path) -> bool {
    let mut names = UNSUPPORTED.iter().chain(&[FILE_NAME, INDEX]);
    !names.any(|name| world.files().metadata(&folder.join(name)).is_some())
        && !pytorch::is_one(world, folder)
}

fn read_index(world: &World, path: &Path) -> Result<Index, CheckpointError> {
    let foreign = |reason: &str| CheckpointError::Foreign {
        path: path.to_owned(),
        reason: quoted(&format!("not an index of weights: {reason}")),
    };
    let bytes = world.files().read(path)?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|e| foreign(&e.to_string()))?;
    // A name that leads out of the folder is an attack, not a shard of the model.
    let is_plain = |name: &str| !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    match index.weight_map.values().find(|name| !is_plain(name)) {
        Some(name) => Err(foreign(&format!("{name} is not the name of a file beside it"))),
        None if index.weight_map.is_empty() => Err(foreign("it names no tensor")),
        None => Ok(index),
    }
}

fn compare_with_index(
    folder: &Path,
    file_name: &str,
    file: &WeightsFile,
    weight_map: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let expected = weight_map.iter().filter(|(_, name)| *name == file_name).map(|(name, _)| name);
    let expected: BTreeSet<&String> = expected.collect();
    let held = file.names();
    let held: BTreeSet<&String> = held.iter().collect();
    let foreign = |reason: String| CheckpointError::Foreign { path: folder.join(INDEX), reason };
    if let Some(name) = expected.difference(&held).next() {
        let name = quoted(name);
        return Err(foreign(format!("it places tensor {name} in {file_name}, which lacks it")));
    }
    match held.difference(&expected).next() {
        None => Ok(()),
        Some(name) => {
            let name = quoted(name);
            Err(foreign(format!("it does not place tensor {name} in {file_name}, which has it")))
        }
    }
}

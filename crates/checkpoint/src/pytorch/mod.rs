//! Checkpoints of PyTorch programs: folders of `torch.distributed.checkpoint`, of DeepSpeed and of
//! Megatron-LM.
//!
//! All are pickles with tensors; `pickle` reads them as plain data and executes nothing. A folder
//! with the model's `config.json` in it is opened like any Hugging Face folder; its optimizer state
//! continues a run.
//!
//! - `pickle`: pickles as data; `archive`: files of `torch.save`
//! - `chunk`, `placed`: tensors in chunks
//! - `distributed`: folders of `torch.distributed.checkpoint`; `deepspeed`: those of DeepSpeed;
//!   `megatron`: weights of Megatron-Core by the names of `transformers`
//! - [`export`]: folders of `torch.distributed.checkpoint`, written
//! - `names`: parameters and optimizer state by the names of a state dictionary

mod archive;
mod archive_writer;
mod chunk;
mod deepspeed;
mod distributed;
pub mod export;
mod megatron;
mod names;
mod pickle;
mod pickle_writer;
mod placed;

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_config::Model;
use lockstep_platform::World;

use crate::error::quoted;
use crate::weights::{TensorSource, Tensors};
use crate::{CheckpointError, huggingface};
use megatron::MegatronTensors;
use names::Names;
use placed::PlacedTensors;

/// Contents of a checkpoint: parameters and the state of its optimizer.
struct StateDictionary {
    tensors: PlacedTensors,
    names: Names,
    /// Number of updates, where it is not among the tensors.
    step: Option<u64>,
}

/// State of an optimizer, from which a run continues.
pub struct OptimizerState {
    /// Number of updates.
    pub step: u64,
    /// Values by the parameter's name and the kind of state, `weight.m`; of the parameter's shape.
    pub tensors: Tensors,
}

/// Whether a folder is a checkpoint of a training program, apart from its weights' own files.
pub fn is_one(world: &World, folder: &Path) -> bool {
    let exists = |name: &str| world.files().metadata(&folder.join(name)).is_some();
    exists(distributed::METADATA)
        || deepspeed::find(world, folder).is_some()
        || megatron::newest_iteration(world, folder).is_some()
}

/// Parameters of a folder, if it is such a checkpoint; `name_of` maps a name of the model to the
/// engine's.
pub(crate) fn weights(
    world: &World,
    folder: &Path,
    model: &Model,
    name_of: impl Fn(&str) -> Option<String>,
) -> Result<Option<Tensors>, CheckpointError> {
    if !is_one(world, folder) {
        return Ok(None);
    }
    if let Some((stored, prefix)) = open_megatron(world, folder)? {
        let mut all = Tensors::empty(folder);
        all.add(MegatronTensors::new(stored, &prefix, model)?, name_of)?;
        return Ok(Some(all));
    }
    let StateDictionary { tensors, names, .. } = open(world, folder)?;
    let own_names = names.model.iter().map(|(own, stored)| (stored.as_str(), own.as_str()));
    let own_names: BTreeMap<_, _> = own_names.collect();
    let mut all = Tensors::empty(folder);
    all.add(tensors, |stored| name_of(own_names.get(stored)?))?;
    Ok(Some(all))
}

/// State of the optimizer of a Hugging Face model whose folder is such a checkpoint.
pub fn optimizer_state(
    world: &World,
    folder: &huggingface::Folder,
) -> Result<OptimizerState, CheckpointError> {
    let path = folder.path();
    let foreign =
        |reason: &str| CheckpointError::Foreign { path: path.to_owned(), reason: quoted(reason) };
    if open_megatron(world, path)?.is_some() {
        return Err(foreign(
            "the optimizer state of Megatron-Core is not read; train from the folder instead of \
             resuming",
        ));
    }
    let dictionary = open(world, path)?;
    if dictionary.names.is_by_number() {
        return Err(foreign(
            "its optimizer state has numbers instead of names; save it with \
             torch.distributed.checkpoint.state_dict.get_state_dict",
        ));
    }
    if dictionary.names.state.is_empty() {
        return Err(foreign("it has no optimizer state; train from it instead of resuming"));
    }
    let step = dictionary.num_updates().map_err(|reason| foreign(&reason))?;
    let StateDictionary { tensors, names, .. } = dictionary;
    let names = names.state.iter().map(|((own, kind), stored)| (stored.as_str(), (own, *kind)));
    let names: BTreeMap<_, _> = names.collect();
    let mut all = Tensors::empty(path);
    all.add(tensors, |stored| {
        let (own, kind) = names.get(stored)?;
        Some(format!("{}.{kind}", folder.config.name_of(own)?))
    })?;
    Ok(OptimizerState { step, tensors: all })
}

/// Tensors of a checkpoint of Megatron-Core and the prefix of their names, if it is one.
fn open_megatron(
    world: &World,
    folder: &Path,
) -> Result<Option<(PlacedTensors, String)>, CheckpointError> {
    let is_distributed =
        |path: &Path| world.files().metadata(&path.join(distributed::METADATA)).is_some();
    let mut path = folder.to_owned();
    if !is_distributed(folder) {
        let Some(iteration) = megatron::newest_iteration(world, folder) else { return Ok(None) };
        if !is_distributed(&iteration) {
            let reason = "Megatron-LM has not saved it in the format torch_dist; save it again \
                          with --ckpt-format torch_dist";
            return Err(CheckpointError::Foreign { path: iteration, reason: reason.to_owned() });
        }
        path = iteration;
    }
    let stored = distributed::open(world, &path)?;
    let prefix = megatron::prefix_of(stored.names().iter());
    Ok(prefix.map(|prefix| (stored, prefix)))
}

fn open(world: &World, folder: &Path) -> Result<StateDictionary, CheckpointError> {
    let is_distributed = world.files().metadata(&folder.join(distributed::METADATA)).is_some();
    let (tensors, step) = match deepspeed::find(world, folder) {
        Some(found) if !is_distributed => deepspeed::open(world, &found)?,
        _ => (distributed::open(world, folder)?, None),
    };
    let names = Names::sort(tensors.names().iter().map(String::as_str));
    if names.model.is_empty() {
        return Err(CheckpointError::Foreign {
            path: folder.to_owned(),
            reason: "it has no token embedding (embed_tokens.weight, wte.weight, \
                     embed_in.weight or word_embeddings.weight), so the model in it is unknown"
                .to_owned(),
        });
    }
    Ok(StateDictionary { tensors, names, step })
}

impl StateDictionary {
    /// Number of updates, which must be that of all parameters.
    fn num_updates(&self) -> Result<u64, String> {
        let mut found = self.step;
        for name in &self.names.steps {
            let mut step = [0.0];
            self.tensors.read(name, 0, &mut step).map_err(|error| error.to_string())?;
            // Counts beyond 2^24 are not whole in the f32 that PyTorch keeps them in.
            let step = step[0] as u64;
            match found {
                Some(before) if before != step => {
                    return Err(format!(
                        "parameters have {before} and {step} updates; they must have \
                                        equally many"
                    ));
                }
                _ => found = Some(step),
            }
        }
        found.ok_or_else(|| "it does not say how many updates were made".to_owned())
    }
}

#[cfg(test)]
mod tests;

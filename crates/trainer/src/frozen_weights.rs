//! Reads the weights that a model freezes in four bits.
//!
//! A rank reads the tensors of its blocks from the folder of `model.from`, or makes their initial
//! values, and quantises them one after the other: none is in memory as `f32`. Data-parallel ranks
//! verify that they hold the same ones. A resumed run reads them again, so checkpoints have none.

use crate::TrainError;
use crate::pretrained::read_base;
use lockstep_config::Recipe;
use lockstep_parallel::{Replica, Stages};
use lockstep_platform::World;

/// Reads and quantises the frozen weights of this rank's blocks.
pub(crate) fn load(
    recipe: &Recipe,
    world: &World,
    replica: &Replica,
    stages: &Stages,
) -> Result<(), TrainError> {
    let blueprint = replica.blueprint();
    let Some((tile, tile_len)) = blueprint.tile() else { return Ok(()) };
    let stage = replica.groups().pipeline().group_rank();
    let own = blueprint.frozen_tensors().filter(|(block, _)| stages.device_of(*block) == stage);
    let own: Vec<_> = own.map(|(_, tensor)| tensor).collect();
    if own.is_empty() {
        return Ok(());
    }
    let read = read_base(recipe, world)?;
    for tensor in &own {
        tensor.load(|first, out| read(&tensor.param, first, out))?;
    }
    tile.allocate(tile_len);
    let comm = replica.groups().data();
    let own = own.iter().map(|tensor| tensor.fingerprint().expect("just loaded"));
    let own: Vec<_> = own.collect();
    let mut all = vec![0; own.len() * comm.group_size()];
    comm.all_gather(&own, &mut all)?;
    let differs = all.chunks(own.len()).position(|theirs| theirs != &all[..own.len()]);
    let Some(worker) = differs else { return Ok(()) };
    let (dir, tensor) = (recipe.from.clone(), "finetune.quant_type".to_owned());
    Err(TrainError::FoldersDiffer { dir, worker, tensor })
}

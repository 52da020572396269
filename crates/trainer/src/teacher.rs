//! Teacher of a distillation: its folder and its weights.
//!
//! The rank with the loss reads all weights of the folder, and data-parallel ranks verify that they
//! have read the same ones. A resumed run reads them again, so nothing of a teacher is saved.

use crate::TrainError;
use crate::pretrained::{Pretrained, TEACHER};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_parallel::from_recipe::microbatch_shape;
use lockstep_parallel::{Replica, Stages};
use lockstep_platform::World;
use lockstep_tensor::Cpu;

/// Refuses a teacher whose folder has other tensors than its model.
pub(crate) fn check(recipe: &Recipe, world: &World) -> Result<(), TrainError> {
    let Some(model) = recipe.teacher() else { return Ok(()) };
    Pretrained::of_key(TEACHER, &recipe.finetune.teacher, world)?.prove(&describe(&model))
}

/// Reads the weights of the teacher, if this rank has the loss.
pub(crate) fn load(
    recipe: &Recipe,
    world: &World,
    cpu: &Cpu,
    replica: &Replica,
    stages: &Stages,
) -> Result<(), TrainError> {
    let blueprint = replica.blueprint();
    let (Some(teacher), Some(model)) = (&blueprint.teacher, recipe.teacher()) else {
        return Ok(());
    };
    let stage = replica.groups().pipeline().group_rank();
    if stages.device_of(blueprint.blocks.len() - 1) != stage {
        return Ok(());
    }
    let dir = &recipe.finetune.teacher;
    let params = Pretrained::of_key(TEACHER, dir, world)?.params(&describe(&model))?;
    let comm = replica.groups().data();
    let mut all = vec![0; comm.group_size()];
    comm.all_gather(&[fingerprint(&params)], &mut all)?;
    if let Some(worker) = all.iter().position(|other| *other != all[0]) {
        let (dir, tensor) = (dir.clone(), "finetune.teacher".to_owned());
        return Err(TrainError::FoldersDiffer { dir, worker, tensor });
    }
    Ok(teacher.load(cpu, params, microbatch_shape(recipe))?)
}

/// Number that differs where a parameter does: FNV-1a over the words of all.
fn fingerprint(params: &[Vec<f32>]) -> u64 {
    let step =
        |state: u64, x: &f32| (state ^ u64::from(x.to_bits())).wrapping_mul(0x0100_0000_01b3);
    params.iter().flatten().fold(0xcbf2_9ce4_8422_2325, step)
}

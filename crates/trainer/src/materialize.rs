//! Allocates the model, the optimizer and the buffers of one rank.

use crate::device;
use crate::health::Stability;
use crate::learner::{Learner, Milestone, optimizer_at};
use crate::{TrainError, frozen_weights, stragglers, teacher};
use lockstep_config::units::Bytes;
use lockstep_config::{Partition, Recipe};
use lockstep_model::Blueprint;
use lockstep_optim::{ClipPlan, LearningRate, LossScaler, Optimizer};
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::{Groups, Replica, Stages, block_profile, bucket_tuning, strategies};
use lockstep_platform::World;
use lockstep_tensor::device::Compute;

/// Allocates the training state of a rank and initializes its weights.
pub fn materialize(
    recipe: &Recipe,
    compute: &Compute,
    groups: &Groups,
    world: &World,
) -> Result<Learner, TrainError> {
    materialize_model(blueprint_of_rank(recipe, groups.rank()), recipe, compute, groups, world)
}

/// Like [`materialize`], for these blocks instead of those of the recipe's family.
pub fn materialize_model(
    blueprint: Blueprint,
    recipe: &Recipe,
    compute: &Compute,
    groups: &Groups,
    world: &World,
) -> Result<Learner, TrainError> {
    let seed = recipe.train.seed;
    let mut plan = plan_at(recipe, &blueprint, 0);
    if recipe.num_servers() == 0 && recipe.parallel.bucket_bytes == Bytes(0) {
        plan.bucket_len = bucket_tuning::bucket_len(groups, world, blueprint.num_params())?;
    }
    if recipe.parallel.partition == Partition::Measured {
        let costs =
            block_profile::block_costs(&blueprint, plan.microbatch, compute, groups, world)?;
        plan.stages = Stages::by_costs(recipe, &costs);
    }
    let batches = recipe.batch_plan();
    let current = Milestone { phase: plan.phase, batch: batches.at(0).batch };
    let (phases, stages) = (plan.phases.clone(), plan.stages.clone());
    let mut replica =
        Replica::materialize_in_groups(blueprint, seed, compute, plan, groups.clone(), world)?;
    teacher::load(recipe, world, compute, &replica, &stages)?;
    frozen_weights::load(recipe, world, &replica, &stages)?;
    replica.adopt(strategies::plan_of(recipe))?;
    stragglers::prepare(recipe, world, &mut replica)?;
    let tensors = replica.blueprint().tensors();
    let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
    let optimizer = match recipe.num_servers() {
        0 => optimizer_at(recipe, &replica, 0, world)?,
        // The servers hold the optimizer state.
        _ => Optimizer::new(&recipe.optim, &[]),
    };
    Ok(Learner {
        optimizer,
        world: world.clone(),
        kernel_class: device::kernel_class(recipe, compute),
        device_name: device::name(compute),
        lr: LearningRate::new(&recipe.optim, recipe.train.steps),
        clip,
        batches,
        phases,
        current,
        stability: Stability {
            num_skipped: 0,
            num_skipped_in_phase: 0,
            scaler: LossScaler::new(&recipe.precision),
        },
        replica,
    })
}

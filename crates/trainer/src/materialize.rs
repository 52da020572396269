//! Allocates the model, the optimizer and the buffers of one rank.

use crate::device;
use crate::health::Stability;
use crate::learner::{Learner, Milestone, optimizer_at};
use crate::{TrainError, frozen_weights, stragglers, teacher};
use lockstep_config::units::Bytes;
use lockstep_config::{Partition, Recipe};
use lockstep_model::Blueprint;
use lockstep_optim::{ClipPlan, LearningRate, LossScaler, Optimizer};
use lockstep_parallel::from_recipe::{blueprint_of_rank, phases_of, plan_at};
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
    let strategy = strategies::plan_of(recipe);
    let holds_state = strategy.holds_optimizer_state();
    // Ranks that hold it for the workers cut buckets by the recipe alone.
    if holds_state && recipe.parallel.bucket_bytes == Bytes(0) {
        plan.bucket_len = bucket_tuning::bucket_len(groups, world, blueprint.num_params())?;
    }
    if recipe.parallel.partition == Partition::Measured {
        let costs =
            block_profile::block_costs(&blueprint, plan.microbatch, compute, groups, world)?;
        plan.stages = Stages::by_costs(recipe, &costs);
    }
    let stages = plan.stages.clone();
    let mut replica =
        Replica::materialize_in_groups(blueprint, seed, compute, plan, groups.clone(), world)?;
    teacher::load(recipe, world, compute, &replica, &stages)?;
    frozen_weights::load(recipe, world, &replica, &stages)?;
    replica.adopt(strategy)?;
    stragglers::prepare(recipe, world, &mut replica)?;
    let optimizer = if holds_state {
        optimizer_at(recipe, &replica, 0, world)?
    } else {
        Optimizer::new(&recipe.optim, &[])
    };
    Ok(learner_of(recipe, compute, world, replica, optimizer))
}

/// State of a rank with a new replica and its optimizer.
pub(crate) fn learner_of(
    recipe: &Recipe,
    compute: &Compute,
    world: &World,
    replica: Replica,
    optimizer: Optimizer,
) -> Learner {
    let tensors = replica.blueprint().tensors();
    let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
    let (batches, phases) = (recipe.batch_plan(), phases_of(recipe, replica.blueprint()));
    Learner {
        optimizer,
        world: world.clone(),
        kernel_class: device::kernel_class(recipe, compute),
        device_name: device::name(compute),
        lr: LearningRate::new(&recipe.optim, recipe.train.steps),
        clip,
        current: Milestone { phase: phases.at(0), batch: batches.at(0).batch },
        batches,
        phases,
        stability: Stability {
            num_skipped: 0,
            num_skipped_in_phase: 0,
            scaler: LossScaler::new(&recipe.precision),
        },
        replica,
    }
}

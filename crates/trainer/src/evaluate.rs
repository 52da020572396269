//! Loss on held-out text: fixed lanes, summed in lane order in `f64`.

use crate::train::lane_shape;
use lockstep_comm::CommError;
use lockstep_config::Recipe;
use lockstep_data::Validation;
use lockstep_model::Lane;
use lockstep_parallel::Replica;
use lockstep_tensor::Cpu;

/// Whether the model is evaluated after `num_steps` steps: every `train.eval_every`, and at the
/// end of the run.
pub fn is_due(recipe: &Recipe, num_steps: u64, last_step: u64) -> bool {
    let every = recipe.train.eval_every;
    num_steps == last_step || (every > 0 && num_steps.is_multiple_of(every))
}

/// Whether a validation loss is what the run was after.
pub fn is_reached(recipe: &Recipe, validation_loss: f64) -> bool {
    recipe.train.target_loss.is_some_and(|target| validation_loss <= target)
}

/// Mean loss over the validation lanes, in nats a token.
pub fn validation_loss(
    replica: &mut Replica,
    cpu: &Cpu,
    recipe: &Recipe,
    validation: &Validation,
) -> Result<f64, CommError> {
    let lane = |index: usize| {
        let lane = &validation.lanes[index];
        Lane {
            shape: lane_shape(recipe),
            inputs: &lane.inputs,
            targets: &lane.targets,
            first_sample: lane.first_sample,
            num_targets: validation.num_targets,
        }
    };
    let sum = replica.evaluate(cpu, validation.lanes.len(), &lane)?;
    Ok(sum / validation.num_targets as f64)
}

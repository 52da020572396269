//! Loss on held-out text: fixed micro-batches, summed in micro-batch order in `f64`. Small problems are judged by
//! their own measure besides.

use crate::train::microbatch_shape;
use lockstep_comm::{Comm, CommError};
use lockstep_config::Recipe;
use lockstep_data::Validation;
use lockstep_model::Microbatch;
use lockstep_model::problem::{Assessment, Judge};
use lockstep_parallel::Replica;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;

/// Whether the model is evaluated after `num_steps` steps: every `train.eval_every`, and at the
/// end of the run.
pub fn is_due(recipe: &Recipe, num_steps: u64, last_step: u64) -> bool {
    num_steps == last_step || recipe.is_due_every(recipe.train.eval_every, num_steps)
}

/// Whether a validation loss is what the run was after.
pub fn is_reached(recipe: &Recipe, validation_loss: f64) -> bool {
    recipe.train.target_loss.is_some_and(|target| validation_loss <= target)
}

/// What a model is judged with.
pub struct Examiner {
    validation: Validation,
    /// Of a problem, on the worker that tells about it.
    judge: Option<Judge>,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Examination {
    /// Mean loss on what was held out.
    pub validation_loss: f64,
    /// The verdict on a problem's solution.
    pub assessment: Option<Assessment>,
    /// The loss of a solution of the problem that knows nothing.
    pub baseline_loss: Option<f64>,
}

impl Examiner {
    /// Takes what is held out of the corpus; the first worker computes a problem's optimum too.
    pub fn new(recipe: &Recipe, validation: Validation, comm: &Comm) -> Self {
        let judge = if comm.group_rank() == 0 { Judge::of(&recipe.model) } else { None };
        Self { validation, judge }
    }

    /// Judges the model, or the mean of all workers' where each has its own. All workers do so
    /// together.
    pub fn examine(
        &self,
        replica: &mut Replica,
        cpu: &Cpu,
        recipe: &Recipe,
    ) -> Result<Examination, CommError> {
        replica.show_mean()?;
        let found = Examination {
            validation_loss: validation_loss(replica, cpu, recipe, &self.validation)?,
            assessment: self.assess(replica, cpu, recipe)?,
            baseline_loss: self.judge.as_ref().map(Judge::baseline_loss),
        };
        replica.hide_mean()?;
        Ok(found)
    }

    /// The verdict on a problem's solution, for which all workers bring their parts of it.
    fn assess(
        &self,
        replica: &mut Replica,
        cpu: &Cpu,
        recipe: &Recipe,
    ) -> Result<Option<Assessment>, CommError> {
        if !recipe.model.family.is_problem() {
            return Ok(None);
        }
        let blueprint = replica.blueprint();
        let block_of: BTreeMap<_, _> =
            blueprint.owned_params().map(|(block, param)| (param.name.clone(), block)).collect();
        let mut params: Vec<_> =
            blueprint.blocks.iter().map(|block| vec![0.0; block.num_params()]).collect();
        replica.visit_params(|param, values| {
            params[block_of[&param.name]][param.range()].copy_from_slice(values);
            Ok::<_, CommError>(())
        })?;
        Ok(self.judge.as_ref().map(|judge| judge.assess(cpu, replica.blueprint(), &params)))
    }
}

/// Mean loss over the validation micro-batches, in nats a token.
fn validation_loss(
    replica: &mut Replica,
    cpu: &Cpu,
    recipe: &Recipe,
    validation: &Validation,
) -> Result<f64, CommError> {
    let microbatch = |index: usize| {
        let microbatch = &validation.microbatches[index];
        Microbatch {
            shape: microbatch_shape(recipe),
            inputs: &microbatch.inputs,
            targets: &microbatch.targets,
            first_sample: microbatch.first_sample,
            num_targets: validation.num_targets,
        }
    };
    let sum = replica.evaluate(cpu, validation.microbatches.len(), &microbatch)?;
    Ok(sum / validation.num_targets as f64)
}

//! Training must stay among the finite numbers, and all workers must hold the same weights.
//!
//! Every worker sees the same loss and the same norm, so all of them come to the same verdict
//! before the step: none steps where another does not.

use crate::TrainError;
use crate::saved::Learner;
use lockstep_config::Recipe;
use lockstep_model::Microbatch;
use lockstep_optim::Clip;
use lockstep_parallel::Replica;
use lockstep_tensor::Cpu;

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is taken.
    Step,
    /// It is left out: the scale of the loss was too large for a gradient, and the next is less.
    Overflow,
    /// It is left out for another number that is not finite.
    Skip,
}

/// Whether the step may be taken. One whose gradient overflows at the scale of the loss is left
/// out, and the next has half of it, as long as there is less. One that has no such excuse is
/// skipped as often in a row as the recipe allows; then the run ends with the first worker, block
/// and tensor at fault.
pub fn agree<'a>(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    loss: f64,
    clip: &Clip,
    learner: &mut Learner,
    microbatch: &dyn Fn(usize) -> Microbatch<'a>,
) -> Result<Verdict, TrainError> {
    if loss.is_finite() && clip.norm.is_finite() {
        learner.num_skipped = 0;
        learner.scaler.go_on();
        return Ok(Verdict::Step);
    }
    learner.num_skipped_in_phase += 1;
    // The loss itself is never scaled: where it is not finite, no scale would help.
    if loss.is_finite() && learner.scaler.overflow() {
        return Ok(Verdict::Overflow);
    }
    learner.num_skipped += 1;
    if learner.num_skipped <= recipe.train.max_skipped {
        return Ok(Verdict::Skip);
    }
    let culprit = learner.replica.find_non_finite(cpu, recipe.train.seed, step, microbatch)?;
    let what = if loss.is_finite() { "the gradient norm" } else { "the loss" };
    let value = if loss.is_finite() { clip.norm } else { loss };
    let source = culprit.map_or(String::new(), |found| {
        format!(
            " (first on worker {}, micro-batch {}, block {}: gradient of {}, element {})",
            found.worker, found.microbatch, found.block, found.name, found.element
        )
    });
    Err(TrainError::Diverged { step, what: what.to_owned(), value, source_of: source })
}

/// Compares the weights of all workers, where it is time to.
pub fn compare_replicas(
    recipe: &Recipe,
    num_steps: u64,
    replica: &mut Replica,
) -> Result<(), TrainError> {
    if !recipe.is_due_every(recipe.run.check_replicas_every, num_steps) {
        return Ok(());
    }
    match replica.find_difference()? {
        None => Ok(()),
        Some(differs) => Err(TrainError::ReplicasDiffer {
            step: num_steps,
            worker: differs.worker,
            tensor: differs.name,
        }),
    }
}

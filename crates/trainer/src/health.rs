//! Numerical health: finite losses and gradients, and identical replicas.
//!
//! Every worker has the same loss and gradient norm and therefore takes the same decision before
//! the update.

use crate::TrainError;
use lockstep_config::Recipe;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, LossScaler};
use lockstep_parallel::Replica;
use lockstep_tensor::Cpu;

/// Loss scale and skipped steps of a rank.
pub struct Stability {
    /// Number of steps skipped in a row.
    pub num_skipped: u64,
    /// Number of steps skipped in this phase, which the optimizer does not count.
    pub num_skipped_in_phase: u64,
    /// Dynamic loss scale.
    pub scaler: LossScaler,
}

/// Decision on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The update is applied.
    Step,
    /// The update is skipped: a gradient overflowed at the current loss scale, which is halved.
    Overflow,
    /// The update is skipped: the loss or the gradient is not finite for another reason.
    Skip,
}

impl Verdict {
    /// Decision of a rank that steps alone.
    pub(crate) fn of(loss: f64, clip: &Clip) -> Self {
        if loss.is_finite() && clip.norm.is_finite() { Self::Step } else { Self::Skip }
    }
}

/// Ends the run of a rank that steps alone after more than `train.max_skipped` skipped steps in a
/// row; `place` is the kind and number of what took the step.
pub(crate) fn count_skipped(
    recipe: &Recipe,
    step: u64,
    (loss, clip): (f64, &Clip),
    stability: &mut Stability,
    (kind, number): (&str, usize),
) -> Result<(), TrainError> {
    let is_taken = Verdict::of(loss, clip) == Verdict::Step;
    stability.num_skipped = if is_taken { 0 } else { stability.num_skipped + 1 };
    if stability.num_skipped <= recipe.train.max_skipped {
        return Ok(());
    }
    Err(diverged(step, loss, clip, format!(" (on {kind} {number})")))
}

fn diverged(step: u64, loss: f64, clip: &Clip, source_of: String) -> TrainError {
    let what = if loss.is_finite() { "the gradient norm" } else { "the loss" }.to_owned();
    let value = if loss.is_finite() { clip.norm } else { loss };
    TrainError::Diverged { step, what, value, source_of }
}

/// Decides whether to apply the update. A gradient overflow skips the step and halves the loss
/// scale, while it can be halved. Any other non-finite value skips up to `train.max_skipped` steps
/// in a row; then the run ends and names the first worker, block and tensor at fault.
pub fn agree<'a>(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    loss: f64,
    clip: &Clip,
    replica: &mut Replica,
    stability: &mut Stability,
    microbatch: &dyn Fn(usize) -> Microbatch<'a>,
) -> Result<Verdict, TrainError> {
    if loss.is_finite() && clip.norm.is_finite() {
        stability.num_skipped = 0;
        stability.scaler.record_clean_step();
        return Ok(Verdict::Step);
    }
    stability.num_skipped_in_phase += 1;
    // The loss itself is not scaled, so a smaller scale cannot fix it.
    if loss.is_finite() && stability.scaler.record_overflow() {
        return Ok(Verdict::Overflow);
    }
    stability.num_skipped += 1;
    if stability.num_skipped <= recipe.train.max_skipped {
        return Ok(Verdict::Skip);
    }
    let culprit = replica.find_non_finite(cpu, recipe.train.seed, step, microbatch)?;
    let source = culprit.map_or(String::new(), |found| {
        format!(
            " (first on worker {}, micro-batch {}, block {}: gradient of {}, element {})",
            found.worker, found.microbatch, found.block, found.name, found.element
        )
    });
    Err(diverged(step, loss, clip, source))
}

/// Compares the weights of all replicas, if the check is due.
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

//! Training must stay among the finite numbers: checked before a step can spoil the weights.

use crate::TrainError;
use lockstep_optim::Clip;
use lockstep_parallel::Replica;
use lockstep_tensor::Cpu;

/// Refuses a step whose loss or gradient is not finite, naming the first bad tensor.
///
/// The norm is not finite exactly when some gradient is not, so the search for the culprit only
/// runs when there is one.
pub fn require_finite(
    cpu: &Cpu,
    step: u64,
    loss: f64,
    clip: &Clip,
    replica: &Replica,
) -> Result<(), TrainError> {
    if !loss.is_finite() {
        return Err(TrainError::Diverged { step, what: "the loss".to_owned(), value: loss });
    }
    if !clip.norm.is_finite() {
        let culprit = replica.first_non_finite_grad(cpu);
        let what = culprit.map_or("the gradient norm".to_owned(), |found| {
            format!("the gradient of {} at element {}", found.name, found.element)
        });
        return Err(TrainError::Diverged { step, what, value: clip.norm });
    }
    Ok(())
}

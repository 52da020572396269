//! State that workers do not share, in checkpoints: optimizer state of workers with their own, and
//! that of the synchronization strategy. It is saved under the worker's number.

use crate::TrainError;
use crate::learner::Learner;
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_config::Recipe;
use std::convert::Infallible;

/// Checkpoint name of a worker's own tensor.
pub(crate) fn tensor_name(worker: usize, name: &str, kind: &str) -> String {
    format!("worker.{worker}.{name}.{kind}")
}

/// Checkpoint name of a tensor of the strategy.
fn strategy_tensor(worker: usize, name: &str, is_own: bool) -> String {
    if is_own { format!("worker.{worker}.{name}") } else { name.to_owned() }
}

/// Adds the state that is not shared by all workers to a checkpoint.
pub(crate) fn save(recipe: &Recipe, snapshot: &mut Snapshot, learner: &mut Learner) {
    let Learner { replica, optimizer, .. } = learner;
    let worker = replica.groups().rank();
    let saved = replica.visit_movable(|name, is_saved, values| {
        if is_saved {
            snapshot.add(name, &[values.len()], 0, values);
        }
        Ok::<_, Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
    if recipe.has_local_state() {
        for slot in optimizer.slots() {
            for (kind, name) in optimizer.state_names().iter().enumerate() {
                let state =
                    optimizer.state(&slot.name, slot.piece, kind).expect("state of this rank");
                snapshot.add(&tensor_name(worker, &slot.name, name), &[state.len()], 0, state);
            }
        }
    }
    let saved = replica.visit_strategy(|name, is_own, values| {
        if is_own || worker == 0 {
            let name = strategy_tensor(worker, name, is_own);
            snapshot.add(&name, &[values.len()], 0, values);
        }
        Ok::<_, Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
}

/// Restores per-worker state, which needs the same number of workers.
pub(crate) fn load(
    recipe: &Recipe,
    reader: &Reader,
    learner: &mut Learner,
) -> Result<(), TrainError> {
    let Learner { replica, optimizer, .. } = learner;
    replica.visit_movable(|name, _, values| reader.read(name, &[values.len()], 0, values))?;
    let (worker, workers) = (replica.groups().rank(), reader.manifest().position.workers);
    let compress = &recipe.compress;
    let has_residuals = compress.is_on() && (compress.error_feedback || compress.momentum > 0.0);
    if workers != recipe.run.workers && (recipe.has_local_state() || has_residuals) {
        return Err(TrainError::OtherWorkers { saved: workers, requested: recipe.run.workers });
    }
    if recipe.has_local_state() {
        for slot in optimizer.slots().to_vec() {
            for (kind, name) in optimizer.state_names().iter().enumerate() {
                let state =
                    optimizer.state_mut(&slot.name, slot.piece, kind).expect("state of this rank");
                reader.read(&tensor_name(worker, &slot.name, name), &[state.len()], 0, state)?;
            }
        }
    }
    replica.visit_strategy(|name, is_own, values| {
        reader.read(&strategy_tensor(worker, name, is_own), &[values.len()], 0, values)
    })?;
    Ok(replica.resume_strategy(reader.manifest().position.step, optimizer)?)
}

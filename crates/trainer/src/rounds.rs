//! Rounds of local steps (local SGD, DiLoCo), gradient compression and per-worker state.
//!
//! The recipe determines the rounds ([`Recipe::round_at`]). All workers hold equal weights between
//! two rounds; only then are weights evaluated, compared and saved. Per-worker state (optimizer
//! moments, compression residuals) is saved under the worker's number.

use crate::learner::Learner;
use crate::{TrainError, federated, gossip};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{AverageScope, CompressMethod, Outer, Recipe, SyncMode};
use lockstep_data::Batch;
use lockstep_optim::Clip;
use lockstep_parallel::compress::CompressionStats;
use lockstep_parallel::{Drift, LocalSgdPlan, OuterOptimizer, Replica, from_recipe};
use lockstep_tensor::Cpu;

/// Prepares a replica for the recipe's rounds and compression.
pub(crate) fn prepare(recipe: &Recipe, replica: &mut Replica) -> Result<(), CommError> {
    let sums_up = recipe.sync.mode == SyncMode::AllReduce;
    if let Some(plan) = from_recipe::compression_from_recipe(recipe).filter(|_| sums_up) {
        replica
            .enable_compression(plan, |param| from_recipe::tensor_method(recipe, &plan, param))?;
    }
    match recipe.sync.mode {
        SyncMode::AllReduce
        | SyncMode::ParameterServer
        | SyncMode::Federated
        | SyncMode::Hogwild => return Ok(()),
        SyncMode::Gossip => return gossip::prepare(recipe, replica),
        SyncMode::LocalSgd => {}
    }
    let rule = match recipe.sync.outer {
        Outer::None => OuterOptimizer::Average,
        Outer::Nesterov => OuterOptimizer::Nesterov {
            lr: recipe.sync.outer_lr as f32,
            momentum: recipe.sync.outer_momentum as f32,
        },
    };
    let averages_state = recipe.sync.average == AverageScope::State;
    replica.enable_local_sgd(LocalSgdPlan {
        rule,
        averages_state,
        group: recipe.sync.group_workers,
    })
}

/// Exchanges compressed gradients, if the recipe compresses.
pub(crate) fn exchange(
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
) -> Result<Option<CompressionStats>, CommError> {
    let (compress, Learner { replica, optimizer, .. }) = (&recipe.compress, learner);
    if !compress.is_on_in(step) {
        replica.track_uncompressed();
        return Ok(None);
    }
    if compress.method == CompressMethod::OneBitAdam && step == compress.warmup_steps {
        optimizer.freeze_second_moments(step);
    }
    replica.exchange_compressed(step).map(Some)
}

/// Last step of the run. A run can stop early only where all workers hold equal weights.
pub(crate) fn last_step(recipe: &Recipe, stop_after: Option<u64>) -> Result<u64, TrainError> {
    let last_step = stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if recipe.is_round_over(last_step) {
        return Ok(last_step);
    }
    let round = recipe.round_at(last_step);
    Err(TrainError::InsideRound { requested: last_step, before: round.start, after: round.end })
}

/// Whether workers keep the gradients of a step to themselves.
fn is_local_step(recipe: &Recipe, step: u64) -> bool {
    let round = recipe.round_at(step);
    recipe.has_local_weights() || round.end - round.start > 1
}

/// Begins a step, and a round if one starts here.
pub(crate) fn begin_step(recipe: &Recipe, step: u64, replica: &mut Replica) {
    if recipe.compress.is_on() {
        replica.set_local_step(recipe.compress.is_on_in(step));
    }
    if recipe.sync.mode == SyncMode::AllReduce {
        return;
    }
    if step >= recipe.first_round() && recipe.round_at(step).start == step {
        replica.begin_round();
    }
    replica.set_local_step(is_local_step(recipe, step));
}

/// Divisor of a worker's gradients: `all` targets of the batch, or the targets of its own
/// micro-batches in a local step.
pub(crate) fn num_targets(
    recipe: &Recipe,
    step: u64,
    batch: &Batch,
    all: u64,
    replica: &Replica,
) -> u64 {
    if is_local_step(recipe, step) { own_targets(batch, replica) } else { all }
}

/// Number of targets in this worker's micro-batches.
pub(crate) fn own_targets(batch: &Batch, replica: &Replica) -> u64 {
    batch.targets_in(replica.own_microbatches().iter().copied()).max(1)
}

/// Lets all workers apply the update or none: a non-finite norm on one worker counts for all.
pub(crate) fn agree(
    recipe: &Recipe,
    step: u64,
    mut clip: Clip,
    replica: &mut Replica,
) -> Result<Clip, CommError> {
    if is_local_step(recipe, step) && !replica.holds_on_all_ranks(clip.norm.is_finite())? {
        clip.norm = f64::NAN;
    }
    Ok(clip)
}

/// Ends a step, and a round if one ends here. Returns the drift of the workers at the end of a
/// round.
pub(crate) fn end_step(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
) -> Result<Option<Drift>, CommError> {
    learner.replica.mix(step)?;
    let Learner { replica, optimizer, .. } = learner;
    if recipe.is_group_sync_due(step + 1) {
        replica.average_in_group(optimizer)?;
    }
    for fragment in recipe.fragments_due(step + 1) {
        replica.average_fragment(cpu, fragment, recipe.sync.fragments)?;
    }
    let is_part = recipe.sync.mode == SyncMode::LocalSgd && step >= recipe.first_round();
    if !is_part || !recipe.is_round_over(step + 1) {
        return Ok(None);
    }
    let factor = is_local_step(recipe, step).then(|| factor(recipe, step, replica));
    replica.end_round(cpu, optimizer, factor)
}

/// Factor of a worker's update at the end of a round: the mean number of local steps over its own
/// number (FedNova, Wang et al. 2020), so that its samples weigh as much as with equal numbers.
fn factor(recipe: &Recipe, step: u64, replica: &Replica) -> f32 {
    let round = recipe.round_at(step);
    let taken =
        |worker| recipe.steps_taken(worker, round.end) - recipe.steps_taken(worker, round.start);
    let mean: f64 =
        replica.batch_fractions().enumerate().map(|(n, part)| part * taken(n) as f64).sum();
    let own = taken(replica.groups().data().group_rank());
    if recipe.sync.worker_steps.is_empty() { 1.0 } else { (mean / own as f64) as f32 }
}

/// Optimizer step count of this worker, if it takes part in the step.
pub(crate) fn count(recipe: &Recipe, step: u64, learner: &Learner) -> Option<u64> {
    let worker = learner.replica.groups().data().group_rank();
    let count = recipe.steps_taken(worker, step) + 1;
    let count = count.saturating_sub(learner.num_skipped_in_phase).max(1);
    recipe.takes_step(worker, step).then_some(count)
}

/// Checkpoint name of a worker's own tensor.
pub(crate) fn worker_tensor(worker: usize, name: &str, kind: &str) -> String {
    format!("worker.{worker}.{name}.{kind}")
}

fn tensor_name(worker: usize, name: &str, kind: &str, is_own: bool) -> String {
    if is_own { worker_tensor(worker, name, kind) } else { format!("{name}.{kind}") }
}

/// Adds the state that is not shared by all workers to a checkpoint.
pub(crate) fn save(recipe: &Recipe, snapshot: &mut Snapshot, learner: &mut Learner) {
    if let Some(federation) = &mut learner.federation {
        federated::save(snapshot, federation);
    }
    gossip::save(snapshot, learner);
    let Learner { replica, optimizer, .. } = learner;
    let worker = replica.groups().rank();
    if recipe.has_local_state() {
        for slot in optimizer.slots() {
            for (kind, name) in optimizer.state_names().iter().enumerate() {
                let state =
                    optimizer.state(&slot.name, slot.piece, kind).expect("state of this rank");
                let name = worker_tensor(worker, &slot.name, name);
                snapshot.add(&name, &[state.len()], 0, state);
            }
        }
    }
    let saved = replica.visit_compression(|name, kind, is_own, values| {
        if is_own || worker == 0 {
            snapshot.add(&tensor_name(worker, name, kind, is_own), &[values.len()], 0, values);
        }
        Ok::<_, std::convert::Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
    if worker == 0 {
        let saved = replica.visit_outer_momentum(|name, values| {
            snapshot.add(&format!("{name}.outer"), &[values.len()], 0, values);
            Ok::<_, std::convert::Infallible>(())
        });
        saved.unwrap_or_else(|never| match never {});
    }
}

/// Restores per-worker state, which needs the same number of workers.
pub(crate) fn load(
    recipe: &Recipe,
    reader: &Reader,
    learner: &mut Learner,
) -> Result<(), TrainError> {
    federated::load(reader, learner)?;
    let Learner { replica, optimizer, .. } = learner;
    let (worker, workers) = (replica.groups().rank(), reader.manifest().position.workers);
    let compress = &recipe.compress;
    let keeps_own = compress.error_feedback || compress.momentum > 0.0;
    let has_residuals = compress.is_on() && keeps_own;
    if workers != recipe.run.workers && (recipe.has_local_state() || has_residuals) {
        return Err(TrainError::OtherWorkers { saved: workers, requested: recipe.run.workers });
    }
    // Second moments frozen before the checkpoint stay frozen.
    let (done, compress) = (reader.manifest().position.step, &recipe.compress);
    if compress.method == CompressMethod::OneBitAdam && done > compress.warmup_steps {
        optimizer.freeze_second_moments(compress.warmup_steps);
    }
    replica.visit_compression(|name, kind, is_own, values| {
        reader.read(&tensor_name(worker, name, kind, is_own), &[values.len()], 0, values)
    })?;
    if recipe.has_local_state() {
        for slot in optimizer.slots().to_vec() {
            for (kind, name) in optimizer.state_names().iter().enumerate() {
                let state =
                    optimizer.state_mut(&slot.name, slot.piece, kind).expect("state of this rank");
                let name = worker_tensor(worker, &slot.name, name);
                reader.read(&name, &[state.len()], 0, state)?;
            }
        }
    }
    replica.visit_outer_momentum(|name, values| {
        Ok::<_, TrainError>(reader.read(&format!("{name}.outer"), &[values.len()], 0, values)?)
    })?;
    gossip::load(reader, learner)
}

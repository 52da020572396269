//! Synchronous strategies: all workers take the same step at the same time.
//!
//! All-reduce, local SGD, gossip and federated learning are synchronous: workers may hold different
//! weights between two exchanges, but never different step numbers.

use crate::health::Verdict;
use crate::learner::Learner;
use crate::microbatch::{microbatch_of, microbatch_shape};
use crate::step_log::StepRecord;
use crate::sync_strategy::{SyncStrategy, Worker};
use crate::{TrainError, federated, health, rounds, stragglers};
use lockstep_optim::Update;
use std::ops::Range;

/// Strategy of all synchronous modes.
pub(crate) struct Synchronous;

impl SyncStrategy for Synchronous {
    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        let Worker { cpu, recipe, learner, loader, step_log, .. } = worker;
        learner.enter(recipe, steps.start)?;
        if recipe.is_federated() {
            return federated::one_step(cpu, recipe, steps.start, learner, loader, step_log);
        }
        one_step(worker, steps.start)
    }

    fn prepare_checkpoint(
        &mut self,
        worker: &mut Worker<'_>,
        num_steps: u64,
    ) -> Result<bool, TrainError> {
        Ok(worker.recipe.is_round_over(num_steps))
    }

    fn finish(&mut self, worker: &mut Worker<'_>) -> Result<(), TrainError> {
        // Workers with their own weights end with their mean.
        Ok(worker.learner.replica.install_mean_weights()?)
    }
}

/// Trains on one batch.
fn one_step(worker: &mut Worker<'_>, step: u64) -> Result<(), TrainError> {
    let Worker { cpu, recipe, learner, loader, targets, step_log, .. } = worker;
    step_log.begin_step();
    let batch = loader.next_batch()?;
    let num_targets = targets.of(batch)?;
    rounds::begin_step(recipe, step, &mut learner.replica);
    let num_own = rounds::num_targets(recipe, step, batch, num_targets, &learner.replica);
    step_log.stragglers.begin_step(recipe, step, &mut learner.replica)?;
    let slow = &step_log.emulation;
    let microbatch = |index| microbatch_of(recipe, batch, index, num_own);
    let before_microbatch =
        |index, is_over: &dyn Fn() -> bool| slow.before_microbatch(step, index, is_over);
    let loss_scale = learner.scaler.scale();
    learner.replica.set_loss_scale(loss_scale);
    let Learner { replica, .. } = &mut *learner;
    let loss = replica.run_microbatches_after(
        cpu,
        recipe.train.seed,
        step,
        &microbatch,
        &before_microbatch,
    )?;
    slow.after_microbatches();
    let participation = step_log.stragglers.end_microbatches(batch, num_targets, replica)?;
    let loss = loss / participation.num_targets as f64;
    learner.optimizer.read_ahead();
    let replica = &mut learner.replica;
    let sums = replica.finish_reduce(cpu)?;
    let sums = replica.unscale(cpu, sums);
    stragglers::rescale(cpu, &participation, replica);
    let observed = rounds::exchange(recipe, step, learner)?;
    let clip = learner.replica.clip(cpu, sums, &learner.clip)?;
    let clip = rounds::agree(recipe, step, clip, &mut learner.replica)?;
    let lr = learner.lr(step);
    let verdict = health::agree(cpu, recipe, step, loss, &clip, learner, &microbatch)?;
    if !learner.replica.has_gradients() {
        learner.num_skipped_in_phase += 1;
    } else if verdict == Verdict::Step
        && let Some(count) = rounds::count(recipe, step, learner)
    {
        let update = Update { count, lr, clip };
        learner.replica.step(cpu, &mut learner.optimizer, &update)?;
        learner.optimizer.check().map_err(TrainError::StateLost)?;
    }
    let drift = rounds::end_step(cpu, recipe, step, learner)?;
    let num_tokens =
        participation.tokens(batch.num_microbatches() * microbatch_shape(recipe).rows());
    let data_wait_seconds = loader.wait_seconds();
    let record =
        StepRecord { step, loss, lr, clip, num_tokens, data_wait_seconds, verdict, loss_scale };
    step_log.finish_step(&record, &mut learner.replica);
    step_log.record_participation(step + 1, &participation);
    step_log.record_drift(step + 1, drift);
    step_log.record_compression(step + 1, observed);
    health::compare_replicas(recipe, step + 1, &mut learner.replica)
}

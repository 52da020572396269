//! Steps in lockstep: all workers learn from a batch together, and nobody is ahead.
//!
//! Rounds of steps that workers take alone, gossip and clients are kinds of it: between two of
//! their meetings workers have weights of their own, and still all of them are in the same step.

use crate::health::Verdict;
use crate::journal::StepRecord;
use crate::saved::Learner;
use crate::train::{microbatch_of, microbatch_shape};
use crate::way::{Way, Worker};
use crate::{TrainError, federated, health, rounds, uneven};
use lockstep_optim::Update;
use std::ops::Range;

/// See the module's text.
pub(crate) struct Lockstep;

impl Way for Lockstep {
    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        let Worker { cpu, recipe, learner, loader, journal, .. } = worker;
        learner.enter(recipe, steps.start)?;
        if recipe.is_federated() {
            return federated::one_step(cpu, recipe, steps.start, learner, loader, journal);
        }
        one_step(worker, steps.start)
    }

    fn may_save(&mut self, worker: &mut Worker<'_>, num_steps: u64) -> Result<bool, TrainError> {
        Ok(worker.recipe.is_round_over(num_steps))
    }

    fn end(&mut self, worker: &mut Worker<'_>) -> Result<(), TrainError> {
        // What is left of workers that have weights of their own is their mean.
        Ok(worker.learner.replica.show_mean()?)
    }
}

/// Learns from one batch.
fn one_step(worker: &mut Worker<'_>, step: u64) -> Result<(), TrainError> {
    let Worker { cpu, recipe, learner, loader, targets, journal, .. } = worker;
    journal.begin_step();
    let batch = loader.next_batch()?;
    let num_targets = targets.of(batch)?;
    rounds::begin_step(recipe, step, &mut learner.replica);
    let num_own = rounds::num_targets(recipe, step, batch, num_targets, &learner.replica);
    journal.pace.begin_step(recipe, step, &mut learner.replica)?;
    let slow = &journal.slow;
    let microbatch = |index| microbatch_of(recipe, batch, index, num_own);
    let before_microbatch =
        |index, is_over: &dyn Fn() -> bool| slow.before_microbatch(step, index, is_over);
    let loss_scale = learner.scaler.scale();
    learner.replica.scale_loss(loss_scale);
    let Learner { replica, .. } = &mut *learner;
    let loss = replica.run_microbatches_after(
        cpu,
        recipe.train.seed,
        step,
        &microbatch,
        &before_microbatch,
    )?;
    slow.after_microbatches();
    let participation = journal.pace.end_microbatches(batch, num_targets, replica)?;
    let loss = loss / participation.num_targets as f64;
    learner.optimizer.read_ahead();
    let replica = &mut learner.replica;
    let sums = replica.finish_reduce(cpu)?;
    let sums = replica.unscale(cpu, sums);
    uneven::rescale(cpu, &participation, replica);
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
    journal.finish_step(&record, &mut learner.replica);
    journal.straggled(step + 1, &participation);
    journal.drifted(step + 1, drift);
    journal.compressed(step + 1, observed);
    health::compare_replicas(recipe, step + 1, &mut learner.replica)
}

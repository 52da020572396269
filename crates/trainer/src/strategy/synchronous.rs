//! Synchronous strategies: all workers take the same step at the same time.
//!
//! Workers may hold different weights between two exchanges, but never different step numbers.

use crate::health::{Stability, Verdict};
use crate::histograms::visit_histograms;
use crate::learner::Learner;
use crate::microbatch::{microbatch_of, microbatch_shape, own_targets};
use crate::noise_scale::Divisors;
use crate::step_log::{StepLog, StepRecord};
use crate::stragglers::Participation;
use crate::strategy::{SyncStrategy, Worker};
use crate::{TrainError, health};
use lockstep_config::Recipe;
use lockstep_data::Batch;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, Update};
use lockstep_parallel::{Replica, StepHost, StepLoss};
use lockstep_tensor::Cpu;
use std::ops::Range;

/// Strategy of all synchronous modes.
pub(crate) struct Synchronous;

impl SyncStrategy for Synchronous {
    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        worker.learner.enter(worker.recipe, steps.start)?;
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
    let lr = learner.lr(step);
    let count = learner.update_count(recipe, step);
    let Learner { replica, optimizer, clip, stability, .. } = learner;
    let per_client = replica.microbatches_per_client();
    // All workers know the micro-batches of all clients.
    let num_targets = if per_client.is_some() { batch.num_targets } else { targets.of(batch)? };
    // A worker that updates by its own gradients divides them by its own targets.
    let is_local = replica.is_local_step(step);
    let divisor = if is_local { own_targets(batch, replica) } else { num_targets };
    step_log.stragglers.begin_step(recipe, step, replica)?;
    let loss_scale = stability.scaler.scale();
    replica.set_loss_scale(loss_scale);
    replica.measure_leaf_norms(recipe.is_noise_measured(step + 1));
    let mut host = TrainingStep {
        cpu,
        recipe,
        step,
        batch,
        num_targets,
        divisor,
        per_client,
        lr,
        count,
        stability,
        step_log,
        outcome: None,
    };
    let clip = replica.run_step(cpu, recipe.train.seed, step, optimizer, clip, &mut host)?;
    let clip = clip.expect("no rank ends a step before another");
    optimizer.check().map_err(TrainError::StateLost)?;
    let (loss, participation, verdict) = host.outcome.expect("every step ends");
    let num_tokens =
        participation.tokens(batch.num_microbatches() * microbatch_shape(recipe).rows());
    let data_wait_seconds = loader.wait_seconds();
    let record =
        StepRecord { step, loss, lr, clip, num_tokens, data_wait_seconds, verdict, loss_scale };
    step_log.finish_step(&record, replica);
    step_log.record_participation(step + 1, &participation);
    step_log.record_measurements(step + 1, replica.take_measurements());
    health::compare_replicas(recipe, step + 1, replica)
}

/// Batch of a step and the decisions about it.
struct TrainingStep<'a> {
    cpu: &'a Cpu,
    recipe: &'a Recipe,
    step: u64,
    batch: &'a Batch,
    /// Number of targets of the batch, and the number that gradients are divided by.
    num_targets: u64,
    divisor: u64,
    /// Micro-batches of a client, where each divides by its own targets.
    per_client: Option<usize>,
    lr: f64,
    /// Number of the update, if this worker takes part in the step.
    count: Option<u64>,
    stability: &'a mut Stability,
    step_log: &'a mut StepLog,
    /// Loss, participation and decision.
    outcome: Option<(f64, Participation, Verdict)>,
}

impl<'a> StepHost<'a> for TrainingStep<'a> {
    type Error = TrainError;

    fn microbatch(&self, index: usize) -> Microbatch<'a> {
        let of_client = |num: usize| {
            let first = index / num * num;
            self.batch.targets_in(first..first + num).max(1)
        };
        let divisor = self.per_client.map_or(self.divisor, of_client);
        microbatch_of(self.recipe, self.batch, index, divisor)
    }

    fn before_microbatch(&self, index: usize, is_over: &dyn Fn() -> bool) {
        self.step_log.emulation.before_microbatch(self.step, index, is_over);
    }

    fn after_microbatches(
        &mut self,
        replica: &mut Replica,
        loss: &StepLoss,
    ) -> Result<Option<f32>, TrainError> {
        let Self { batch, num_targets, step_log, .. } = self;
        step_log.emulation.after_microbatches();
        if loss.num_targets == Some(0.0) {
            let (what, source_of) = ("the loss of every client".to_owned(), String::new());
            let (step, value) = (self.step, loss.sum / 0.0);
            return Err(TrainError::Diverged { step, what, value, source_of });
        }
        let found = step_log.stragglers.end_microbatches(batch, *num_targets, replica)?;
        let factor = (!found.missing.is_empty()).then_some(found.factor);
        let loss = loss.sum / loss.num_targets.unwrap_or(found.num_targets as f64);
        self.outcome = Some((loss, found, Verdict::Step));
        Ok(factor)
    }

    fn decide(&mut self, replica: &mut Replica, clip: &Clip) -> Result<Option<Update>, TrainError> {
        let (recipe, batch, divisor) = (self.recipe, self.batch, self.divisor);
        let divisors = Divisors { targets: self.num_targets, divisor };
        let noise = &mut self.step_log.noise;
        noise.measure(self.cpu, recipe, self.step + 1, batch, divisors, replica)?;
        let step_log = &mut *self.step_log;
        visit_histograms(recipe, self.step + 1, replica, |event| step_log.record(event))?;
        let microbatch = |index| microbatch_of(recipe, batch, index, divisor);
        let (loss, _, verdict) = self.outcome.as_mut().expect("micro-batches have run");
        let stability = &mut *self.stability;
        *verdict = health::agree(
            self.cpu,
            recipe,
            self.step,
            *loss,
            clip,
            replica,
            stability,
            &microbatch,
        )?;
        if !replica.has_gradients() {
            stability.num_skipped_in_phase += 1;
            return Ok(None);
        }
        let count = self.count.filter(|_| *verdict == Verdict::Step);
        Ok(count.map(|count| Update { count, lr: self.lr, clip: *clip }))
    }
}

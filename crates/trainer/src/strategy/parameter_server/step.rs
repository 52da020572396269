//! One step of a parameter-server worker: pull, compute, push.

use crate::TrainError;
use crate::emulation::Emulation;
use crate::health::Verdict;
use crate::learner::Learner;
use crate::microbatch::{microbatch_of, microbatch_shape, own_targets};
use crate::step_log::StepRecord;
use crate::strategy::Worker;
use lockstep_config::{Consistency, Recipe};
use lockstep_data::Batch;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, Update};
use lockstep_parallel::{Replica, StepHost, StepLoss};
use std::collections::VecDeque;
use std::ops::Range;

/// Number of recent losses that a loss spike is compared with.
const NUM_LOSSES: usize = 20;

/// Position of a worker in its sequence of steps.
#[derive(Debug, Default)]
pub(super) struct PullPush {
    /// Most recent losses.
    last: VecDeque<f64>,
    /// First step that neither this worker nor the others have done.
    next_step: u64,
}

impl PullPush {
    /// Runs the first of these steps, or skips it if the other workers have passed it.
    pub(super) fn step(
        &mut self,
        worker: &mut Worker<'_>,
        steps: Range<u64>,
    ) -> Result<(), TrainError> {
        if steps.start < self.next_step {
            worker.loader.next_batch()?;
            worker.step_log.record_missed_step();
            return Ok(());
        }
        let last = self.one_step(worker, steps)?;
        self.next_step = last + 1;
        Ok(())
    }

    /// Trains on this worker's part of one batch. Returns the last finished step, which is a later
    /// one if the other workers went ahead.
    fn one_step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<u64, TrainError> {
        let Worker { cpu, recipe, learner, loader, step_log, .. } = worker;
        let step = steps.start;
        step_log.begin_step();
        let batch = loader.next_batch()?;
        let is_elastic = recipe.sync.server.consistency == Consistency::Elastic;
        let lr = learner.lr(step);
        let Learner { replica, optimizer, clip, stability, .. } = learner;
        replica.set_last_version(is_elastic.then_some(steps.end));
        let spike_factor = recipe.sync.server.switch_on_loss_spike;
        let mut host = ServedStep {
            recipe,
            step,
            batch,
            lr,
            slow: &step_log.emulation,
            pull_push: self,
            spike_factor,
            loss: 0.0,
            is_finite: true,
        };
        let clip = replica.run_step(cpu, recipe.train.seed, step, optimizer, clip, &mut host)?;
        let (loss, is_finite) = (host.loss, host.is_finite);
        let Some(clip) = clip else {
            step_log.record_missed_step();
            return Ok(replica.pulled_version());
        };
        stability.num_skipped = if is_finite { 0 } else { stability.num_skipped + 1 };
        if stability.num_skipped > recipe.train.max_skipped {
            let what = if loss.is_finite() { "the gradient norm" } else { "the loss" }.to_owned();
            let value = if loss.is_finite() { clip.norm } else { loss };
            let source_of = format!(" (on worker {})", replica.groups().rank());
            return Err(TrainError::Diverged { step, what, value, source_of });
        }
        let record = StepRecord {
            step,
            loss,
            lr,
            clip,
            num_tokens: batch.num_microbatches() * microbatch_shape(recipe).rows(),
            data_wait_seconds: loader.wait_seconds(),
            verdict: if is_finite { Verdict::Step } else { Verdict::Skip },
            loss_scale: None,
        };
        step_log.finish_step(&record, replica);
        step_log
            .record_compression(step + 1, replica.push_compression_stats().filter(|_| is_finite));
        Ok(if is_elastic { replica.pulled_version().max(step) } else { step })
    }

    /// Records a loss and returns whether it exceeds `times` the mean of the recent ones.
    fn is_spike(&mut self, loss: f64, times: f64) -> bool {
        let count = self.last.len();
        let mean = self.last.iter().fold(0.0, |sum, loss| sum + loss) / count.max(1) as f64;
        let is_spike = times > 0.0 && count == NUM_LOSSES && (loss.is_nan() || loss > times * mean);
        if count == NUM_LOSSES {
            self.last.pop_front();
        }
        self.last.push_back(loss);
        is_spike
    }
}

/// Batch of a worker's step, and the decision about it.
struct ServedStep<'a> {
    recipe: &'a Recipe,
    step: u64,
    batch: &'a Batch,
    lr: f64,
    slow: &'a Emulation,
    pull_push: &'a mut PullPush,
    spike_factor: f64,
    loss: f64,
    is_finite: bool,
}

impl<'a> StepHost<'a> for ServedStep<'a> {
    type Error = TrainError;

    fn microbatch(&self, index: usize) -> Microbatch<'a> {
        // Divide by the targets of all workers, so that their gradients sum to that of the batch.
        microbatch_of(self.recipe, self.batch, index, self.batch.num_targets)
    }

    fn before_microbatch(&self, index: usize, is_over: &dyn Fn() -> bool) {
        self.slow.before_microbatch(self.step, index, is_over);
    }

    fn after_microbatches(
        &mut self,
        replica: &mut Replica,
        loss: &StepLoss,
    ) -> Result<Option<f32>, TrainError> {
        self.slow.after_microbatches();
        let in_lockstep = self.recipe.sync.server.consistency == Consistency::Sync;
        let (sum, num_targets) = if in_lockstep {
            (loss.sum, self.batch.num_targets)
        } else {
            replica.reduce_losses_in_host(loss.sum, own_targets(self.batch, replica))?
        };
        self.loss = sum / num_targets as f64;
        Ok(None)
    }

    fn decide(&mut self, replica: &mut Replica, clip: &Clip) -> Result<Option<Update>, TrainError> {
        self.is_finite = self.loss.is_finite() && clip.norm.is_finite();
        replica.set_alarm(self.pull_push.is_spike(self.loss, self.spike_factor));
        let update = Update { count: self.step + 1, lr: self.lr, clip: *clip };
        Ok(self.is_finite.then_some(update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_is_detected_once_enough_losses_are_known() {
        let mut pull_push = PullPush::default();
        assert!((0..NUM_LOSSES).all(|_| !pull_push.is_spike(100.0, 2.0)), "too few losses");
        assert!(!pull_push.is_spike(200.0, 2.0));
        assert!(!pull_push.is_spike(201.0, 0.0), "spike detection is off");
        assert!(pull_push.is_spike(300.0, 2.0));
        assert!(pull_push.is_spike(f64::NAN, 2.0));
    }
}

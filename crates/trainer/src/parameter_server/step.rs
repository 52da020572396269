//! One step of a parameter-server worker: pull, compute, push.

use crate::health::Verdict;
use crate::microbatch::{microbatch_of, microbatch_shape, own_targets};
use crate::step_log::StepRecord;
use crate::sync_strategy::Worker;
use crate::{TrainError, sparse_rows};
use lockstep_config::Consistency;
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
        let in_lockstep = recipe.sync.server.consistency == Consistency::Sync;
        step_log.begin_step();
        let batch = loader.next_batch()?;
        sparse_rows::announce_rows(recipe, step, batch, &mut learner.replica)?;
        let is_elastic = recipe.sync.server.consistency == Consistency::Elastic;
        let version = learner.replica.pull(step, if is_elastic { steps.end } else { u64::MAX })?;
        if is_elastic && version >= steps.end {
            step_log.record_missed_step();
            return Ok(version);
        }
        learner.replica.report_local_loss(!in_lockstep);
        let slow = &step_log.emulation;
        // Divide by the targets of all workers, so that their gradients sum to that of the batch.
        let microbatch = |index| {
            slow.before_microbatch(step, index, &|| false);
            microbatch_of(recipe, batch, index, batch.num_targets)
        };
        let loss = learner.replica.run_microbatches(cpu, recipe.train.seed, step, &microbatch)?;
        slow.after_microbatches();
        let (loss, num_targets) = if in_lockstep {
            (loss, batch.num_targets)
        } else {
            let own_targets = own_targets(batch, &learner.replica);
            learner.replica.reduce_losses_in_host(loss, own_targets)?
        };
        let loss = loss / num_targets as f64;
        let sums = learner.replica.finish_reduce(cpu)?;
        learner.replica.reduce_gradients_in_host()?;
        let sums = learner.replica.unscale(cpu, sums);
        let clip = learner.replica.clip(cpu, sums, &learner.clip)?;
        let is_finite = loss.is_finite() && clip.norm.is_finite();
        let is_spike = self.is_spike(loss, recipe.sync.server.switch_on_loss_spike);
        learner.replica.push(cpu, step, is_finite.then_some(&clip), is_spike)?;
        learner.stability.num_skipped =
            if is_finite { 0 } else { learner.stability.num_skipped + 1 };
        if learner.stability.num_skipped > recipe.train.max_skipped {
            let what = if loss.is_finite() { "the gradient norm" } else { "the loss" }.to_owned();
            let value = if loss.is_finite() { clip.norm } else { loss };
            let source_of = format!(" (on worker {})", learner.replica.groups().rank());
            return Err(TrainError::Diverged { step, what, value, source_of });
        }
        let record = StepRecord {
            step,
            loss,
            lr: learner.lr(step),
            clip,
            num_tokens: batch.num_microbatches() * microbatch_shape(recipe).rows(),
            data_wait_seconds: loader.wait_seconds(),
            verdict: if is_finite { Verdict::Step } else { Verdict::Skip },
            loss_scale: None,
        };
        step_log.finish_step(&record, &mut learner.replica);
        step_log.record_compression(
            step + 1,
            learner.replica.push_compression_stats().filter(|_| is_finite),
        );
        Ok(if is_elastic { version.max(step) } else { step })
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

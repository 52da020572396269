//! One step of a worker of servers: pull, compute, push.

use crate::health::Verdict;
use crate::journal::StepRecord;
use crate::train::{microbatch_of, microbatch_shape};
use crate::way::Worker;
use crate::{TrainError, rounds, rows};
use lockstep_config::Consistency;
use std::collections::VecDeque;
use std::ops::Range;

/// Losses of which the mean is what a loss is held against.
const NUM_LOSSES: usize = 20;

/// A worker on its way from step to step.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Its last losses.
    last: VecDeque<f64>,
    /// The steps before this one are done, by this worker or without it.
    next_step: u64,
}

impl Walk {
    /// Does the first of these steps, or leaves it out where others went on without this worker.
    pub(super) fn go_on(
        &mut self,
        worker: &mut Worker<'_>,
        steps: Range<u64>,
    ) -> Result<(), TrainError> {
        if steps.start < self.next_step {
            worker.loader.next_batch()?;
            worker.journal.missed();
            return Ok(());
        }
        let last = self.one_step(worker, steps)?;
        self.next_step = last + 1;
        Ok(())
    }

    /// Learns from this worker's part of one batch; returns the last step that is done by that,
    /// which is a later one where others have gone on without this worker.
    fn one_step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<u64, TrainError> {
        let Worker { cpu, recipe, learner, loader, journal, .. } = worker;
        let step = steps.start;
        let in_lockstep = recipe.sync.server.consistency == Consistency::Sync;
        journal.begin_step();
        let batch = loader.next_batch()?;
        rows::touch(recipe, step, batch, &mut learner.replica)?;
        let version = learner.replica.pull(step)?;
        let is_elastic = recipe.sync.server.consistency == Consistency::Elastic;
        if is_elastic && version >= steps.end {
            journal.missed();
            return Ok(version);
        }
        learner.replica.tell_own_losses(!in_lockstep);
        let slow = &journal.slow;
        // By the targets of all workers, so that the gradients of all are that of the batch.
        let microbatch = |index| {
            slow.before_microbatch(step, index, &|| false);
            microbatch_of(recipe, batch, index, batch.num_targets)
        };
        let loss = learner.replica.run_microbatches(cpu, recipe.train.seed, step, &microbatch)?;
        slow.after_microbatches();
        let (loss, num_targets) = if in_lockstep {
            (loss, batch.num_targets)
        } else {
            let own_targets = rounds::own_targets(batch, &learner.replica);
            learner.replica.sum_losses_near(loss, own_targets)?
        };
        let loss = loss / num_targets as f64;
        let sums = learner.replica.finish_reduce(cpu)?;
        learner.replica.sum_near()?;
        let sums = learner.replica.unscale(cpu, sums);
        let clip = learner.replica.clip(cpu, sums, &learner.clip)?;
        let is_finite = loss.is_finite() && clip.norm.is_finite();
        let is_spike = self.is_spike(loss, recipe.sync.server.spike);
        learner.replica.push(step, is_finite.then_some(&clip), is_spike)?;
        learner.num_skipped = if is_finite { 0 } else { learner.num_skipped + 1 };
        if learner.num_skipped > recipe.train.max_skipped {
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
        journal.finish_step(&record, &mut learner.replica);
        journal.compressed(step + 1, learner.replica.squeezed().filter(|_| is_finite));
        Ok(if is_elastic { version.max(step) } else { step })
    }

    /// Takes note of a loss; returns whether it is so many times the mean of those before it.
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
    fn a_loss_is_a_jump_beside_those_before_it_once_there_are_enough() {
        let mut walk = Walk::default();
        assert!((0..NUM_LOSSES).all(|_| !walk.is_spike(100.0, 2.0)), "nothing is known yet");
        assert!(!walk.is_spike(200.0, 2.0));
        assert!(!walk.is_spike(201.0, 0.0), "nobody asked");
        assert!(walk.is_spike(300.0, 2.0));
        assert!(walk.is_spike(f64::NAN, 2.0));
    }
}

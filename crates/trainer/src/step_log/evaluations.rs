//! Evaluations between steps: their events, and the count of traffic that pauses for them.

use super::{StepLog, total_wire_bytes};
use crate::evaluate::Evaluation;
use crate::learner::Learner;
use crate::rank_counters::StepTotals;
use crate::summary;
use crate::task_evaluation::TaskEvaluation;
use lockstep_comm::{Comm, CommError};
use lockstep_parallel::{ConsensusDistance, Replica};
use lockstep_telemetry::Event;
use lockstep_tensor::math::scalar;

impl StepLog {
    /// Stops counting traffic, after pending transfers have finished, and gathers the counters of
    /// all ranks. Collective.
    pub fn pause_traffic_count(
        &mut self,
        learner: &mut Learner,
        comm: &Comm,
    ) -> Result<(), CommError> {
        let replica = &mut learner.replica;
        replica.settle()?;
        self.total_wire_bytes += total_wire_bytes(replica) - self.count_start;
        self.counters.sent.count(replica);
        let sum = |seconds: &[f64]| seconds.iter().fold(0.0, |sum, seconds| sum + seconds);
        let totals = StepTotals {
            wire_bytes: self.total_wire_bytes,
            restarts: self.restarts,
            missed_steps: self.stragglers.missed[self.worker],
            exposed_seconds: sum(&self.exposed_seconds),
            straggler_wait_seconds: sum(&self.straggler_wait_seconds),
        };
        let own = self.counters.own(&self.world, replica, &totals, &self.spans.unsent);
        self.counters.exchange(&own, comm)?;
        self.exchange_spans(comm)
    }

    /// Exchanges and records the gradient noise of the steps since the last exchange, at an
    /// evaluation, or where there are many. Collective.
    pub(crate) fn record_noise(&mut self, is_due: bool, comm: &Comm) -> Result<(), CommError> {
        let Self { noise, telemetry, .. } = self;
        if is_due || noise.is_full() {
            noise.exchange(comm, |event| telemetry.record(event))?;
        }
        Ok(())
    }

    /// Resumes counting traffic.
    fn resume_traffic_count(&mut self, replica: &Replica) {
        self.count_start = total_wire_bytes(replica);
        self.counters.sent.skip(replica);
    }

    /// Records the scores of tasks and resumes counting traffic.
    pub fn record_tasks(&mut self, step: u64, found: &[TaskEvaluation], replica: &Replica) {
        self.resume_traffic_count(replica);
        for TaskEvaluation { task, num_questions, scores, log_likelihood, .. } in found {
            self.telemetry.record(&Event::TaskEvaluated {
                step,
                task: task.clone(),
                questions: *num_questions as u64,
                scores: scores.clone(),
                log_likelihood: *log_likelihood,
            });
        }
    }

    /// Records an evaluation and resumes counting traffic.
    pub fn record_evaluation(&mut self, step: u64, found: &Evaluation, replica: &Replica) {
        self.resume_traffic_count(replica);
        let Self { counters, telemetry, .. } = self;
        counters.visit(step, |event| telemetry.record(event));
        let &Evaluation { validation_loss, metrics, .. } = found;
        let perplexity = scalar::exp(validation_loss);
        self.telemetry.record(&Event::Evaluated {
            step,
            validation_loss,
            perplexity,
            train_seconds: self.train_seconds(),
            wire_bytes: self.counters.wire_bytes_of_all(),
        });
        if let Some(ConsensusDistance { mean, max, worker }) = replica.consensus() {
            self.telemetry.record(&Event::Consensus {
                step,
                distance: mean,
                distance_max: max,
                distance_max_rank: worker,
            });
        }
        if let Some(metrics) = metrics {
            let summary::Solution { accuracy, optimum_loss, suboptimality, distance } =
                metrics.into();
            self.telemetry.record(&Event::Assessed {
                step,
                accuracy,
                optimum_loss,
                suboptimality,
                distance,
            });
        }
    }
}

//! Evaluations between steps: their events, and the count of traffic that pauses for them.

use super::{StepLog, total_wire_bytes};
use crate::evaluate::Evaluation;
use crate::summary;
use crate::task_evaluation::TaskEvaluation;
use lockstep_comm::{Comm, CommError};
use lockstep_parallel::{ConsensusDistance, Replica};
use lockstep_telemetry::Event;
use lockstep_tensor::math::scalar;

impl StepLog {
    /// Stops counting traffic, after pending transfers have finished.
    pub fn pause_traffic_count(
        &mut self,
        replica: &mut Replica,
        comm: &Comm,
    ) -> Result<(), CommError> {
        replica.settle()?;
        self.total_wire_bytes += total_wire_bytes(replica) - self.count_start;
        let all = &mut self.moved_by_worker[..comm.group_size()];
        comm.all_gather(&[self.total_wire_bytes], all)?;
        self.moved_by_all = all.iter().sum();
        Ok(())
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

    /// Records the scores of tasks and resumes counting traffic.
    pub fn record_tasks(&mut self, step: u64, found: &[TaskEvaluation], replica: &Replica) {
        self.count_start = total_wire_bytes(replica);
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
        self.count_start = total_wire_bytes(replica);
        let &Evaluation { validation_loss, metrics, .. } = found;
        let perplexity = scalar::exp(validation_loss);
        self.telemetry.record(&Event::Evaluated {
            step,
            validation_loss,
            perplexity,
            train_seconds: self.train_seconds(),
            wire_bytes: self.moved_by_all,
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

//! Spans of the tasks of sampled steps, in the event file and in the trace.
//!
//! Rank 0 writes the event file. The next ranks send it the spans of their last sampled step at the
//! next evaluation, where steps do not wait for it.

use crate::learner::Learner;
use crate::step_log::StepLog;
use crate::trace::{StepTimes, TraceRecorder};
use lockstep_comm::{Comm, CommError};
use lockstep_config::Telemetry;
use lockstep_parallel::{Replica, TaskSpan};
use lockstep_telemetry::Event;
use std::path::Path;
use std::time::Duration;

/// Ranks whose spans are in the event file, and most tasks of those that send them.
const MAX_RANKS: usize = 16;
const MAX_TASKS: usize = 1024;

/// Sampled step of a rank.
type RankStep = (u64, Vec<(u32, String, f64, f64)>);

impl StepLog {
    /// Starts the trace of the run, if it has one. Collective.
    pub(crate) fn begin_trace(
        &mut self,
        comm: &Comm,
        learner: &mut Learner,
        first_step: u64,
    ) -> Result<(), CommError> {
        if self.spans.telemetry.trace {
            learner.replica.record_calls();
            self.spans.trace = Some(TraceRecorder::start(comm, &self.world)?);
        }
        learner.replica.set_sampled(self.spans.is_sampled(first_step + 1));
        Ok(())
    }

    /// Records when the tasks of a sampled step ran, and decides whether the next step is sampled.
    pub(crate) fn record_spans(&mut self, num_steps: u64, replica: &mut Replica) {
        if let Some(trace) = &mut self.spans.trace {
            trace.record_tasks(num_steps, replica);
        }
        // The event allocates its texts, which is why it is rare.
        if Telemetry::is_sampled(num_steps) {
            let spans = replica.take_spans();
            if !spans.is_empty() {
                let record = |(TaskSpan { task, start, end }, action): (TaskSpan, String)| {
                    (task.0, action, start.as_secs_f64(), end.saturating_sub(start).as_secs_f64())
                };
                let mut spans: Vec<_> = spans.into_iter().map(record).collect();
                if self.worker == 0 {
                    self.record(&Event::TaskSpans { step: num_steps, spans });
                } else if self.worker < MAX_RANKS {
                    spans.truncate(MAX_TASKS);
                    let step: RankStep = (num_steps, spans);
                    self.spans.unsent = serde_json::to_vec(&step).expect("texts and numbers");
                }
            }
        }
        replica.set_sampled(self.spans.is_sampled(num_steps + 1));
    }

    /// Gathers the sampled steps that rank 0 does not have, if the exchanged counters announce any.
    /// Collective.
    pub(crate) fn exchange_spans(&mut self, comm: &Comm) -> Result<(), CommError> {
        if !self.counters.has_unsent_spans() {
            return Ok(());
        }
        let (own, mut all) = (std::mem::take(&mut self.spans.unsent), Vec::new());
        let lengths = comm.all_gather_v(&own, &mut all)?;
        if self.worker > 0 {
            return Ok(());
        }
        let mut rest = all.as_slice();
        for (worker, length) in lengths.into_iter().enumerate() {
            let (text, after) = rest.split_at(length);
            rest = after;
            if let Ok((step, spans)) = serde_json::from_slice::<RankStep>(text) {
                self.record(&Event::RankSpans { step, worker, spans });
            }
        }
        Ok(())
    }

    /// Records the step around the tasks of a traced step.
    pub(crate) fn trace_step(
        &mut self,
        num_steps: u64,
        [started, ended]: [Duration; 2],
        [data_wait, straggler_wait]: [Duration; 2],
    ) {
        if let Some(trace) = &mut self.spans.trace {
            trace.record_step(num_steps, &StepTimes { started, ended, data_wait, straggler_wait });
        }
    }

    /// Records in the trace that training has stalled for a checkpoint since `start`.
    pub(crate) fn trace_checkpoint(&mut self, num_steps: u64, start: Duration) {
        if let Some(trace) = &mut self.spans.trace {
            trace.record_checkpoint(num_steps, start);
        }
    }

    /// Records in the trace that the model has been evaluated since `start`.
    pub(crate) fn trace_evaluation(&mut self, num_steps: u64, start: Duration) {
        if let Some(trace) = &mut self.spans.trace {
            trace.record_evaluation(num_steps, start);
        }
    }

    /// Writes the trace of all ranks, if the run has one, on the rank with a path. Collective.
    pub(crate) fn write_trace(
        &mut self,
        comm: &Comm,
        path: Option<&Path>,
    ) -> Result<(), CommError> {
        let Some(trace) = self.spans.trace.take() else { return Ok(()) };
        if let Some(message) = trace.write(comm, path)? {
            self.record(&Event::Warning { message });
        }
        Ok(())
    }
}

//! Spans of the tasks of sampled steps, in the event file and in the trace.

use crate::learner::Learner;
use crate::step_log::StepLog;
use crate::trace::{StepTimes, TraceRecorder};
use lockstep_comm::{Comm, CommError};
use lockstep_config::Telemetry;
use lockstep_parallel::{Replica, TaskSpan};
use lockstep_telemetry::Event;
use std::path::Path;
use std::time::Duration;

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
                let spans = spans.into_iter().map(record).collect();
                self.record(&Event::TaskSpans { step: num_steps, spans });
            }
        }
        replica.set_sampled(self.spans.is_sampled(num_steps + 1));
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

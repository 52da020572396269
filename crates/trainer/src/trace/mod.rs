//! Trace of a run: each rank records the tasks of sampled steps, and rank 0 writes one file.
//!
//! A rank records into memory that is allocated at the start, so that a step loop with a trace
//! allocates nothing. A rank whose memory is full records no further step; the file has the steps
//! that all ranks have whole, so that every message has both its ends. At the end of the run each
//! rank renders its own events on the clock of rank 0 and sends the text.
//!
//! - `clock_offset`: clocks of the ranks; `render`: the events of a rank; `file`: the file of all;
//!   `sampling`: the steps that are recorded

pub(crate) mod clock_offset;
mod file;
mod render;
mod sampling;

use clock_offset::ClockOffset;
use lockstep_comm::{Comm, CommError};
use lockstep_parallel::{CallSpan, Replica, SampledTasks};
use lockstep_platform::World;
use lockstep_schedule::step::{Queue, TaskId, TaskOp};
use std::time::Duration;

pub(crate) use sampling::SpanLog;

/// Most spans of a rank: some megabytes.
const MAX_SPANS: usize = 1 << 16;

/// Spans of a step that are not of its tasks.
const OTHER_SPANS: usize = 4;

/// Origin of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpanKind {
    /// A whole step.
    Step,
    /// Waiting for the batch.
    DataWait,
    /// Waiting for ranks that are still busy, at the start of the exchange of losses.
    StragglerWait,
    /// Stalling for a checkpoint.
    Checkpoint,
    /// Evaluating the model.
    Evaluation,
    /// A task of the step program.
    Task { id: TaskId, op: TaskOp, queue: Queue },
    /// A background call of the task that ran when it was issued.
    Call { bucket: u32, issued: Duration },
}

/// A span on the clock of its rank.
#[derive(Clone, Copy, Debug)]
struct RecordedSpan {
    step: u64,
    kind: SpanKind,
    start: Duration,
    end: Duration,
}

/// Recorder of one rank.
pub(crate) struct TraceRecorder {
    world: World,
    spans: Vec<RecordedSpan>,
    /// First step that found no room.
    full_at: Option<u64>,
    /// Last step whose tasks are recorded, and the span of its exchange of losses.
    last: u64,
    losses: Option<[Duration; 2]>,
    clock: ClockOffset,
}

/// Times of a step besides those of its tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTimes {
    pub(crate) started: Duration,
    pub(crate) ended: Duration,
    pub(crate) data_wait: Duration,
    pub(crate) straggler_wait: Duration,
}

impl TraceRecorder {
    /// Allocates the memory and compares the clock with that of rank 0. Collective.
    pub(crate) fn start(comm: &Comm, world: &World) -> Result<Self, CommError> {
        let clock = ClockOffset::measure(comm, world)?;
        let (world, spans) = (world.clone(), Vec::with_capacity(MAX_SPANS));
        Ok(Self { world, spans, full_at: None, last: 0, losses: None, clock })
    }

    /// Records the tasks of a sampled step, and background calls that have ended.
    pub(crate) fn record_tasks(&mut self, step: u64, replica: &mut Replica) {
        if let Some(tasks) = replica.sampled_tasks()
            && self.has_room(step, tasks.spans.len() + OTHER_SPANS)
        {
            self.record_sample(step, &tasks);
        }
        let (spans, step) = (&mut self.spans, self.last);
        replica.take_calls(|CallSpan { bucket, issued, start, end }| {
            // Whether a call is drawn changes no other span, so calls may be dropped one by one.
            if spans.len() < MAX_SPANS {
                let kind = SpanKind::Call { bucket, issued };
                spans.push(RecordedSpan { step, kind, start, end });
            }
        });
    }

    fn record_sample(&mut self, step: u64, sampled: &SampledTasks<'_>) {
        (self.last, self.losses) = (step, None);
        for span in sampled.spans {
            let [start, end] = [span.start, span.end].map(|time| sampled.began + time);
            let task = &sampled.program.tasks[span.task.0 as usize];
            if task.op == TaskOp::GatherLosses {
                self.losses = Some([start, end]);
            }
            let kind = SpanKind::Task { id: span.task, op: task.op, queue: task.queue };
            self.spans.push(RecordedSpan { step, kind, start, end });
        }
    }

    /// Records the step around its tasks.
    pub(crate) fn record_step(&mut self, step: u64, times: &StepTimes) {
        if step != self.last {
            return;
        }
        let StepTimes { started, ended, data_wait, straggler_wait } = *times;
        self.push(step, SpanKind::Step, started, ended);
        let data_end = (started + data_wait).min(ended);
        self.push(step, SpanKind::DataWait, started, data_end);
        if let Some([start, end]) = self.losses
            && !straggler_wait.is_zero()
        {
            self.push(step, SpanKind::StragglerWait, start, (start + straggler_wait).min(end));
        }
    }

    /// Records a checkpoint of any step that began at `start` and has stalled until now.
    pub(crate) fn record_checkpoint(&mut self, step: u64, start: Duration) {
        self.record_until_now(step, SpanKind::Checkpoint, start);
    }

    /// Records an evaluation after any step.
    pub(crate) fn record_evaluation(&mut self, step: u64, start: Duration) {
        self.record_until_now(step, SpanKind::Evaluation, start);
    }

    fn record_until_now(&mut self, step: u64, kind: SpanKind, start: Duration) {
        if self.has_room(step, 1) {
            self.push(step, kind, start, self.world.clock().now());
        }
    }

    /// Whether a step has room for its spans; no later step has, after one had not.
    fn has_room(&mut self, step: u64, num_spans: usize) -> bool {
        if self.full_at.is_none() && self.spans.len() + num_spans > MAX_SPANS {
            self.full_at = Some(step);
        }
        self.full_at.is_none()
    }

    fn push(&mut self, step: u64, kind: SpanKind, start: Duration, end: Duration) {
        if self.spans.len() < MAX_SPANS {
            self.spans.push(RecordedSpan { step, kind, start, end });
        }
    }
}

#[cfg(test)]
mod tests;

//! Spans of the tasks of a sampled step, by the task ids of its program.
//!
//! A rank issues its tasks one after the other, so that a span begins where the one before ends: a
//! sampled step costs one look at the clock a task. Tasks that run together, such as the parts of a
//! block's pass, have the time of the first; a call in the background has the time to issue it, and
//! the task that waits for it has the rest.
//!
//! The memory of the spans is used again by the next sampled step.

use lockstep_platform::World;
use lockstep_schedule::step::{Program, TaskId};
use std::cell::RefCell;
use std::time::Duration;

/// Time of one task of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSpan {
    /// Task of the program.
    pub task: TaskId,
    /// Start, since that of the step.
    pub start: Duration,
    /// End, since the start of the step.
    pub end: Duration,
}

/// Spans of the last step, which was sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampledTasks<'a> {
    /// Start of the step, on the clock of the rank.
    pub began: Duration,
    /// Spans, in the order in which the tasks ran. Tasks of an update that was skipped have none.
    pub spans: &'a [TaskSpan],
    /// Program whose tasks they are.
    pub program: &'a Program,
}

/// Recorder of a rank's spans.
#[derive(Default)]
pub(crate) struct TaskSpans {
    /// Clock and spans of a sampled step; nothing is recorded in others.
    recording: Option<(World, RefCell<Recording>)>,
}

/// Spans of a step; empty if it was not sampled.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) began: Duration,
    pub(crate) spans: Vec<TaskSpan>,
}

impl TaskSpans {
    /// Recorder of a step that begins now, with room for its tasks, in the memory of an earlier
    /// one.
    pub(crate) fn begin(world: &World, mut spans: Vec<TaskSpan>, num_tasks: usize) -> Self {
        spans.clear();
        spans.reserve(num_tasks);
        let began = world.clock().now();
        Self { recording: Some((world.clone(), RefCell::new(Recording { began, spans }))) }
    }

    /// Ends the span of a task.
    pub(crate) fn end(&self, task: TaskId) {
        let Some((world, recording)) = &self.recording else { return };
        let Recording { began, spans } = &mut *recording.borrow_mut();
        let start = spans.last().map_or(Duration::ZERO, |span| span.end);
        let end = world.clock().since(*began).max(start);
        spans.push(TaskSpan { task, start, end });
    }

    /// Ends the spans of tasks that ran together.
    pub(crate) fn end_all(&self, tasks: std::ops::Range<u32>) {
        tasks.map(TaskId).for_each(|task| self.end(task));
    }

    /// Spans of the step, in the order in which its tasks ran, if it was sampled.
    pub(crate) fn finish(self) -> Option<Recording> {
        self.recording.map(|(_, recording)| recording.into_inner())
    }
}

//! Spans of the tasks of a sampled step, by the task ids of its program.
//!
//! A rank issues its tasks one after the other, so that a span begins where the one before ends: a
//! sampled step costs one look at the clock a task. Tasks that run together, such as the parts of a
//! block's pass, have the time of the first; a call in the background has the time to issue it, and
//! the task that waits for it has the rest.

use lockstep_platform::World;
use lockstep_schedule::step::TaskId;
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

/// Recorder of a rank's spans.
#[derive(Default)]
pub(crate) struct TaskSpans {
    /// Clock and spans of a sampled step; nothing is recorded in others.
    recording: Option<(World, RefCell<Recording>)>,
}

struct Recording {
    began: Duration,
    spans: Vec<TaskSpan>,
}

impl TaskSpans {
    /// Recorder of a step that begins now, with room for its tasks.
    pub(crate) fn begin(world: &World, num_tasks: usize) -> Self {
        let (began, spans) = (world.clock().now(), Vec::with_capacity(num_tasks));
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

    /// Spans of the step, in the order in which its tasks ran.
    pub(crate) fn finish(self) -> Vec<TaskSpan> {
        self.recording.map_or_else(Vec::new, |(_, recording)| recording.into_inner().spans)
    }
}

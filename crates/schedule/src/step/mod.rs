//! The training step as plain data: the tasks of one rank, in order, with what they touch.
//!
//! A [`Program`] lists what a rank does in one step: load the batch, pass micro-batches through
//! blocks, exchange activations, gather parameters, reduce gradients, agree, update. It says
//! nothing of time and holds no tensors. One value has several readers: the engine runs it, the
//! planner counts its bytes and plays it with calibrated durations ([`play()`]), [`verify`] proves
//! it, a trace names its tasks.
//!
//! # How an engine runs a program
//! 1. It issues tasks in program order, each to its [`Queue`]. Tasks of one queue run in that
//!    order; queues run side by side.
//! 2. A task starts when the tasks that [`Program::after`] names are done. These dependencies
//!    follow from the buffers that tasks touch ([`Access`]); the [`Builder`] derives them.
//! 3. A task with a [`Task::guard`] runs only if that agreement allows it, on all ranks alike, or
//!    if that norm does, where ranks decide alone.
//! 4. A group of one rank makes the same calls; their schedules have no instructions.
//!
//! On a CPU the rank's own thread is the compute queue and background threads are the links; on a
//! stream-ordered device queues are streams and dependencies are events.
//!
//! # Example
//! ```
//! use lockstep_schedule::step::{Builder, Contents, Queue, TaskOp, verify};
//!
//! let mut step = Builder::new(0);
//! let batch = step.buffer(Contents::Batch, 64);
//! let params = step.persistent(Contents::Params { bucket: 0 }, 1_000);
//! step.task(TaskOp::LoadBatch, Queue::Host).writes(batch);
//! let task = step.task(TaskOp::Custom { number: 0 }, Queue::Compute);
//! let task = task.takes(batch).updates(params).id();
//! let program = step.finish();
//! assert_eq!(program.after(task).len(), 1, "the task waits for the batch");
//! verify(&[program])?;
//! # Ok::<(), lockstep_schedule::step::InvalidStep>(())
//! ```

mod builder;
mod call;
mod contents;
mod display;
mod op;
mod play;
mod verify;

pub use builder::{Builder, TaskBuilder};
pub use call::{Call, CommGroup, Lengths};
pub use contents::Contents;
pub use op::{Averaged, BlockPass, Message, MessageKind, Normed, ServerCall, TaskOp};
pub use play::{Arrival, CallMode, Play, RankPlay, Span, play, play_with};
pub use verify::{InvalidStep, StepReport, verify};

use lockstep_mesh::Axis;

/// Index of a task in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Index of a buffer in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Resource that a task occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Arithmetic of the rank's device.
    Compute,
    /// Bulk communication along an axis of the mesh.
    Link(Axis),
    /// The few numbers that steer a run: losses, norms, agreements.
    Control,
    /// Data pipeline and host memory.
    Host,
    /// Checkpoints and offloaded state.
    Disk,
}

/// Use of a buffer by a task.
///
/// A buffer is empty or full. Transient buffers are empty between steps, persistent ones full. A
/// task that is missing or out of order finds or leaves a buffer in the wrong state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Reads a full buffer.
    Read,
    /// Changes a full buffer in place.
    Update,
    /// Fills an empty buffer.
    Write,
    /// Adds to a buffer; fills it if it is empty.
    Add,
    /// Reads a full buffer for the last time and leaves it empty.
    Take,
}

/// Use of one buffer by a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Buffer.
    pub buffer: BufferId,
    /// Use.
    pub mode: Use,
}

/// Buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Contents.
    pub contents: Contents,
    /// Number of elements.
    pub len: u64,
    /// Whether it is full between steps.
    pub is_persistent: bool,
}

/// One task of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Action.
    pub op: TaskOp,
    /// Resource that it occupies.
    pub queue: Queue,
    /// Collective call that it makes, as an index into [`Program::calls`].
    pub call: Option<u32>,
    /// Agreement or norm that decides whether it runs.
    pub guard: Option<TaskId>,
    after: std::ops::Range<u32>,
    accesses: std::ops::Range<u32>,
}

/// Step of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Rank that runs it.
    pub rank: usize,
    /// Tasks, in the order in which they are issued.
    pub tasks: Vec<Task>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Groups of ranks in which it communicates.
    pub groups: Vec<CommGroup>,
    /// Collective calls.
    pub calls: Vec<Call>,
    /// Number of each of its micro-batches within the global batch.
    pub microbatches: Vec<u32>,
    after: Vec<TaskId>,
    accesses: Vec<Access>,
}

impl Program {
    /// Tasks of other queues that must be done before a task starts.
    pub fn after(&self, task: TaskId) -> &[TaskId] {
        let range = &self.tasks[task.0 as usize].after;
        &self.after[range.start as usize..range.end as usize]
    }

    /// Buffers that a task touches.
    pub fn accesses(&self, task: TaskId) -> &[Access] {
        let range = &self.tasks[task.0 as usize].accesses;
        &self.accesses[range.start as usize..range.end as usize]
    }

    /// Collective call of a task, with its group.
    pub fn call(&self, task: &Task) -> Option<(&Call, &CommGroup)> {
        let call = &self.calls[task.call? as usize];
        Some((call, &self.groups[call.group as usize]))
    }

    /// Contents of the buffers that a task uses in these modes.
    pub fn contents<'a>(
        &'a self,
        task: TaskId,
        modes: &'a [Use],
    ) -> impl Iterator<Item = Contents> + 'a {
        let accesses = self.accesses(task).iter();
        let accesses = accesses.filter(move |access| modes.contains(&access.mode));
        accesses.map(|access| self.buffers[access.buffer.0 as usize].contents)
    }

    /// Collectives between the parts of a pass that begins with `first`: every second task, as long
    /// as it is one.
    pub fn collectives_of(&self, first: TaskId) -> impl Iterator<Item = &Task> {
        let tasks = self.tasks[first.0 as usize + 1..].iter();
        tasks.step_by(2).take_while(|task| task.op == TaskOp::TensorCollective)
    }

    /// Last part of a pass that begins with `first`.
    pub fn last_part(&self, first: TaskId) -> TaskId {
        TaskId(first.0 + 2 * self.collectives_of(first).count() as u32)
    }

    /// First task that satisfies a condition.
    pub fn position(&self, is_it: impl Fn(&TaskOp) -> bool) -> Option<TaskId> {
        self.iter().find(|(_, task)| is_it(&task.op)).map(|(id, _)| id)
    }

    /// Tasks with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        (0_u32..).map(TaskId).zip(&self.tasks)
    }

    /// The program of a step whose agreement refuses the update: without the tasks that depend on
    /// an agreement.
    pub fn without_guarded(&self) -> Self {
        let mut builder = Builder::new(self.rank);
        builder.adopt(self);
        for (id, old) in self.iter().filter(|(_, task)| task.guard.is_none()) {
            builder.repeat(old, self.accesses(id), None);
        }
        builder.finish()
    }

    /// The program without one task, as if it had been forgotten; for tests of the verifier.
    pub fn without(&self, task: TaskId) -> Self {
        let mut builder = Builder::new(self.rank);
        builder.adopt(self);
        for (id, old) in self.iter().filter(|(id, _)| *id != task) {
            let guard = old.guard.filter(|guard| *guard != task);
            let guard = guard.map(|guard| TaskId(guard.0 - u32::from(guard.0 > task.0)));
            builder.repeat(old, self.accesses(id), guard);
        }
        builder.finish()
    }
}

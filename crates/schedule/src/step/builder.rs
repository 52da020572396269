//! Construction of step programs: tasks in order, dependencies from the buffers they touch.
//!
//! A task that reads a buffer waits for its last writer; a task that changes one also waits for
//! its readers. Tasks of one queue run in order, so only the last task of each other queue is
//! kept as a dependency.

use super::{
    Access, Buffer, BufferId, Call, CommGroup, Contents, Program, Queue, Task, TaskId, TaskOp, Use,
};
use std::collections::BTreeMap;

/// Program under construction.
#[derive(Debug, Default)]
pub struct Builder {
    program: Program,
    ids: BTreeMap<Contents, BufferId>,
    /// By buffer: tasks that read or changed it last.
    uses: Vec<LastUses>,
}

#[derive(Debug, Clone, Default)]
struct LastUses {
    writer: Option<TaskId>,
    readers: Vec<TaskId>,
}

/// The task that was added last.
pub struct TaskBuilder<'a> {
    builder: &'a mut Builder,
}

impl Builder {
    /// Empty program of a rank.
    pub fn new(rank: usize) -> Self {
        Self { program: Program { rank, ..Program::default() }, ..Self::default() }
    }

    /// Transient buffer with these contents, made on first use.
    pub fn buffer(&mut self, contents: Contents, len: usize) -> BufferId {
        self.add_buffer(contents, len, false)
    }

    /// Persistent buffer with these contents, made on first use.
    pub fn persistent(&mut self, contents: Contents, len: usize) -> BufferId {
        self.add_buffer(contents, len, true)
    }

    fn add_buffer(&mut self, contents: Contents, len: usize, is_persistent: bool) -> BufferId {
        let len = len as u64;
        let buffers = &mut self.program.buffers;
        if let Some(id) = self.ids.get(&contents) {
            let known = &mut buffers[id.0 as usize];
            known.len = known.len.max(len);
            return *id;
        }
        let id = BufferId(index(buffers.len()));
        buffers.push(Buffer { contents, len, is_persistent });
        self.ids.insert(contents, id);
        self.uses.push(LastUses::default());
        id
    }

    /// Adds a group of ranks.
    pub fn group(&mut self, group: CommGroup) -> u32 {
        self.program.groups.push(group);
        index(self.program.groups.len() - 1)
    }

    /// Sets the numbers of the rank's micro-batches within the global batch.
    pub fn microbatches(&mut self, numbers: impl Iterator<Item = usize>) {
        self.program.microbatches = numbers.map(index).collect();
    }

    /// Adds a task.
    pub fn task(&mut self, op: TaskOp, queue: Queue) -> TaskBuilder<'_> {
        let Program { tasks, after, accesses, .. } = &mut self.program;
        let (after, accesses) = (index(after.len()), index(accesses.len()));
        tasks.push(Task {
            op,
            queue,
            call: None,
            guard: None,
            after: after..after,
            accesses: accesses..accesses,
        });
        TaskBuilder { builder: self }
    }

    /// Number of tasks so far.
    pub fn num_tasks(&self) -> usize {
        self.program.tasks.len()
    }

    /// The program.
    pub fn finish(self) -> Program {
        self.program
    }

    /// Takes over everything but the tasks.
    pub(super) fn adopt(&mut self, other: &Program) {
        let Program { rank, buffers, groups, calls, microbatches, .. } = other.clone();
        self.uses = vec![LastUses::default(); buffers.len()];
        self.program = Program { rank, buffers, groups, calls, microbatches, ..Program::default() };
    }

    /// Adds a task of another program with the same buffers.
    pub(super) fn repeat(&mut self, old: &Task, accesses: &[Access], guard: Option<TaskId>) {
        let mut task = self.task(old.op, old.queue);
        for access in accesses {
            task = task.access(*access);
        }
        task.current().call = old.call;
        task.current().guard = guard;
    }
}

impl TaskBuilder<'_> {
    /// Reads a full buffer.
    pub fn reads(self, buffer: BufferId) -> Self {
        self.access(Access { buffer, mode: Use::Read })
    }

    /// Changes a full buffer in place.
    pub fn updates(self, buffer: BufferId) -> Self {
        self.access(Access { buffer, mode: Use::Update })
    }

    /// Fills an empty buffer.
    pub fn writes(self, buffer: BufferId) -> Self {
        self.access(Access { buffer, mode: Use::Write })
    }

    /// Adds to a buffer.
    pub fn adds(self, buffer: BufferId) -> Self {
        self.access(Access { buffer, mode: Use::Add })
    }

    /// Reads a full buffer for the last time.
    pub fn takes(self, buffer: BufferId) -> Self {
        self.access(Access { buffer, mode: Use::Take })
    }

    /// Uses a buffer.
    pub fn access(mut self, access: Access) -> Self {
        let id = self.id();
        let mut found = std::mem::take(&mut self.builder.uses[access.buffer.0 as usize]);
        if access.mode == Use::Read {
            self.wait_for(found.writer);
            found.readers.push(id);
        } else {
            for reader in found.readers.drain(..) {
                self.wait_for(Some(reader));
            }
            self.wait_for(found.writer);
            found.writer = Some(id);
        }
        self.builder.uses[access.buffer.0 as usize] = found;
        self.builder.program.accesses.push(access);
        self.current().accesses.end += 1;
        self
    }

    /// Makes a collective call.
    pub fn calls(mut self, call: Call) -> Self {
        self.builder.program.calls.push(call);
        self.current().call = Some(index(self.builder.program.calls.len() - 1));
        self
    }

    /// Runs only if an agreement allows it, or a norm.
    pub fn guarded_by(mut self, guard: TaskId) -> Self {
        self.wait_for(Some(guard));
        self.current().guard = Some(guard);
        self
    }

    /// Its id.
    pub fn id(&self) -> TaskId {
        TaskId(index(self.builder.program.tasks.len() - 1))
    }

    fn current(&mut self) -> &mut Task {
        self.builder.program.tasks.last_mut().expect("this task was added")
    }

    /// Adds a dependency, unless a later task of its queue is one already.
    fn wait_for(&mut self, before: Option<TaskId>) {
        let Some(before) = before else { return };
        let (id, program) = (self.id(), &mut self.builder.program);
        let queue = |task: TaskId| program.tasks[task.0 as usize].queue;
        if before == id || queue(before) == queue(id) {
            return;
        }
        let own = program.tasks[id.0 as usize].after.clone();
        let own = own.start as usize..own.end as usize;
        if let Some(at) = own.clone().find(|at| queue(program.after[*at]) == queue(before)) {
            program.after[at] = program.after[at].max(before);
        } else {
            program.after.push(before);
            self.current().after.end += 1;
        }
    }
}

/// Index of an element; programs are far smaller than this.
fn index(value: usize) -> u32 {
    u32::try_from(value).expect("a program has fewer than 2^32 elements")
}

//! Programs that are made from others: tasks repeated in order, with more tasks between them.

use super::{RankPlan, pair_numbers};
use lockstep_schedule::step::{BufferId, Builder, Contents, Program, Queue, TaskId, TaskOp};

/// Program under construction from the tasks of another.
pub(super) struct Replay<'a> {
    base: &'a Program,
    pub(super) tasks: Builder,
    /// Number of tasks in front of an agreement that the other program does not have.
    pub(super) shift: u32,
}

impl<'a> Replay<'a> {
    /// Empty program of a rank with the buffers, groups and micro-batches of another.
    pub(super) fn new(base: &'a Program, rank: usize) -> Self {
        let mut tasks = Builder::new(rank);
        tasks.microbatches(base.microbatches.iter().map(|number| *number as usize));
        for buffer in &base.buffers {
            let len = buffer.len as usize;
            if buffer.is_persistent {
                tasks.persistent(buffer.contents, len);
            } else {
                tasks.buffer(buffer.contents, len);
            }
        }
        // A program of another rank is one without groups.
        for group in base.groups.iter().filter(|group| group.ranks.contains(&rank)) {
            tasks.group(group.clone());
        }
        Self { base, tasks, shift: 0 }
    }

    /// Adds a task of the other program, with its call or without.
    pub(super) fn repeat(&mut self, id: TaskId, has_call: bool) {
        let task = &self.base.tasks[id.0 as usize];
        let mut added = self.tasks.task(task.op, task.queue);
        for access in self.base.accesses(id) {
            added = added.access(*access);
        }
        if let Some((call, _)) = self.base.call(task).filter(|_| has_call) {
            added = added.calls(call.clone());
        }
        if let Some(guard) = task.guard {
            added.guarded_by(TaskId(guard.0 + self.shift));
        }
    }

    /// Parameters of a bucket.
    pub(super) fn params(&mut self, at: &RankPlan<'_>, bucket: usize) -> BufferId {
        let contents = Contents::Params { bucket: bucket as u32 };
        self.tasks.persistent(contents, at.buckets.list[bucket].len)
    }

    /// Gradients of a bucket, if it has any.
    pub(super) fn grads(&mut self, at: &RankPlan<'_>, bucket: usize) -> Option<BufferId> {
        let len = at.trained.grads.list[bucket].len;
        let contents = Contents::Grads { bucket: bucket as u32 };
        (len > 0).then(|| self.tasks.buffer(contents, len))
    }

    /// Adds the gradients of tied copies to their owners; returns marks that this was done.
    pub(super) fn add_mirrors(&mut self, at: &RankPlan<'_>) -> Vec<BufferId> {
        let mut marks = Vec::new();
        let grads = &at.trained.grads;
        for (pair, number) in grads.mirrors.iter().zip(pair_numbers(grads)) {
            let both = (self.grads(at, pair.owner.0), self.grads(at, pair.mirror.0));
            let (Some(owner), Some(mirror)) = both else { continue };
            let added = self.tasks.buffer(Contents::MirrorGrad { pair: number }, 0);
            let add = self.tasks.task(TaskOp::AddMirror { pair: number }, Queue::Compute);
            let add = add.updates(owner).writes(added);
            if owner != mirror {
                add.reads(mirror);
            }
            marks.push(added);
        }
        marks
    }
}

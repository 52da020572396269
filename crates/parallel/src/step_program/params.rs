//! Parameters of a step: whole on every rank, or sharded and gathered into windows before their use
//! (ZeRO-3).

use super::ELEMENT;
use super::StepBuilder;
use lockstep_mesh::Axis;
use lockstep_schedule::Op;
use lockstep_schedule::step::{BufferId, Contents, Lengths, Queue, TaskOp};

/// Two windows: while blocks compute in one, the next bucket is gathered into the other. A step
/// begins and ends with empty windows.
#[derive(Default)]
pub(super) struct Windows {
    held: [Option<usize>; 2],
}

impl StepBuilder<'_> {
    /// Buffer with this rank's parameters of a bucket: whole, or its shard.
    pub(super) fn params(&mut self, bucket: usize) -> BufferId {
        let list = &self.at.buckets.list;
        let len = match self.at.plan.zero {
            3 => list[bucket].part(self.at.part).len(),
            _ => list[bucket].len,
        };
        self.tasks.persistent(Contents::Params { bucket: bucket as u32 }, len)
    }

    /// Buffer in which a block finds its parameters; gathers them if necessary, then those of the
    /// `next` block.
    pub(super) fn fetch(&mut self, block: usize, next: Option<usize>) -> BufferId {
        let bucket = self.at.buckets.of_block(block);
        if self.at.plan.zero < 3 {
            return self.params(bucket);
        }
        let window = self.gather(bucket, 0);
        if let Some(next) = next.map(|next| self.at.buckets.of_block(next))
            && next != bucket
        {
            self.gather(next, 1 - window);
        }
        self.window(window)
    }

    fn window(&mut self, window: usize) -> BufferId {
        let len = self.at.buckets.max_len();
        self.tasks.buffer(Contents::Window { window: window as u32 }, len)
    }

    /// Gathers a bucket into a window unless one holds it already; returns its window.
    fn gather(&mut self, bucket: usize, window: usize) -> usize {
        if let Some(at) = self.windows.held.iter().position(|held| *held == Some(bucket)) {
            return at;
        }
        self.release(window);
        self.windows.held[window] = Some(bucket);
        let (params, into) = (self.params(bucket), self.window(window));
        let lengths = Lengths::Parts(self.at.buckets.list[bucket].part_lens().into());
        let call = self.data_call(Op::AllGather, lengths, ELEMENT);
        let op = TaskOp::GatherParams { bucket: bucket as u32 };
        self.tasks.task(op, Queue::Link(Axis::Data)).reads(params).writes(into).calls(call);
        window
    }

    /// Drops the contents of a window.
    fn release(&mut self, window: usize) {
        if let Some(bucket) = self.windows.held[window].take() {
            let held = self.window(window);
            let op = TaskOp::ReleaseParams { bucket: bucket as u32 };
            self.tasks.task(op, Queue::Compute).takes(held);
        }
    }

    /// Drops gathered parameters, because the update changes them.
    pub(super) fn release_all(&mut self) {
        (0..self.windows.held.len()).for_each(|window| self.release(window));
    }
}

//! Micro-batches through the blocks of a rank's stages: passes, activations between stages, and the
//! collectives of tensor-parallel blocks.

use super::gradients::Gradients;
use super::{ELEMENT, StepBuilder};
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_model::{CollectiveCall, CollectiveKind, Pass as ModelPass, Recompute};
use lockstep_schedule::Op;
use lockstep_schedule::pipeline::{Pass, Task};
use lockstep_schedule::step::{
    Access, BlockPass, BufferId, Call, Contents, Lengths, Message, MessageKind, Queue, TaskOp, Use,
};

impl StepBuilder<'_> {
    pub(super) fn load_batch(&mut self) {
        let at = self.at;
        let len = at.microbatches.len() * at.plan.microbatch.rows();
        let batch = self.tasks.buffer(Contents::Batch, len);
        self.tasks.task(TaskOp::LoadBatch, Queue::Host).writes(batch);
    }

    /// Adds one pass of the pipeline.
    pub(super) fn pass(&mut self, task: Task, gradients: &mut Gradients<'_>) {
        let is_padding = self.at.is_padding(task);
        if task.pass == Pass::Forward {
            self.forward_pass(task, is_padding);
            return;
        }
        let run = self.at.runs[task.chunk].clone();
        let slots = self.slots(task);
        let first = self.at.trained.first_block.clamp(run.start, run.end);
        if !is_padding {
            self.take_gradient(task, first);
        }
        for block in (first..run.end).rev() {
            let window = self.fetch(block, (block > first).then(|| block - 1));
            let buffer = match task.pass {
                Pass::InputGrad => None,
                _ => gradients.open(self, block, is_padding),
            };
            if !is_padding {
                self.backward(task, block, first, slots, window, buffer);
            }
            if task.pass != Pass::InputGrad {
                gradients.close(self, block, is_padding);
            }
        }
        if !is_padding {
            self.discard_untrained(task, first, slots);
            self.send_gradient(task, first);
        }
    }

    /// Adds a forward pass; padding gathers parameters as the other ranks do.
    pub(super) fn forward_pass(&mut self, task: Task, is_padding: bool) {
        let run = self.at.runs[task.chunk].clone();
        let slots = self.slots(task);
        if !is_padding {
            self.take_activation(task, slots);
        }
        for block in run.clone() {
            let window = self.fetch(block, Some((block + 1).min(run.end - 1)));
            if !is_padding {
                self.forward(task, block, slots, window);
            }
        }
        if !is_padding {
            self.send_activation(task, slots);
        }
    }

    /// Slots of a micro-batch. Micro-batches run forward in ascending order and release their
    /// activations in that order, so micro-batch i uses slot i mod n of n.
    fn slots(&self, task: Task) -> Slots {
        let slot = |slots: &[usize]| (task.microbatch % slots[task.chunk].max(1)) as u32;
        Slots { activations: slot(&self.live), deferred: slot(&self.deferred_slots) }
    }

    fn stage(&self, task: Task) -> usize {
        task.chunk * self.at.plan.stages.num_devices() + self.at.device
    }

    /// Input of a block of a live micro-batch; the first block reads tokens and has none.
    fn stream(&mut self, block: usize, slots: Slots) -> BufferId {
        let at = self.at;
        let io = at.blueprint.blocks[block].io();
        let len = at.blueprint.stream_len(at.plan.microbatch, io.input_width());
        let (block, slot) = (block as u32, slots.activations);
        self.tasks.buffer(Contents::Stream { block, slot }, len)
    }

    fn output(&mut self, task: Task, slots: Slots) -> BufferId {
        let at = self.at;
        let last = at.runs[task.chunk].end - 1;
        let width = at.blueprint.blocks[last].io().output_width();
        let len = at.blueprint.stream_len(at.plan.microbatch, width);
        let (chunk, slot) = (task.chunk as u32, slots.activations);
        self.tasks.buffer(Contents::Output { chunk, slot }, len)
    }

    fn saved(&mut self, block: usize, slots: Slots) -> BufferId {
        let at = self.at;
        let all = at.blueprint.blocks[block].saved_len(at.plan.microbatch);
        let len = match at.plan.recompute.of_block(block, &*at.blueprint.blocks[block]) {
            Recompute::None => all.kept + all.rebuilt,
            Recompute::Selective => all.kept,
            Recompute::Full => 0,
        };
        let (block, slot) = (block as u32, slots.activations);
        self.tasks.buffer(Contents::Saved { block, slot }, len)
    }

    fn stream_grad(&mut self) -> BufferId {
        let at = self.at;
        let blocks = at.runs.iter().flat_map(|run| &at.blueprint.blocks[run.clone()]);
        let width = blocks.map(|block| block.io().max_width()).max().unwrap_or(0);
        let len = at.blueprint.stream_len(at.plan.microbatch, width);
        self.tasks.buffer(Contents::StreamGrad, len)
    }

    /// Adds the parts of a pass through a block, with the collectives between them. The first part
    /// makes the `first` accesses, the last part the `last` ones.
    fn block_pass(
        &mut self,
        op: fn(BlockPass) -> TaskOp,
        task: Task,
        block: usize,
        calls: Vec<CollectiveCall>,
        first: &[Access],
        last: &[Access],
    ) {
        let calls = if self.at.num_tp_ranks == 1 { Vec::new() } else { calls };
        let pass = |part: usize| BlockPass {
            chunk: task.chunk as u32,
            microbatch: task.microbatch as u32,
            block: block as u32,
            part: part as u32,
        };
        let num_calls = calls.len();
        let mut before = None;
        for (part, call) in calls.into_iter().map(Some).chain([None]).enumerate() {
            let partial = call
                .as_ref()
                .map(|call| self.tasks.buffer(Contents::Partial { number: part as u32 }, call.len));
            let mut added = self.tasks.task(op(pass(part)), Queue::Compute);
            if let Some(before) = std::mem::replace(&mut before, partial) {
                added = added.takes(before);
            }
            for access in first.iter().filter(|_| part == 0) {
                added = added.access(*access);
            }
            for access in last.iter().filter(|_| part == num_calls) {
                added = added.access(*access);
            }
            let (Some(call), Some(partial)) = (call, partial) else { continue };
            added.writes(partial);
            let op = match call.kind {
                CollectiveKind::AllReduce | CollectiveKind::AllReduceMax => Op::AllReduce,
                CollectiveKind::AllGather => Op::AllGather,
                CollectiveKind::ReduceScatter => Op::ReduceScatter,
            };
            let lengths = Lengths::Even(call.len);
            let call = Call { group: self.tensor, op, lengths, element: ELEMENT };
            let queue = Queue::Link(Axis::Tensor);
            self.tasks.task(TaskOp::TensorCollective, queue).updates(partial).calls(call);
        }
    }

    fn forward(&mut self, task: Task, block: usize, slots: Slots, params: BufferId) {
        let at = self.at;
        let run = &at.runs[task.chunk];
        let calls =
            at.blueprint.blocks[block].collective_calls(at.plan.microbatch, ModelPass::Forward);
        let mut first = vec![Access { buffer: params, mode: Use::Read }];
        if at.blueprint.blocks[block].io().input_width() > 0 {
            let mode = if self.is_evaluation { Use::Take } else { Use::Read };
            first.push(Access { buffer: self.stream(block, slots), mode });
        } else if !self.is_evaluation {
            let batch = self.tasks.buffer(Contents::Batch, 0);
            first.push(Access { buffer: batch, mode: Use::Read });
        }
        let mut last = Vec::new();
        if !self.is_evaluation {
            last.push(Access { buffer: self.saved(block, slots), mode: Use::Write });
        }
        if block + 1 < run.end {
            last.push(Access { buffer: self.stream(block + 1, slots), mode: Use::Write });
        } else if self.stage(task) + 1 < at.plan.stages.num_stages() {
            last.push(Access { buffer: self.output(task, slots), mode: Use::Write });
        } else if !self.is_evaluation {
            let microbatch = task.microbatch as u32;
            let loss = self.loss(microbatch);
            last.push(Access { buffer: loss, mode: Use::Write });
        }
        self.block_pass(TaskOp::Forward, task, block, calls, &first, &last);
    }

    fn backward(
        &mut self,
        task: Task,
        block: usize,
        first_trained: usize,
        slots: Slots,
        params: BufferId,
        grads: Option<BufferId>,
    ) {
        let at = self.at;
        let model = &at.blueprint.blocks[block];
        let policy = at.plan.recompute.of_block(block, &**model);
        let shape = at.plan.microbatch;
        let saved = Access { buffer: self.saved(block, slots), mode: Use::Take };
        let has_input = model.io().input_width() > 0;
        let read_params = Access { buffer: params, mode: Use::Read };
        let mut first = vec![read_params];
        let mut last = Vec::new();
        let stream = has_input.then(|| self.stream(block, slots));
        if policy != Recompute::None {
            let all = model.saved_len(shape);
            let rebuilt = self.tasks.buffer(Contents::Recomputed, all.kept + all.rebuilt);
            let calls = model.collective_calls(shape, ModelPass::Recompute(policy));
            let mut inputs = vec![read_params, Access { mode: Use::Read, ..saved }];
            inputs.extend(stream.map(|buffer| Access { buffer, mode: Use::Read }));
            let outputs = [Access { buffer: rebuilt, mode: Use::Write }];
            self.block_pass(TaskOp::Recompute, task, block, calls, &inputs, &outputs);
            last.push(Access { buffer: rebuilt, mode: Use::Take });
        }
        let trained = &at.trained.of_block[block];
        let is_last_use = task.pass != Pass::InputGrad;
        let end = if is_last_use { Use::Take } else { Use::Read };
        last.push(Access { mode: end, ..saved });
        last.extend(stream.map(|buffer| Access { buffer, mode: end }));
        let stream_grad = self.stream_grad();
        if task.pass == Pass::WeightGrad {
            let deferred = self.deferred(block, slots);
            first.push(Access { buffer: deferred, mode: Use::Take });
        } else {
            // The block with the loss starts the gradient; the first trained block ends it unless
            // another stage needs it.
            let is_loss = block + 1 == at.blueprint.blocks.len();
            let is_end = block == first_trained && !self.passes_gradient_on(task, first_trained);
            match (is_loss, is_end) {
                (true, true) => {}
                (true, false) => last.push(Access { buffer: stream_grad, mode: Use::Write }),
                (false, true) => last.push(Access { buffer: stream_grad, mode: Use::Take }),
                (false, false) => last.push(Access { buffer: stream_grad, mode: Use::Update }),
            }
            if task.pass == Pass::InputGrad {
                let deferred = self.deferred(block, slots);
                last.push(Access { buffer: deferred, mode: Use::Write });
            }
        }
        last.extend(grads.map(|buffer| Access { buffer, mode: Use::Add }));
        let (op, pass): (fn(BlockPass) -> TaskOp, _) = match task.pass {
            Pass::InputGrad => (TaskOp::InputGrad, ModelPass::BackwardInputs),
            Pass::WeightGrad => (TaskOp::WeightGrad, ModelPass::BackwardWeights(trained)),
            Pass::Forward | Pass::Backward => (TaskOp::Backward, ModelPass::Backward(trained)),
        };
        let calls = model.collective_calls(shape, pass);
        self.block_pass(op, task, block, calls, &first, &last);
    }

    fn deferred(&mut self, block: usize, slots: Slots) -> BufferId {
        let len = self.at.blueprint.blocks[block].deferred_len(self.at.plan.microbatch);
        let (block, slot) = (block as u32, slots.deferred);
        self.tasks.buffer(Contents::Deferred { block, slot }, len)
    }

    /// Whether the gradient of a stage's input is needed by the previous stage.
    fn passes_gradient_on(&self, task: Task, first_trained: usize) -> bool {
        let run = &self.at.runs[task.chunk];
        self.stage(task) > 0
            && self.at.trained.first_block < run.start
            && first_trained == run.start
    }

    /// Frozen blocks in front of the first trained one have no backward; their activations are
    /// discarded with the pass that ends the micro-batch.
    fn discard_untrained(&mut self, task: Task, first: usize, slots: Slots) {
        let run = self.at.runs[task.chunk].clone();
        if task.pass == Pass::InputGrad || first == run.start {
            return;
        }
        for block in run.start..first.min(run.end) {
            let saved = self.saved(block, slots);
            let has_input = self.at.blueprint.blocks[block].io().input_width() > 0;
            let stream = has_input.then(|| self.stream(block, slots));
            let release = self.tasks.task(
                TaskOp::ReleaseActivations {
                    block: block as u32,
                    microbatch: task.microbatch as u32,
                },
                Queue::Compute,
            );
            let release = release.takes(saved);
            if let Some(stream) = stream {
                release.takes(stream);
            }
        }
    }

    /// Receives the output of the previous stage, or copies it where that is on this rank.
    fn take_activation(&mut self, task: Task, slots: Slots) {
        let stage = self.stage(task);
        if stage == 0 {
            return;
        }
        let (at, run) = (self.at, self.at.runs[task.chunk].clone());
        let from = (stage - 1) % at.plan.stages.num_devices();
        let stream = self.stream(run.start, slots);
        let microbatch = task.microbatch as u32;
        if from == at.device {
            let before = Task { chunk: task.chunk - 1, ..task };
            let output = self.output(before, self.slots(before));
            let op = TaskOp::CopyActivation { chunk: task.chunk as u32, microbatch };
            self.tasks.task(op, Queue::Compute).takes(output).writes(stream);
            return;
        }
        let width = at.blueprint.blocks[run.start].io().input_width();
        let len = at.blueprint.stream_len(at.plan.microbatch, width);
        let kind = MessageKind::Activation { boundary: stage as u32 - 1, microbatch };
        let message = self.message(kind, from, len);
        self.tasks.task(TaskOp::Recv(message), Queue::Link(Axis::Pipeline)).writes(stream);
    }

    fn message(&self, kind: MessageKind, device: usize, len: usize) -> Message {
        let peer = self.at.pipeline_peer(device);
        Message { kind, peer, len: len as u64, element: ELEMENT.0 as u32 }
    }

    fn send_activation(&mut self, task: Task, slots: Slots) {
        let (at, stage) = (self.at, self.stage(task));
        let to = (stage + 1) % at.plan.stages.num_devices();
        if stage + 1 == at.plan.stages.num_stages() || to == at.device {
            return;
        }
        let last = at.runs[task.chunk].end - 1;
        let width = at.blueprint.blocks[last].io().output_width();
        let len = at.blueprint.stream_len(at.plan.microbatch, width);
        let microbatch = task.microbatch as u32;
        let kind = MessageKind::Activation { boundary: stage as u32, microbatch };
        let message = self.message(kind, to, len);
        let output = self.output(task, slots);
        self.tasks.task(TaskOp::Send(message), Queue::Link(Axis::Pipeline)).takes(output);
    }

    /// Receives the gradient of a stage's output.
    fn take_gradient(&mut self, task: Task, first: usize) {
        let (at, stage) = (self.at, self.stage(task));
        let run = at.runs[task.chunk].clone();
        let from = (stage + 1) % at.plan.stages.num_devices();
        let is_last = stage + 1 == at.plan.stages.num_stages();
        if first >= run.end || task.pass == Pass::WeightGrad || is_last || from == at.device {
            return;
        }
        let width = at.blueprint.blocks[run.end - 1].io().output_width();
        let len = at.blueprint.stream_len(at.plan.microbatch, width);
        let microbatch = task.microbatch as u32;
        let kind = MessageKind::ActivationGrad { boundary: stage as u32, microbatch };
        let message = self.message(kind, from, len);
        let stream_grad = self.stream_grad();
        self.tasks.task(TaskOp::Recv(message), Queue::Link(Axis::Pipeline)).writes(stream_grad);
    }

    fn send_gradient(&mut self, task: Task, first: usize) {
        let (at, stage) = (self.at, self.stage(task));
        let run = at.runs[task.chunk].clone();
        let is_needed = task.pass != Pass::WeightGrad
            && first < run.end
            && self.passes_gradient_on(task, first);
        if !is_needed {
            return;
        }
        let to = (stage - 1) % at.plan.stages.num_devices();
        if to == at.device {
            // The stage in front is on this rank and finds the gradient in the buffer.
            return;
        }
        let width = at.blueprint.blocks[run.start].io().input_width();
        let len = at.blueprint.stream_len(at.plan.microbatch, width);
        let microbatch = task.microbatch as u32;
        let kind = MessageKind::ActivationGrad { boundary: stage as u32 - 1, microbatch };
        let message = self.message(kind, to, len);
        let stream_grad = self.stream_grad();
        self.tasks.task(TaskOp::Send(message), Queue::Link(Axis::Pipeline)).takes(stream_grad);
    }

    /// Loss of a micro-batch, each value of which is as long as two elements.
    fn loss(&mut self, microbatch: u32) -> BufferId {
        let len = 2 * self.at.plan.loss_values;
        self.tasks.buffer(Contents::Loss { microbatch }, len)
    }

    pub(super) fn gather_losses(&mut self) {
        let at = self.at;
        let is_last = (at.plan.stages.num_stages() - 1) % at.plan.stages.num_devices() == at.device;
        let own = if is_last { at.microbatches.len() } else { 0 };
        let losses: Vec<_> = (0..own as u32).map(|microbatch| self.loss(microbatch)).collect();
        let all = self.tasks.persistent(Contents::Losses, 0);
        let call = Call {
            group: self.world,
            op: Op::AllGather,
            // Every rank adds its busy time.
            lengths: Lengths::Even(
                at.plan.leaves.num_leaves
                    * at.plan.leaves.microbatches_per_leaf
                    * at.plan.loss_values
                    + at.plan.mesh.num_ranks(),
            ),
            element: Bytes(8),
        };
        let batch = self.tasks.buffer(Contents::Batch, 0);
        let task = self.tasks.task(TaskOp::GatherLosses, Queue::Control);
        let mut task = task.takes(batch).updates(all);
        for loss in losses {
            task = task.takes(loss);
        }
        task.calls(call);
    }
}

/// Slots of a micro-batch among the live ones of a stage.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    activations: u32,
    deferred: u32,
}

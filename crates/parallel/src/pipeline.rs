//! The passes of a step program ([`lockstep_schedule::step`]), run task by task.
//!
//! A rank issues its tasks in program order. A forward pass receives its input from the previous
//! stage, runs its blocks and sends the output on; a backward pass receives the gradient of that
//! output and sends the gradient of its input back. Communication of parameters and gradients goes
//! to the [`Store`] and runs in the background; a pass waits for what it needs.
//!
//! A micro-batch keeps its state between the passes in one of as many [`Activations`] as the
//! program has live, by the slot that the program names. The same holds for
//! [`DeferredWeightGrads`].

mod section;

use crate::microbatch::{
    Accelerator, ActivationPlan, Activations, DeferredWeightGrads, SharedBuffers, Store,
};
use crate::microbatch_losses::MicrobatchLoss;
use crate::stage_link::{Direction, Link, StageMessage};
use crate::stages::Stages;
use crate::tensor_parallel::TensorParallel;
use crate::token_stage::TokenStage;
use lockstep_comm::CommError;
use lockstep_model::{Blueprint, Microbatch, MicrobatchShape, Mode, Scratch};
use lockstep_schedule::pipeline::{Pass, Task};
use lockstep_schedule::step::{BlockPass, Message, MessageKind, Program, TaskId, TaskOp};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, DualBuffer, Result as DeviceResult};
use section::section_end;
use std::ops::Range;
use std::sync::Arc;

/// One rank of a pipeline and its activation memory.
pub struct PipelineRank {
    stages: Stages,
    /// Pipeline rank.
    index: usize,
    /// By stage of this rank, one per live micro-batch.
    slots: Vec<Vec<Activations>>,
    /// By stage of this rank, one per deferred weight gradient.
    deferred: Vec<Vec<DeferredWeightGrads>>,
    /// Micro-batch of each slot, and the largest number in use at a time.
    kept: Vec<Vec<Option<usize>>>,
    most_live: Vec<usize>,
    /// Passes of the last run, in order.
    executed: Vec<Task>,
    shared: SharedBuffers,
    /// Gradient of the stream.
    d_stream: DualBuffer,
    /// Tokens and losses where the blocks run.
    tokens: TokenStage,
    accelerator: Option<Arc<dyn Device>>,
    pub(crate) link: Link,
    pub(crate) tensor_parallel: TensorParallel,
}

/// Micro-batches to run, and their inputs.
pub struct Job<'a, 'l> {
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Kernels of the host.
    pub cpu: &'a Cpu,
    /// Training or evaluation.
    pub mode: Mode,
    /// Scratch memory of the current block.
    pub scratch: &'a mut Scratch,
    /// Number of micro-batches; the rest of the program is padding.
    pub num_microbatches: usize,
    /// Returns a micro-batch by index.
    pub microbatch: &'a dyn Fn(usize) -> Microbatch<'l>,
    /// Whether to run a micro-batch, called before its forward pass; after a `false` none of the
    /// rest runs. Only a pipeline of one rank may return `false`.
    pub should_run: &'a dyn Fn(usize) -> bool,
    /// Receives the loss of a micro-batch on the last stage.
    pub loss: &'a mut dyn FnMut(usize, MicrobatchLoss),
    /// Called after each task.
    pub done: &'a dyn Fn(TaskId),
}

/// Sizes of a pipeline rank's memory.
#[derive(Clone, Copy)]
pub struct Sizes<'a> {
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Shape of every micro-batch.
    pub microbatch: MicrobatchShape,
    /// Activation recomputation and offload.
    pub activations: ActivationPlan,
    /// Micro-batches of a step.
    pub num_microbatches: usize,
}

impl Sizes<'_> {
    /// Elements of the stream gradient of a rank's blocks.
    fn d_stream_len(&self, runs: &[Range<usize>]) -> usize {
        let widths = runs.iter().flat_map(|run| &self.blueprint.blocks[run.clone()]);
        let width = widths.map(|block| block.io().max_width()).max().unwrap_or(0);
        self.blueprint.stream_len(self.microbatch, width)
    }

    /// Elements of a message between stages.
    fn message_len(&self) -> usize {
        self.blueprint.stream_len(self.microbatch, self.blueprint.max_width())
    }

    /// Scratch elements for a rank's blocks.
    pub fn scratch_len(&self, stages: &Stages, device: usize) -> usize {
        let runs = stages.runs_of(device, self.blueprint.blocks.len());
        let blocks = runs.into_iter().flat_map(|run| &self.blueprint.blocks[run]);
        blocks.map(|block| block.scratch_len(self.microbatch)).max().unwrap_or(0)
    }
}

impl PipelineRank {
    /// One rank of a pipeline with these stages.
    pub fn new(
        stages: Stages,
        device: usize,
        (link, tensor_parallel): (Link, TensorParallel),
        sizes: &Sizes<'_>,
        accelerator: Accelerator<'_>,
    ) -> DeviceResult<Self> {
        let runs = stages.runs_of(device, sizes.blueprint.blocks.len());
        let Sizes { blueprint, microbatch, activations, .. } = *sizes;
        let mut own = Self {
            slots: Vec::new(),
            deferred: Vec::new(),
            kept: Vec::new(),
            most_live: Vec::new(),
            executed: Vec::new(),
            shared: SharedBuffers::new(accelerator, blueprint, microbatch, activations, &runs)?,
            d_stream: DualBuffer::zeros(accelerator, sizes.d_stream_len(&runs))?,
            tokens: TokenStage::new(accelerator, microbatch)?,
            accelerator: accelerator.cloned(),
            stages,
            index: device,
            link,
            tensor_parallel,
        };
        own.renew(sizes)?;
        Ok(own)
    }

    /// Changes the number of micro-batches.
    pub fn renew(&mut self, sizes: &Sizes<'_>) -> DeviceResult<()> {
        let Sizes { blueprint, microbatch, activations, num_microbatches } = *sizes;
        let pipeline = self.stages.pipeline(num_microbatches);
        let (live, deferred_weight_grads) =
            (pipeline.live(self.index), pipeline.deferred_weight_grads(self.index));
        let num_passes = pipeline.programs[self.index].len();
        let evaluation = self.stages.num_stages();
        self.executed = Vec::with_capacity(num_passes.max(evaluation));
        self.kept = live.iter().map(|live| vec![None; *live]).collect();
        self.most_live = vec![0; live.len()];
        let is_enough = self.slots.iter().map(Vec::len).eq(live.iter().copied())
            && self.deferred.iter().map(Vec::len).eq(deferred_weight_grads.iter().copied());
        if is_enough {
            return Ok(());
        }
        // Free the old slots first, so that both never exist at once.
        self.slots.clear();
        self.deferred.clear();
        for (run, (live, deferred_weight_grads)) in self
            .stages
            .runs_of(self.index, blueprint.blocks.len())
            .into_iter()
            .zip(live.into_iter().zip(deferred_weight_grads))
        {
            let on = self.accelerator.as_ref();
            let slot = |_| Activations::new(on, blueprint, microbatch, activations, run.clone());
            let deferred = |_| DeferredWeightGrads::new(on, blueprint, microbatch, run.clone());
            self.slots.push((0..live).map(slot).collect::<DeviceResult<_>>()?);
            let deferred = (0..deferred_weight_grads).map(deferred).collect::<DeviceResult<_>>()?;
            self.deferred.push(deferred);
        }
        Ok(())
    }

    /// Link for messages of this size.
    pub fn link(
        sizes: &Sizes<'_>,
        comm: lockstep_comm::Comm,
        world: lockstep_platform::World,
    ) -> Link {
        Link::new(comm, world, sizes.message_len())
    }

    /// Numbers of elements that [`Self::new`] would allocate: for activations, and for messages.
    pub fn planned_len(stages: &Stages, device: usize, sizes: &Sizes<'_>) -> (usize, usize) {
        let runs = stages.runs_of(device, sizes.blueprint.blocks.len());
        let pipeline = stages.pipeline(sizes.num_microbatches);
        let Sizes { blueprint, microbatch, activations, .. } = *sizes;
        let [slots, offloaded] = Self::planned_slots(stages, device, sizes);
        let deferred = pipeline.deferred_weight_grads(device).into_iter().zip(&runs);
        let deferred = deferred.map(|(num, run)| {
            num * DeferredWeightGrads::planned_len(blueprint, microbatch, run.clone())
        });
        let shared = SharedBuffers::planned_len(blueprint, microbatch, activations, &runs);
        let kept = slots + offloaded + deferred.sum::<usize>();
        let activations = kept + shared + sizes.d_stream_len(&runs);
        (activations, Link::planned_len(stages.num_devices(), sizes.message_len()))
    }

    /// The part of the activations of [`Self::planned_len`] that is offloaded.
    pub fn planned_offload_len(stages: &Stages, device: usize, sizes: &Sizes<'_>) -> usize {
        let [_, offloaded] = Self::planned_slots(stages, device, sizes);
        offloaded
    }

    /// Elements of all live micro-batches: where blocks compute, and offloaded.
    fn planned_slots(stages: &Stages, device: usize, sizes: &Sizes<'_>) -> [usize; 2] {
        let Sizes { blueprint, microbatch, activations, num_microbatches } = *sizes;
        let live = stages.pipeline(num_microbatches).live(device);
        let mut all = [0; 2];
        for (run, live) in stages.runs_of(device, blueprint.blocks.len()).into_iter().zip(live) {
            let each = Activations::planned_len(blueprint, microbatch, activations, run);
            all = [0, 1].map(|part| all[part] + live * each[part]);
        }
        all
    }

    /// Numbers of elements held: for activations, and for messages.
    pub fn num_elements(&self) -> (usize, usize) {
        let slots = self.slots.iter().flatten().map(Activations::num_elements).sum::<usize>();
        let deferred =
            self.deferred.iter().flatten().map(DeferredWeightGrads::num_elements).sum::<usize>();
        let activations = slots + deferred + self.shared.num_elements() + self.d_stream.len();
        (activations, self.link.num_elements())
    }

    /// Device that runs the blocks.
    pub(crate) fn compute_device<'a>(&'a self, cpu: &'a Cpu) -> &'a dyn Device {
        self.accelerator.as_deref().unwrap_or(cpu)
    }

    /// Number of micro-batches of an evaluation run.
    pub fn depth(&self) -> usize {
        self.stages.num_devices()
    }

    /// Passes of the last run, in order.
    pub fn executed(&self) -> &[Task] {
        &self.executed
    }

    /// Largest number of live micro-batches by stage of this rank.
    pub fn most_live(&self) -> &[usize] {
        &self.most_live
    }

    /// Stages of the pipeline.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Saved tensors of the last block for the last micro-batch.
    pub fn last_saved(&self) -> &[f32] {
        let slots = self.slots.last().expect("a pipeline rank has a stage");
        slots[(self.depth() - 1) % slots.len()].last_saved()
    }

    /// Losses of the rows of the only micro-batch of an evaluation run.
    pub fn row_losses(&self, cpu: &Cpu, num_rows: usize) -> Result<Vec<f32>, CommError> {
        let slots = self.slots.last().expect("a pipeline rank has a stage");
        Ok(slots[0].row_losses(self.compute_device(cpu), num_rows)?)
    }

    /// Runs tasks of a program: passes of micro-batches, and the communication between them.
    pub fn run<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        program: &Program,
        tasks: Range<u32>,
    ) -> Result<(), CommError> {
        let mut at_work: Option<(u32, Microbatch<'_>)> = None;
        let mut is_over = false;
        self.executed.clear();
        let on = self.accelerator.clone();
        let device = on.as_deref().unwrap_or(job.cpu);
        self.tokens.begin(device, job.num_microbatches)?;
        let mut next = tasks.start;
        while next < tasks.end {
            let id = TaskId(next);
            next += 1;
            // The task before has ended, however it did.
            if id.0 > tasks.start {
                (job.done)(TaskId(id.0 - 1));
            }
            let op = program.tasks[id.0 as usize].op;
            let Some(microbatch) = op.microbatch() else {
                match op {
                    // The loader has the batch; parts of a pass run together.
                    TaskOp::LoadBatch | TaskOp::TensorCollective => {}
                    // A rank that stops early reduces what counts of its gradients by itself.
                    TaskOp::Encode { .. } | TaskOp::Reduce { .. } if is_over => {}
                    _ => store.communicate(job.cpu, program, id)?,
                }
                continue;
            };
            if is_over || microbatch as usize >= job.num_microbatches {
                continue;
            }
            let input = match at_work {
                Some((number, input)) if number == microbatch => input,
                _ if !(job.should_run)(microbatch as usize) => {
                    is_over = true;
                    continue;
                }
                _ => (job.microbatch)(microbatch as usize),
            };
            at_work = Some((microbatch, input));
            match op {
                TaskOp::CopyActivation { chunk, microbatch } => {
                    self.copy_activation(chunk as usize, microbatch as usize)?;
                }
                TaskOp::Send(message) => self.send(message)?,
                TaskOp::Recv(message) => self.recv(message)?,
                TaskOp::ReleaseActivations { block, microbatch } => {
                    self.release(block as usize, microbatch as usize);
                }
                _ => {
                    next = section_end(program, id, tasks.end);
                    self.section(store, job, program, id.0..next, &input, device)?;
                }
            }
        }
        for (microbatch, loss) in self.tokens.read_losses(device)? {
            (job.loss)(microbatch as usize, MicrobatchLoss::of(loss));
        }
        self.link.settle()?;
        if !tasks.is_empty() {
            (job.done)(TaskId(tasks.end - 1));
        }
        Ok(())
    }

    /// Chunk and slot of a micro-batch at a stage of this rank.
    fn slot(&self, stage: usize, microbatch: u32) -> (usize, usize) {
        let chunk = stage / self.stages.num_devices();
        (chunk, microbatch as usize % self.slots[chunk].len())
    }

    /// Copies the output of one stage to the input of the next on this rank.
    fn copy_activation(&mut self, chunk: usize, microbatch: usize) -> DeviceResult<()> {
        let slots = self.slots.get_disjoint_mut([chunk - 1, chunk]);
        let [before, own] = slots.expect("two stages of one rank");
        let output = before[microbatch % before.len()].output();
        let at = microbatch % own.len();
        own[at].input_mut().copy_from(0..output.len(), output, 0..output.len())
    }

    /// Sends an activation, or the gradient of one.
    fn send(&mut self, message: Message) -> Result<(), CommError> {
        let num_devices = self.stages.num_devices();
        let (to, message, len) = stage_message(message);
        let to = match message.direction {
            Direction::Forward => (to + 1) % num_devices,
            Direction::Backward => to % num_devices,
        };
        match message.direction {
            Direction::Forward => {
                let (chunk, slot) = self.slot(message.boundary, message.microbatch as u32);
                self.link.send(to, message, self.slots[chunk][slot].output())
            }
            Direction::Backward => self.link.send(to, message, &self.d_stream[..len]),
        }
    }

    /// Receives an activation, or the gradient of one.
    fn recv(&mut self, message: Message) -> Result<(), CommError> {
        let num_devices = self.stages.num_devices();
        let (boundary, message, len) = stage_message(message);
        match message.direction {
            Direction::Forward => {
                let (chunk, slot) = self.slot(boundary + 1, message.microbatch as u32);
                let from = boundary % num_devices;
                self.link.recv(from, message, self.slots[chunk][slot].input_mut())
            }
            Direction::Backward => {
                let from = (boundary + 1) % num_devices;
                self.link.recv(from, message, &mut self.d_stream[..len])
            }
        }
    }

    /// Frees the slot of a micro-batch at a stage of which no block is trained.
    fn release(&mut self, block: usize, microbatch: usize) {
        let (chunk, slot) = self.slot(self.stages.stage_of(block), microbatch as u32);
        if self.kept[chunk][slot] == Some(microbatch) {
            self.kept[chunk][slot] = None;
        }
    }

    /// Tracks the passes and the slots in use. A pass begins with the first block of its stage, or
    /// the last one backward.
    fn keep(&mut self, op: TaskOp, block_pass: BlockPass) {
        let pass = match op {
            TaskOp::Forward(_) => Pass::Forward,
            TaskOp::Recompute(_) => return,
            TaskOp::InputGrad(_) => Pass::InputGrad,
            TaskOp::WeightGrad(_) => Pass::WeightGrad,
            _ => Pass::Backward,
        };
        let BlockPass { chunk, microbatch, .. } = block_pass;
        let task = Task { pass, chunk: chunk as usize, microbatch: microbatch as usize };
        if self.executed.last() == Some(&task) {
            return;
        }
        self.executed.push(task);
        let kept = &mut self.kept[task.chunk];
        let at = task.microbatch % kept.len();
        match task.pass {
            Pass::Forward => {
                assert_eq!(kept[at], None, "the slot is free");
                kept[at] = Some(task.microbatch);
                let num_kept = kept.iter().flatten().count();
                self.most_live[task.chunk] = self.most_live[task.chunk].max(num_kept);
            }
            Pass::InputGrad => {
                assert_eq!(kept[at], Some(task.microbatch), "it went forward");
            }
            Pass::Backward | Pass::WeightGrad => {
                assert_eq!(kept[at].take(), Some(task.microbatch), "it went forward");
            }
        }
    }
}

/// Boundary, identity and length of a message between stages.
fn stage_message(message: Message) -> (usize, StageMessage, usize) {
    let (boundary, microbatch, direction) = match message.kind {
        MessageKind::Activation { boundary, microbatch } => {
            (boundary, microbatch, Direction::Forward)
        }
        MessageKind::ActivationGrad { boundary, microbatch } => {
            (boundary, microbatch, Direction::Backward)
        }
        kind => unreachable!("{kind:?} is not a message between stages"),
    };
    let (boundary, microbatch) = (boundary as usize, microbatch as usize);
    (boundary, StageMessage { boundary, direction, microbatch }, message.len as usize)
}

//! Pipeline execution: runs this rank's schedule, task by task.
//!
//! Every rank walks its program of [`lockstep_schedule::pipeline`]. A forward pass receives its
//! input from the previous stage, runs its blocks and sends the output on; a backward pass receives
//! the gradient of that output and sends the gradient of its input back. Without pipeline
//! parallelism the program is F0 B0 F1 B1 ..., sends nothing, and takes the same path.
//!
//! A micro-batch keeps its state between the passes in one of as many [`Activations`] as the
//! schedule has live. Micro-batches run forward in ascending order at each stage and release their
//! activations in that order, so micro-batch i uses slot i mod n of n. The same holds for
//! [`DeferredWeightGrads`], of which there are as many as the schedule defers.
//!
//! Micro-batches behind a rank's last one are *padding*: where data-parallel ranks have unequal
//! numbers of micro-batches and communicate in each of them (ZeRO-2 and 3), a rank without a
//! micro-batch joins the collectives and computes nothing.

use crate::microbatch::{Activations, BackwardPass, DeferredWeightGrads, SharedBuffers, Store};
use crate::recompute::RecomputePlan;
use crate::stage_link::{Direction, Link, StageMessage};
use crate::stages::Stages;
use crate::tensor_parallel::TensorParallel;
use lockstep_comm::CommError;
use lockstep_model::{Blueprint, Context, Microbatch, MicrobatchShape, Mode, Scratch};
use lockstep_schedule::pipeline::{Pass, Shape, Task, forward};
use lockstep_tensor::Cpu;
use std::ops::Range;

/// One rank of a pipeline and its activation memory.
pub struct PipelineRank {
    stages: Stages,
    /// Pipeline rank.
    index: usize,
    training: Vec<Task>,
    evaluation: Vec<Task>,
    /// By stage of this rank, one per live micro-batch.
    slots: Vec<Vec<Activations>>,
    /// By stage of this rank, one per deferred weight gradient.
    deferred: Vec<Vec<DeferredWeightGrads>>,
    /// Micro-batch of each slot, and the largest number in use at a time.
    kept: Vec<Vec<Option<usize>>>,
    most_live: Vec<usize>,
    /// Tasks of the last run, in order.
    executed: Vec<Task>,
    shared: SharedBuffers,
    /// Gradient of the stream.
    d_stream: Vec<f32>,
    pub(crate) link: Link,
    pub(crate) tensor_parallel: TensorParallel,
}

/// Micro-batches to run, and their inputs.
pub struct Job<'a, 'l> {
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Compute device.
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
    pub loss: &'a mut dyn FnMut(usize, f64),
}

impl Job<'_, '_> {
    /// Context of a micro-batch for the blocks.
    fn context<'c>(
        &'c mut self,
        microbatch: &'c Microbatch<'_>,
        collectives: &'c mut TensorParallel,
    ) -> Context<'c> {
        let Self { cpu, mode, scratch, .. } = self;
        Context { cpu, microbatch, mode: *mode, scratch, collectives }
    }
}

/// Sizes of a pipeline rank's memory.
#[derive(Clone, Copy)]
pub struct Sizes<'a> {
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Shape of every micro-batch.
    pub microbatch: MicrobatchShape,
    /// Activation recomputation.
    pub recompute: RecomputePlan,
    /// Micro-batches of a step.
    pub num_microbatches: usize,
}

impl Sizes<'_> {
    /// Elements of the stream gradient of a rank's blocks.
    fn d_stream_len(&self, runs: &[Range<usize>]) -> usize {
        let widths = runs.iter().flat_map(|run| &self.blueprint.blocks[run.clone()]);
        self.blueprint.stream_rows(self.microbatch)
            * widths.map(|block| block.io().max_width()).max().unwrap_or(0)
    }

    /// Elements of a message between stages.
    fn message_len(&self) -> usize {
        self.blueprint.stream_rows(self.microbatch) * self.blueprint.max_width()
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
    ) -> Self {
        let runs = stages.runs_of(device, sizes.blueprint.blocks.len());
        let Sizes { blueprint, microbatch, recompute, .. } = *sizes;
        let (num_devices, num_chunks) = (stages.num_devices(), stages.num_chunks());
        let depth = Shape { num_devices, num_chunks, num_microbatches: num_devices };
        let mut own = Self {
            slots: Vec::new(),
            deferred: Vec::new(),
            kept: Vec::new(),
            most_live: Vec::new(),
            executed: Vec::new(),
            shared: SharedBuffers::new(blueprint, microbatch, recompute, &runs),
            d_stream: vec![0.0; sizes.d_stream_len(&runs)],
            training: Vec::new(),
            evaluation: forward::program(depth),
            stages,
            index: device,
            link,
            tensor_parallel,
        };
        own.renew(sizes);
        own
    }

    /// Changes the number of micro-batches.
    pub fn renew(&mut self, sizes: &Sizes<'_>) {
        let Sizes { blueprint, microbatch, recompute, num_microbatches } = *sizes;
        let mut pipeline = self.stages.pipeline(num_microbatches);
        let (live, deferred_weight_grads) =
            (pipeline.live(self.index), pipeline.deferred_weight_grads(self.index));
        self.training = pipeline.programs.swap_remove(self.index);
        self.executed = Vec::with_capacity(self.training.len().max(self.evaluation.len()));
        self.kept = live.iter().map(|live| vec![None; *live]).collect();
        self.most_live = vec![0; live.len()];
        let is_enough = self.slots.iter().map(Vec::len).eq(live.iter().copied())
            && self.deferred.iter().map(Vec::len).eq(deferred_weight_grads.iter().copied());
        if is_enough {
            return;
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
            let slot = |_| Activations::new(blueprint, microbatch, recompute, run.clone());
            let deferred = |_| DeferredWeightGrads::new(blueprint, microbatch, run.clone());
            self.slots.push((0..live).map(slot).collect());
            self.deferred.push((0..deferred_weight_grads).map(deferred).collect());
        }
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
        let Sizes { blueprint, microbatch, recompute, .. } = *sizes;
        let alive = pipeline.live(device).into_iter().zip(pipeline.deferred_weight_grads(device));
        let slots = runs.iter().zip(alive).map(|(run, (live, deferred_weight_grads))| {
            live * Activations::planned_len(blueprint, microbatch, recompute, run.clone())
                + deferred_weight_grads
                    * DeferredWeightGrads::planned_len(blueprint, microbatch, run.clone())
        });
        let shared = SharedBuffers::planned_len(blueprint, microbatch, recompute, &runs);
        let activations = slots.sum::<usize>() + shared + sizes.d_stream_len(&runs);
        (activations, Link::planned_len(stages.num_devices(), sizes.message_len()))
    }

    /// Numbers of elements held: for activations, and for messages.
    pub fn num_elements(&self) -> (usize, usize) {
        let slots = self.slots.iter().flatten().map(Activations::num_elements).sum::<usize>();
        let deferred =
            self.deferred.iter().flatten().map(DeferredWeightGrads::num_elements).sum::<usize>();
        let activations = slots + deferred + self.shared.num_elements() + self.d_stream.len();
        (activations, self.link.num_elements())
    }

    /// Number of micro-batches of an evaluation run.
    pub fn depth(&self) -> usize {
        self.stages.num_devices()
    }

    /// Tasks of the last run, in order.
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

    /// Runs micro-batches: forward and backward, or forward only to evaluate.
    pub fn run<S: Store>(&mut self, store: &mut S, job: &mut Job<'_, '_>) -> Result<(), CommError> {
        let is_training = job.mode != Mode::Evaluate;
        let num_tasks = if is_training { self.training.len() } else { self.evaluation.len() };
        let mut at_work: Option<(usize, Microbatch<'_>)> = None;
        self.executed.clear();
        for index in 0..num_tasks {
            let task = if is_training { self.training[index] } else { self.evaluation[index] };
            self.executed.push(task);
            if task.microbatch >= job.num_microbatches {
                self.skip_microbatch(store, job.cpu, task)?;
                continue;
            }
            let input = match at_work {
                Some((microbatch, input)) if microbatch == task.microbatch => input,
                _ if !(job.should_run)(task.microbatch) => break,
                _ => (job.microbatch)(task.microbatch),
            };
            at_work = Some((task.microbatch, input));
            if is_training {
                self.keep(task);
            }
            match task.pass {
                Pass::Forward => self.forward(store, job, task, &input)?,
                Pass::Backward | Pass::InputGrad => self.backward(store, job, task, &input)?,
                Pass::WeightGrad => self.backward_weights(store, job, task, &input)?,
            }
        }
        self.link.settle()
    }

    /// Tracks the slots in use.
    fn keep(&mut self, task: Task) {
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

    fn forward<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        task: Task,
        input: &Microbatch<'_>,
    ) -> Result<(), CommError> {
        let (stage, num_devices) = (self.stage(task), self.stages.num_devices());
        let microbatch = task.microbatch;
        if stage > 0 {
            self.take_input(task, stage)?;
        }
        let slots = &mut self.slots[task.chunk];
        let at = microbatch % slots.len();
        let blocks = &job.blueprint.blocks;
        let mut ctx = job.context(input, &mut self.tensor_parallel);
        let loss = slots[at].forward(blocks, store, &mut ctx, &mut self.shared)?;
        self.tensor_parallel.check()?;
        let to = (stage + 1) % num_devices;
        if stage + 1 == self.stages.num_stages() {
            (job.loss)(microbatch, loss);
        } else if to != self.index {
            let message =
                StageMessage { boundary: stage, direction: Direction::Forward, microbatch };
            self.link.send(to, message, slots[at].output())?;
        }
        Ok(())
    }

    /// Receives the output of the previous stage.
    fn take_input(&mut self, task: Task, stage: usize) -> Result<(), CommError> {
        let microbatch = task.microbatch;
        let from = (stage - 1) % self.stages.num_devices();
        if from == self.index {
            let [before, own] = self
                .slots
                .get_disjoint_mut([task.chunk - 1, task.chunk])
                .expect("two stages of one rank");
            let output = before[microbatch % before.len()].output();
            let at = microbatch % own.len();
            own[at].input_mut().copy_from_slice(output);
            return Ok(());
        }
        let slots = &mut self.slots[task.chunk];
        let at = microbatch % slots.len();
        let message =
            StageMessage { boundary: stage - 1, direction: Direction::Forward, microbatch };
        self.link.recv(from, message, slots[at].input_mut())
    }

    fn backward<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        task: Task,
        input: &Microbatch<'_>,
    ) -> Result<(), CommError> {
        let (stage, num_devices) = (self.stage(task), self.stages.num_devices());
        let microbatch = task.microbatch;
        let (first, rows) = (store.first_trained(), job.blueprint.stream_rows(input.shape));
        let slots = &mut self.slots[task.chunk];
        let at = microbatch % slots.len();
        let (blocks, run) = (&job.blueprint.blocks, slots[at].run());
        if first >= run.end {
            return Ok(());
        }
        let from = (stage + 1) % num_devices;
        // A stage of the same rank left it in the buffer: nothing ran backward in between.
        if stage + 1 < self.stages.num_stages() && from != self.index {
            let message =
                StageMessage { boundary: stage, direction: Direction::Backward, microbatch };
            let len = rows * blocks[run.end - 1].io().output_width();
            self.link.recv(from, message, &mut self.d_stream[..len])?;
        }
        let deferred = &mut self.deferred[task.chunk];
        let num_deferred = deferred.len();
        let pass = match task.pass {
            Pass::InputGrad => BackwardPass::InputGrad(&mut deferred[microbatch % num_deferred]),
            _ => BackwardPass::Full,
        };
        let mut ctx = job.context(input, &mut self.tensor_parallel);
        let (shared, d_stream) = (&mut self.shared, &mut self.d_stream);
        slots[at].backward(pass, blocks, store, &mut ctx, shared, d_stream)?;
        self.tensor_parallel.check()?;
        if first < run.start && stage > 0 && (stage - 1) % num_devices != self.index {
            let message =
                StageMessage { boundary: stage - 1, direction: Direction::Backward, microbatch };
            let len = rows * blocks[run.start].io().input_width();
            self.link.send((stage - 1) % num_devices, message, &self.d_stream[..len])?;
        }
        Ok(())
    }

    /// Deferred weight-gradient half of the backward pass.
    fn backward_weights<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        task: Task,
        input: &Microbatch<'_>,
    ) -> Result<(), CommError> {
        let slots = &mut self.slots[task.chunk];
        let at = task.microbatch % slots.len();
        let deferred = &mut self.deferred[task.chunk];
        let num_deferred = deferred.len();
        let pass = BackwardPass::WeightGrad(&mut deferred[task.microbatch % num_deferred]);
        let (blocks, shared, d_stream) =
            (&job.blueprint.blocks, &mut self.shared, &mut self.d_stream);
        let mut ctx = job.context(input, &mut self.tensor_parallel);
        slots[at].backward(pass, blocks, store, &mut ctx, shared, d_stream)?;
        self.tensor_parallel.check()
    }

    /// Joins the collectives of a padding micro-batch without computing.
    fn skip_microbatch<S: Store>(
        &mut self,
        store: &mut S,
        cpu: &Cpu,
        task: Task,
    ) -> Result<(), CommError> {
        let run = self.slots[task.chunk][0].run();
        if task.pass == Pass::Forward {
            return run
                .clone()
                .try_for_each(|block| store.fetch(block, Some((block + 1).min(run.end - 1))));
        }
        let first = store.first_trained().max(run.start);
        for block in (first..run.end).rev() {
            store.fetch(block, (block > first).then(|| block - 1))?;
            if task.pass != Pass::InputGrad {
                store.skip_microbatch(cpu, block)?;
            }
        }
        Ok(())
    }

    fn stage(&self, task: Task) -> usize {
        task.chunk * self.stages.num_devices() + self.index
    }
}

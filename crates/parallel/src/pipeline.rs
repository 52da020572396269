//! A pipeline at work: this device's program, task by task.
//!
//! Every device walks its program of [`lockstep_schedule::pipeline`]. A forward pass takes its
//! input from the stage before, runs its blocks and hands the output on; a backward pass takes the
//! gradient of that output and hands the gradient of its input back. One device is the program
//! F0 B0 F1 B1 ... in which nothing is handed on, and the only path there is.
//!
//! What a microbatch leaves between its passes stays in one of as many [`Activations`] as the
//! schedule keeps alive. Microbatches are forward in ascending order at each stage, and their
//! activations are let go in that order too, so microbatch i uses number i mod n of the n that
//! there are. So does what waits between the halves of a backward pass ([`Late`]), of which there
//! are as many as the schedule puts off.
//!
//! Microbatches behind the last micro-batch of a worker are *empty*: where workers that share the batch
//! have unequal numbers of micro-batches and exchange something with every one (ZeRO-2 and 3), a worker
//! without a micro-batch takes part in the exchanges and computes nothing. Nothing is handed on either.

use crate::link::{Link, Parcel, Way};
use crate::microbatch::{Activations, Half, Late, Shared, Store};
use crate::recompute::RecomputePlan;
use crate::stages::Stages;
use crate::tensor::Slicing;
use lockstep_comm::CommError;
use lockstep_model::{Blueprint, Context, Microbatch, MicrobatchShape, Mode, Scratch};
use lockstep_schedule::pipeline::{Pass, Shape, Task, forward};
use lockstep_tensor::Cpu;
use std::ops::Range;

/// One device of a pipeline and the memory that microbatches pass through.
pub struct Device {
    stages: Stages,
    /// Which device of the pipeline this is.
    index: usize,
    training: Vec<Task>,
    evaluation: Vec<Task>,
    /// By stage of this device, as many as are alive at a time.
    slots: Vec<Vec<Activations>>,
    /// By stage of this device, as many as wait between the halves of a backward pass.
    late: Vec<Vec<Late>>,
    /// The microbatch that each of them is kept for, and the most that were at a time.
    kept: Vec<Vec<Option<usize>>>,
    most_kept: Vec<usize>,
    /// What the last run did, in its order.
    executed: Vec<Task>,
    shared: Shared,
    /// The gradient that passes through.
    d_stream: Vec<f32>,
    pub(crate) link: Link,
    pub(crate) slicing: Slicing,
}

/// Microbatches to run, and what they need.
pub struct Job<'a, 'l> {
    /// The model.
    pub blueprint: &'a Blueprint,
    /// The device that computes.
    pub cpu: &'a Cpu,
    /// What for.
    pub mode: Mode,
    /// Memory for the block at work.
    pub scratch: &'a mut Scratch,
    /// How many micro-batches there are; microbatches behind them are empty.
    pub num_microbatches: usize,
    /// The micro-batch that is a microbatch.
    pub microbatch: &'a dyn Fn(usize) -> Microbatch<'l>,
    /// Is asked before it goes forward whether it should; if not, neither do those behind it. Only
    /// one device alone may say no.
    pub goes_on: &'a dyn Fn(usize) -> bool,
    /// Takes the loss of a microbatch, where the loss is computed.
    pub loss: &'a mut dyn FnMut(usize, f64),
}

impl Job<'_, '_> {
    /// What blocks are told of a micro-batch.
    fn context<'c>(
        &'c mut self,
        microbatch: &'c Microbatch<'_>,
        exchange: &'c mut Slicing,
    ) -> Context<'c> {
        let Self { cpu, mode, scratch, .. } = self;
        Context { cpu, microbatch, mode: *mode, scratch, exchange }
    }
}

/// The sizes of a device's memory.
#[derive(Clone, Copy)]
pub struct Sizes<'a> {
    /// The model.
    pub blueprint: &'a Blueprint,
    /// Of every micro-batch.
    pub microbatch: MicrobatchShape,
    /// What is computed again.
    pub recompute: RecomputePlan,
    /// Of a step.
    pub num_microbatches: usize,
}

impl Sizes<'_> {
    /// Elements of the gradient that passes through a device's blocks.
    fn d_stream_len(&self, runs: &[Range<usize>]) -> usize {
        let widths = runs.iter().flat_map(|run| &self.blueprint.blocks[run.clone()]);
        self.blueprint.stream_rows(self.microbatch)
            * widths.map(|block| block.io().max_width()).max().unwrap_or(0)
    }

    /// Elements that pass between stages at a time.
    fn message_len(&self) -> usize {
        self.blueprint.stream_rows(self.microbatch) * self.blueprint.max_width()
    }

    /// Scratch that is enough for a device's blocks.
    pub fn scratch_len(&self, stages: &Stages, device: usize) -> usize {
        let runs = stages.runs_of(device, self.blueprint.blocks.len());
        let blocks = runs.into_iter().flat_map(|run| &self.blueprint.blocks[run]);
        blocks.map(|block| block.scratch_len(self.microbatch)).max().unwrap_or(0)
    }
}

impl Device {
    /// A device of a pipeline that is cut as `stages` say.
    pub fn new(
        stages: Stages,
        device: usize,
        (link, slicing): (Link, Slicing),
        sizes: &Sizes<'_>,
    ) -> Self {
        let runs = stages.runs_of(device, sizes.blueprint.blocks.len());
        let Sizes { blueprint, microbatch, recompute, .. } = *sizes;
        let (num_devices, num_chunks) = (stages.num_devices(), stages.num_chunks());
        let depth = Shape { num_devices, num_chunks, num_microbatches: num_devices };
        let mut own = Self {
            slots: Vec::new(),
            late: Vec::new(),
            kept: Vec::new(),
            most_kept: Vec::new(),
            executed: Vec::new(),
            shared: Shared::new(blueprint, microbatch, recompute, &runs),
            d_stream: vec![0.0; sizes.d_stream_len(&runs)],
            training: Vec::new(),
            evaluation: forward::program(depth),
            stages,
            index: device,
            link,
            slicing,
        };
        own.renew(sizes);
        own
    }

    /// Goes over to another number of microbatches.
    pub fn renew(&mut self, sizes: &Sizes<'_>) {
        let Sizes { blueprint, microbatch, recompute, num_microbatches } = *sizes;
        let mut pipeline = self.stages.pipeline(num_microbatches);
        let (live, put_off) = (pipeline.live(self.index), pipeline.put_off(self.index));
        self.training = pipeline.programs.swap_remove(self.index);
        self.executed = Vec::with_capacity(self.training.len().max(self.evaluation.len()));
        self.kept = live.iter().map(|live| vec![None; *live]).collect();
        self.most_kept = vec![0; live.len()];
        let is_enough = self.slots.iter().map(Vec::len).eq(live.iter().copied())
            && self.late.iter().map(Vec::len).eq(put_off.iter().copied());
        if is_enough {
            return;
        }
        // What there was goes first, so that there is never room for both.
        self.slots.clear();
        self.late.clear();
        for (run, (live, put_off)) in self
            .stages
            .runs_of(self.index, blueprint.blocks.len())
            .into_iter()
            .zip(live.into_iter().zip(put_off))
        {
            let slot = |_| Activations::new(blueprint, microbatch, recompute, run.clone());
            let late = |_| Late::new(blueprint, microbatch, run.clone());
            self.slots.push((0..live).map(slot).collect());
            self.late.push((0..put_off).map(late).collect());
        }
    }

    /// Wires for messages of this size.
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
        let alive = pipeline.live(device).into_iter().zip(pipeline.put_off(device));
        let slots = runs.iter().zip(alive).map(|(run, (live, put_off))| {
            live * Activations::planned_len(blueprint, microbatch, recompute, run.clone())
                + put_off * Late::planned_len(blueprint, microbatch, run.clone())
        });
        let shared = Shared::planned_len(blueprint, microbatch, recompute, &runs);
        let activations = slots.sum::<usize>() + shared + sizes.d_stream_len(&runs);
        (activations, Link::planned_len(stages.num_devices(), sizes.message_len()))
    }

    /// Numbers of elements held: for activations, and for messages.
    pub fn num_elements(&self) -> (usize, usize) {
        let slots = self.slots.iter().flatten().map(Activations::num_elements).sum::<usize>();
        let late = self.late.iter().flatten().map(Late::num_elements).sum::<usize>();
        let activations = slots + late + self.shared.num_elements() + self.d_stream.len();
        (activations, self.link.num_elements())
    }

    /// How many microbatches an evaluation runs at a time.
    pub fn depth(&self) -> usize {
        self.stages.num_devices()
    }

    /// What the last run did, in its order.
    pub fn executed(&self) -> &[Task] {
        &self.executed
    }

    /// The most microbatches whose activations were kept at a time, by stage of this device.
    pub fn most_kept(&self) -> &[usize] {
        &self.most_kept
    }

    /// How the model is cut.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// What the last block kept of the microbatch that passed it last.
    pub fn last_kept(&self) -> &[f32] {
        let slots = self.slots.last().expect("a device has a stage");
        slots[(self.depth() - 1) % slots.len()].last_kept()
    }

    /// Runs microbatches: forward and backward, or forward only to evaluate.
    pub fn run<S: Store>(&mut self, store: &mut S, job: &mut Job<'_, '_>) -> Result<(), CommError> {
        let is_training = job.mode != Mode::Evaluate;
        let num_tasks = if is_training { self.training.len() } else { self.evaluation.len() };
        let mut at_work: Option<(usize, Microbatch<'_>)> = None;
        self.executed.clear();
        for index in 0..num_tasks {
            let task = if is_training { self.training[index] } else { self.evaluation[index] };
            self.executed.push(task);
            if task.microbatch >= job.num_microbatches {
                self.pass_over(store, job.cpu, task)?;
                continue;
            }
            let input = match at_work {
                Some((microbatch, input)) if microbatch == task.microbatch => input,
                _ if !(job.goes_on)(task.microbatch) => break,
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

    /// Notes whose activations are kept from now on, or needed for the last time.
    fn keep(&mut self, task: Task) {
        let kept = &mut self.kept[task.chunk];
        let at = task.microbatch % kept.len();
        match task.pass {
            Pass::Forward => {
                assert_eq!(kept[at], None, "what was kept here is needed no more");
                kept[at] = Some(task.microbatch);
                let num_kept = kept.iter().flatten().count();
                self.most_kept[task.chunk] = self.most_kept[task.chunk].max(num_kept);
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
        let mut ctx = job.context(input, &mut self.slicing);
        let loss = slots[at].forward(blocks, store, &mut ctx, &mut self.shared)?;
        self.slicing.check()?;
        let to = (stage + 1) % num_devices;
        if stage + 1 == self.stages.num_stages() {
            (job.loss)(microbatch, loss);
        } else if to != self.index {
            let parcel = Parcel { boundary: stage, way: Way::On, microbatch };
            self.link.send(to, parcel, slots[at].output())?;
        }
        Ok(())
    }

    /// Brings what the stage before has computed.
    fn take_input(&mut self, task: Task, stage: usize) -> Result<(), CommError> {
        let microbatch = task.microbatch;
        let from = (stage - 1) % self.stages.num_devices();
        if from == self.index {
            let [before, own] = self
                .slots
                .get_disjoint_mut([task.chunk - 1, task.chunk])
                .expect("two stages of one device");
            let output = before[microbatch % before.len()].output();
            let at = microbatch % own.len();
            own[at].input_mut().copy_from_slice(output);
            return Ok(());
        }
        let slots = &mut self.slots[task.chunk];
        let at = microbatch % slots.len();
        let parcel = Parcel { boundary: stage - 1, way: Way::On, microbatch };
        self.link.recv(from, parcel, slots[at].input_mut())
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
        // From a stage of the same device it lies there already: nothing ran backward in between.
        if stage + 1 < self.stages.num_stages() && from != self.index {
            let parcel = Parcel { boundary: stage, way: Way::Back, microbatch };
            let len = rows * blocks[run.end - 1].io().output_width();
            self.link.recv(from, parcel, &mut self.d_stream[..len])?;
        }
        let late = &mut self.late[task.chunk];
        let num_late = late.len();
        let half = match task.pass {
            Pass::InputGrad => Half::Inputs(&mut late[microbatch % num_late]),
            _ => Half::Both,
        };
        let mut ctx = job.context(input, &mut self.slicing);
        let (shared, d_stream) = (&mut self.shared, &mut self.d_stream);
        slots[at].backward(half, blocks, store, &mut ctx, shared, d_stream)?;
        self.slicing.check()?;
        if first < run.start && stage > 0 && (stage - 1) % num_devices != self.index {
            let parcel = Parcel { boundary: stage - 1, way: Way::Back, microbatch };
            let len = rows * blocks[run.start].io().input_width();
            self.link.send((stage - 1) % num_devices, parcel, &self.d_stream[..len])?;
        }
        Ok(())
    }

    /// The half of backward that nobody waits for.
    fn backward_weights<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        task: Task,
        input: &Microbatch<'_>,
    ) -> Result<(), CommError> {
        let slots = &mut self.slots[task.chunk];
        let at = task.microbatch % slots.len();
        let late = &mut self.late[task.chunk];
        let num_late = late.len();
        let half = Half::Weights(&mut late[task.microbatch % num_late]);
        let (blocks, shared, d_stream) =
            (&job.blueprint.blocks, &mut self.shared, &mut self.d_stream);
        let mut ctx = job.context(input, &mut self.slicing);
        slots[at].backward(half, blocks, store, &mut ctx, shared, d_stream)?;
        self.slicing.check()
    }

    /// Does what other workers need of this one while they run a microbatch and it has none.
    fn pass_over<S: Store>(
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
                store.pass_over(cpu, block)?;
            }
        }
        Ok(())
    }

    fn stage(&self, task: Task) -> usize {
        task.chunk * self.stages.num_devices() + self.index
    }
}

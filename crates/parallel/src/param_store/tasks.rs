//! Tasks of a step program on the parameters and gradients of a rank: gathers, reductions, tied
//! tensors and the update.

use super::{Gradients, ParamStore, mirror_tag};
use crate::buckets::{Buckets, MirrorPair};
use crate::buffer::Floats;
use crate::microbatch::Store;
use crate::stage_link::Link;
use crate::step_program::pair_numbers;
use crate::task_spans::TaskSpans;
use crate::weights::Weights;
use lockstep_comm::CommError;
use lockstep_model::Grads;
use lockstep_optim::{Optimizer, Update};
use lockstep_schedule::step::{Contents, Lengths, MessageKind, Program, TaskId, TaskOp, Use};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Dtype, Result as DeviceResult, View};
use std::ops::Range;
use std::sync::Arc;

impl ParamStore {
    /// Runs the tasks that complete the reduction: waits for it, decodes, and adds the gradients of
    /// mirrors to their owners, over the pipeline link where those are on another stage.
    pub(crate) fn finish_reduce(
        &mut self,
        cpu: &Cpu,
        link: &mut Link,
        program: &Program,
        tasks: Range<u32>,
        spans: &TaskSpans,
    ) -> Result<(), CommError> {
        self.swap_in_delayed();
        let is_mirror =
            |task: &TaskId| !matches!(program.tasks[task.0 as usize].op, TaskOp::Decode { .. });
        for task in tasks.clone().map(TaskId).filter(|task| !is_mirror(task)) {
            self.communicate(cpu, program, task)?;
            spans.end(task);
        }
        if let Gradients::Whole(whole) = &mut self.grads {
            whole.finish(cpu, &mut self.overlap)?;
        }
        self.measure_total(cpu)?;
        let grads = Arc::clone(&self.trained.grads);
        for task in tasks.map(TaskId).filter(is_mirror) {
            self.add_mirror(cpu, link, &grads, program.tasks[task.0 as usize].op)?;
            spans.end(task);
        }
        Ok(())
    }

    /// Sums the squares of a leaf of a bucket, if the current micro-batch completes one and the
    /// step is measured.
    fn measure_leaf(&mut self, cpu: &Cpu, bucket: usize) -> DeviceResult<()> {
        let Self { leaf_norms: Some(norms), grads, overlap, .. } = self else { return Ok(()) };
        if !norms.is_on() {
            return Ok(());
        }
        let leaf = match grads {
            Gradients::Whole(whole) => whole.completed_leaf(bucket)?,
            Gradients::Sharded(sharded) => sharded.completed_leaf(bucket)?,
        };
        let device: &dyn Device = overlap.accelerator().map_or(cpu, |device| &**device);
        leaf.map_or(Ok(()), |leaf| norms.measure_leaf(device, bucket, leaf))
    }

    /// Sums the squares of this rank's part of the reduced gradients, if the step is measured.
    fn measure_total(&mut self, cpu: &Cpu) -> DeviceResult<()> {
        let Some(mut norms) = self.leaf_norms.take_if(|norms| norms.is_on()) else {
            return Ok(());
        };
        let device: &dyn Device = self.overlap.accelerator().map_or(cpu, |device| &**device);
        let measured = norms.measure_total(device, |bucket| self.own_grads_view(bucket));
        self.leaf_norms = Some(norms);
        measured
    }

    /// Sends, receives or adds the gradient of a mirror.
    fn add_mirror(
        &mut self,
        cpu: &Cpu,
        link: &mut Link,
        grads: &Buckets,
        op: TaskOp,
    ) -> Result<(), CommError> {
        let kind = match op {
            TaskOp::Send(message) | TaskOp::Recv(message) => Some(message.kind),
            _ => None,
        };
        let ((TaskOp::AddMirror { pair: number }, _)
        | (_, Some(MessageKind::MirrorGrad { pair: number }))) = (op, kind)
        else {
            unreachable!("between reduction and agreement only mirrors are sent")
        };
        let pair = mirror_pair(grads, number);
        let (owner, mirror) = self.own_of_pair(grads, pair);
        let (tag, [owner_device, mirror_device]) = (mirror_tag(pair), self.devices(pair));
        if let TaskOp::Send(_) = op {
            let addend = &self.own_grads(pair.mirror.0)[mirror];
            return link.call(|comm| comm.send(addend, owner_device, tag));
        }
        // The two ranges may share a buffer and cannot be borrowed together.
        let mut spare = std::mem::take(&mut self.spare);
        let len = owner.len();
        if let TaskOp::Recv(_) = op {
            link.call(|comm| comm.recv(&mut spare[..len], mirror_device, tag))?;
        } else {
            if pair.is_mirror_here() {
                let addend = self.own_grads_view(pair.mirror.0)?.range(mirror);
                let (device, spare) = spare.on_device(cpu)?;
                device.copy(addend, spare.range(0..len))?;
            }
            let total = self.own_grads_view_mut(pair.owner.0)?.range(owner);
            spare.device(cpu).add_assign(total, spare.view()?.range(0..len))?;
        }
        self.spare = spare;
        Ok(())
    }

    /// Runs a task from the update on: steps the owned parameters or publishes them.
    pub(crate) fn update(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
        link: &mut Link,
        (program, task): (&Program, TaskId),
    ) -> Result<(), CommError> {
        match program.tasks[task.0 as usize].op {
            TaskOp::Update { bucket } => {
                let bucket = bucket as usize;
                if let Some((device, params, grads)) = self.own_pair_mut(cpu, bucket)? {
                    let grads = grads.into_view();
                    optimizer.step_on(device, update, bucket, params, grads)?;
                }
                Ok(())
            }
            TaskOp::Send(message) | TaskOp::Recv(message) => {
                let MessageKind::MirrorParams { pair } = message.kind else {
                    unreachable!("after an update only mirrors are sent")
                };
                let buckets = Arc::clone(&self.buckets);
                self.hand_to_mirror(&buckets, mirror_pair(&buckets, pair), link)
            }
            _ => self.communicate(cpu, program, task),
        }
    }
}

impl ParamStore {
    /// Waits until the parameters of a bucket are here.
    pub(crate) fn arrive_bucket(&mut self, bucket: usize) -> Result<(), CommError> {
        match &mut self.weights {
            Weights::Whole(whole) => whole.fetch(bucket, &mut self.overlap),
            Weights::Sharded(sharded) => sharded.arrive(bucket, &mut self.overlap),
        }
    }
}

/// Parameters on the device, with their rounded copy, if there is one.
fn viewed(params: &Floats, copy: Option<Dtype>) -> DeviceResult<View<'_>> {
    copy.map_or_else(|| params.view(), |dtype| params.view_with_copy(dtype))
}

impl Store for ParamStore {
    fn arrive(&mut self, block: usize) -> Result<(), CommError> {
        self.arrive_bucket(self.buckets.of_block(block))
    }

    fn params(&self, block: usize) -> DeviceResult<View<'_>> {
        let (params, range) = self.params_of(block);
        Ok(viewed(params, self.copy)?.range(range))
    }

    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
        leaf: Option<u32>,
    ) -> DeviceResult<(View<'_>, Grads<'_>)> {
        let Self { buckets, weights, grads, trained, copy, .. } = self;
        let bucket = buckets.of_block(block);
        let range = buckets.list[bucket].block(block);
        let params = viewed(weights.bucket(bucket), *copy)?.range(range);
        let runs = &trained.of_block[block];
        if runs.is_empty() {
            return Ok((params, Grads::none()));
        }
        let (values, write) = match grads {
            Gradients::Whole(whole) => whole.microbatch_buffer(cpu, bucket)?,
            Gradients::Sharded(sharded) => {
                let leaf = leaf.expect("the program numbers the leaves of sharded gradients");
                sharded.microbatch_buffer(cpu, bucket, leaf as usize)?
            }
        };
        let range = trained.grads.list[bucket].block(block);
        Ok((params, Grads::written(values.range(range), runs, write)))
    }

    fn first_trained(&self) -> usize {
        self.trained.first_block
    }

    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        let bucket = self.buckets.of_block(block);
        if !self.fills_bucket(block) {
            return Ok(());
        }
        self.measure_leaf(cpu, bucket)?;
        match &mut self.grads {
            Gradients::Whole(whole) if self.is_alone => {
                whole.finish_microbatch_alone(cpu, bucket)?;
            }
            Gradients::Whole(whole) => whole.finish_microbatch(cpu, bucket)?,
            Gradients::Sharded(sharded) => sharded.finish_microbatch(bucket),
        }
        Ok(())
    }

    fn communicate(&mut self, cpu: &Cpu, program: &Program, task: TaskId) -> Result<(), CommError> {
        if let TaskOp::CopyMirror { pair } = program.tasks[task.0 as usize].op {
            let buckets = Arc::clone(&self.buckets);
            return self.copy_to_mirror(&buckets, mirror_pair(&buckets, pair));
        }
        let Self { buckets, weights, grads, overlap, .. } = self;
        match (program.tasks[task.0 as usize].op, weights, grads) {
            (TaskOp::GatherParams { bucket }, Weights::Sharded(sharded), _) => {
                let window = buffer_number(program, task, Use::Write);
                let lens = part_lens(program, task);
                sharded.gather(buckets, bucket as usize, window, lens, overlap)
            }
            (TaskOp::ReleaseParams { .. }, Weights::Sharded(sharded), _) => {
                sharded.release(buffer_number(program, task, Use::Take), overlap)
            }
            (TaskOp::GatherUpdated { bucket }, Weights::Whole(whole), _) => {
                let (bucket, runs) = (bucket as usize, &self.trained.of_bucket[bucket as usize]);
                whole.add_run(bucket, runs, part_lens(program, task));
                // The runs of a bucket are gathered together, with the last of its tasks.
                match program.contents(task, &[Use::Take]).next() {
                    Some(_) => whole.start_gathering(bucket, overlap),
                    None => Ok(()),
                }
            }
            (TaskOp::Encode { bucket }, _, Gradients::Whole(whole)) => {
                whole.encode(cpu, bucket as usize);
                Ok(())
            }
            (TaskOp::Encode { bucket }, _, Gradients::Sharded(sharded)) => {
                let leaf = buffer_number(program, task, Use::Take);
                let number = buffer_number(program, task, Use::Write);
                sharded.encode(cpu, bucket as usize, leaf, number);
                Ok(())
            }
            (TaskOp::Reduce { bucket }, _, Gradients::Whole(whole)) => {
                whole.reduce(bucket as usize, overlap)
            }
            (TaskOp::Reduce { bucket }, _, Gradients::Sharded(sharded)) => {
                let leaf = program.contents(task, &[Use::Read]).find_map(|contents| {
                    let Contents::Leaf { number } = contents else { return None };
                    Some(number as usize)
                });
                let number = buffer_number(program, task, Use::Write);
                let lens = part_lens(program, task);
                sharded.exchange(bucket as usize, leaf, number, lens, overlap)
            }
            (TaskOp::Decode { bucket }, _, Gradients::Whole(whole)) => {
                whole.decode(cpu, bucket as usize, overlap)
            }
            (TaskOp::Decode { bucket }, _, Gradients::Sharded(sharded)) => {
                let number = buffer_number(program, task, Use::Take);
                sharded.decode(cpu, bucket as usize, number, overlap)
            }
            (op, ..) => unreachable!("{op} is not a task of a parameter store"),
        }
    }
}

/// Pair of tied tensors with this number.
fn mirror_pair(buckets: &Buckets, number: u32) -> &MirrorPair {
    let mut pairs = buckets.mirrors.iter().zip(pair_numbers(buckets));
    let found = pairs.find(|(_, other)| *other == number);
    found.expect("the program names pairs of this rank").0
}

/// Lengths of the parts of a task's call.
pub(crate) fn part_lens(program: &Program, task: TaskId) -> Arc<[usize]> {
    let (call, _) = program.call(&program.tasks[task.0 as usize]).expect("it is a collective");
    let (Lengths::Parts(lens) | Lengths::Pairs(lens)) = &call.lengths else {
        unreachable!("shards have lengths of their own")
    };
    Arc::clone(lens)
}

/// Number of the first buffer that a task uses in this mode.
fn buffer_number(program: &Program, task: TaskId, mode: Use) -> usize {
    let number = program.contents(task, &[mode]).find_map(|contents| match contents {
        Contents::Window { window: number }
        | Contents::Leaf { number }
        | Contents::Pieces { number }
        | Contents::Encoded { number } => Some(number as usize),
        _ => None,
    });
    number.expect("the program numbers its buffers")
}

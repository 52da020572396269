//! Sections of a pipeline rank's program: consecutive passes through blocks, which queue the same
//! operations each time, so that a device can repeat them.

use super::{Job, PipelineRank};
use crate::microbatch::{BackwardPass, Store};
use crate::microbatch_losses::MicrobatchLoss;
use lockstep_comm::CommError;
use lockstep_model::{Block, Context, Grads, Microbatch, MicrobatchShape, Mode};
use lockstep_schedule::step::{BlockPass, Contents, Program, TaskId, TaskOp, Use};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, ViewMut};
use std::ops::Range;

impl PipelineRank {
    /// Runs the passes of a section. What they need of the host reaches the device before them, so
    /// that a device can repeat their operations; training repeats them every step.
    pub(super) fn section<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        program: &Program,
        tasks: Range<u32>,
        input: &Microbatch<'_>,
        device: &dyn Device,
    ) -> Result<(), CommError> {
        let pass_of = |id: u32| program.tasks[id as usize].op.block_pass().expect("a pass");
        let first = pass_of(tasks.start);
        for block in tasks.clone().map(|id| pass_of(id).block) {
            let io = job.blueprint.blocks[block as usize].io();
            self.tokens.copy_tokens(device, io, (first.microbatch, input))?;
        }
        let slots = &mut self.slots[first.chunk as usize];
        let num_slots = slots.len();
        slots[first.microbatch as usize % num_slots].input_mut().view()?;
        self.d_stream.view()?;
        // A pass of several ranks waits for them in between.
        let is_alone = self.tensor_parallel.comm().group_size() == 1;
        let (repeats, last) = (is_alone && job.mode != Mode::Evaluate, tasks.end - 1);
        let key = section_key(program, &tasks);
        let first_block = tasks.clone().map(|id| pass_of(id).block).min().expect("a section");
        self.shared.begin_section(first_block as usize);
        let mut loss = Ok(None);
        let mut run = || {
            for id in tasks.clone().map(TaskId) {
                if pass_of(id.0).part == 0 {
                    match self.block_pass(store, job, program, id, input) {
                        Ok(None) => {}
                        found => loss = found,
                    }
                }
                if loss.is_err() {
                    return;
                }
                if id.0 < last {
                    (job.done)(id);
                }
            }
            if let Err(error) = self.shared.finish_section(device) {
                loss = Err(error.into());
            }
        };
        if repeats {
            device.replay(key, &mut run)?;
        } else {
            run();
        }
        if let Some(MicrobatchLoss { sum, pairs }) = loss?
            && let Some(sum) = self.tokens.keep_loss(device, first.microbatch, sum)?
        {
            (job.loss)(first.microbatch as usize, MicrobatchLoss { sum, pairs });
        }
        Ok(())
    }

    /// Runs all parts of a pass through a block; returns the loss if the pass sets it, which is 0
    /// where it is on an accelerator.
    fn block_pass<S: Store>(
        &mut self,
        store: &mut S,
        job: &mut Job<'_, '_>,
        program: &Program,
        id: TaskId,
        input: &Microbatch<'_>,
    ) -> Result<Option<MicrobatchLoss>, CommError> {
        let op = program.tasks[id.0 as usize].op;
        let pass = op.block_pass().expect("the caller has checked it");
        let (chunk, index) = (pass.chunk as usize, pass.block as usize);
        if job.mode != Mode::Evaluate {
            self.keep(op, pass);
        }
        store.arrive(index)?;
        let block = &*job.blueprint.blocks[index];
        let is_last = index + 1 == job.blueprint.blocks.len();
        let Self {
            slots, deferred, shared, d_stream, tensor_parallel, tokens, accelerator, ..
        } = self;
        let num_slots = slots[chunk].len();
        let slot = &mut slots[chunk][pass.microbatch as usize % num_slots];
        let num_deferred = deferred[chunk].len().max(1);
        let deferred = deferred[chunk].get_mut(pass.microbatch as usize % num_deferred);
        tensor_parallel.begin_pass();
        let Job { cpu, mode, scratch, .. } = job;
        let cpu: &Cpu = cpu;
        let device = accelerator.as_deref().unwrap_or(cpu);
        let (mut loss, mut pairs) = ([0.0_f64], [0.0_f64; 2]);
        let (input, loss_view) = tokens.staged(input, &mut loss);
        let mut ctx = Context {
            device,
            microbatch: &input,
            mode: *mode,
            scratch,
            collectives: tensor_parallel,
            loss: loss_view,
            pairs: ViewMut::of(&mut pairs),
        };
        let leaf = program.contents(program.last_part(id), &[Use::Add]).find_map(leaf_of);
        match op {
            TaskOp::Forward(_) => {
                slot.forward(index, block, store.params(index)?, &mut ctx, shared)?;
            }
            TaskOp::Recompute(_) => {
                slot.recompute(index, block, store.params(index)?, &mut ctx, shared)?;
            }
            TaskOp::InputGrad(_) => {
                let mut pass = BackwardPass::InputGrad(deferred.expect("the program defers"));
                let params = (store.params(index)?, Grads::none());
                slot.backward(&mut pass, index, block, params, &mut ctx, shared, d_stream)?;
            }
            _ => {
                let mut pass = match op {
                    TaskOp::WeightGrad(_) => {
                        BackwardPass::WeightGrad(deferred.expect("the program defers"))
                    }
                    _ => BackwardPass::Full,
                };
                let params = store.params_and_grads(cpu, index, leaf)?;
                slot.backward(&mut pass, index, block, params, &mut ctx, shared, d_stream)?;
            }
        }
        let has_loss = is_last && sets_loss(op, block, input.shape, *mode);
        self.tensor_parallel.check()?;
        self.tensor_parallel.assert_calls(program, id);
        if matches!(op, TaskOp::Backward(_) | TaskOp::WeightGrad(_)) {
            store.finish_grads(cpu, index)?;
        }
        Ok(has_loss.then_some(MicrobatchLoss { sum: loss[0], pairs }))
    }
}

/// End of the section that begins with a pass: the passes of one micro-batch through a stage in one
/// direction, until another task comes between them.
pub(super) fn section_end(program: &Program, start: TaskId, end: u32) -> u32 {
    let of = |id: u32| {
        let op = program.tasks[id as usize].op;
        let BlockPass { chunk, microbatch, .. } = op.block_pass()?;
        Some((matches!(op, TaskOp::Forward(_)), chunk, microbatch))
    };
    let first = of(start.0);
    (start.0 + 1..end).find(|id| of(*id) != first).unwrap_or(end)
}

/// Number of a section, the same for all micro-batches and steps: direction, stage, first block and
/// number of tasks.
fn section_key(program: &Program, tasks: &Range<u32>) -> u64 {
    let op = program.tasks[tasks.start as usize].op;
    let pass = op.block_pass().expect("a section begins with a pass");
    let [chunk, block, num] = [pass.chunk, pass.block, tasks.end - tasks.start].map(u64::from);
    (u64::from(matches!(op, TaskOp::Forward(_))) << 63) | (chunk << 48) | (block << 24) | num
}

/// Whether a pass through the last block sets the loss.
fn sets_loss(op: TaskOp, block: &dyn Block, shape: MicrobatchShape, mode: Mode) -> bool {
    let is_deferred = mode != Mode::Evaluate && block.defers_loss(shape);
    match op {
        TaskOp::Forward(_) => !is_deferred,
        TaskOp::Backward(_) | TaskOp::InputGrad(_) => is_deferred,
        _ => false,
    }
}

const fn leaf_of(contents: Contents) -> Option<u32> {
    match contents {
        Contents::Leaf { number } => Some(number),
        _ => None,
    }
}

//! Durations of a step program's tasks on this machine.
//!
//! A micro-batch is FLOPs at a measured rate, plus costs that do not depend on its length
//! ([`crate::calibration::machine`]). A block takes its share of them by FLOPs, of which the
//! forward pass and the two gradients take a third each; the collectives of a tensor-parallel block
//! divide a pass into equal parts. Strategies pass over vectors on one thread, and compress
//! gradients at the measured speed of each method.

use super::calls::CallPrices;
use crate::calibration::machine::{CompressorTime, MachineCalibration};
use lockstep_config::units::{Flops, Seconds};
use lockstep_config::{Recipe, Recompute};
use lockstep_mesh::{Axis, Mesh, Rank};
use lockstep_model::Blueprint;
use lockstep_parallel::step_program::{RankPlan, WholeWork, rank_at};
use lockstep_parallel::{ReplicaPlan, stages};
use lockstep_schedule::step::{Contents, MessageKind, Program, Queue, TaskId, TaskOp, Use};

/// Durations on one worker.
pub(super) struct TaskTimes<'a> {
    machine: &'a MachineCalibration<'a>,
    /// Forward and backward of a micro-batch, by block.
    blocks: Vec<Seconds>,
    /// Share of a block's time that recomputation takes.
    recomputed: Vec<f64>,
    update_per_param: Seconds,
    /// Fixed cost per step.
    overhead: Seconds,
    /// Gradient compression, if the recipe compresses.
    compressor: Option<&'a CompressorTime>,
    num_params: usize,
    /// Orthogonalisation of each matrix, or factoring of the moments of each tensor, by pipeline
    /// rank.
    matrices: Vec<Vec<Seconds>>,
    mesh: Mesh,
}

impl<'a> TaskTimes<'a> {
    /// Durations on workers of this many threads; `blueprint` is of the whole model.
    pub(super) fn new(
        recipe: &Recipe,
        blueprint: &Blueprint,
        plan: &ReplicaPlan,
        machine: &'a MachineCalibration<'a>,
        threads: usize,
    ) -> Self {
        // With fewer threads than cores a part of the machine is idle.
        let speed = threads.min(machine.cores) as f64 / machine.cores as f64;
        let microbatch = microbatch_seconds(recipe, blueprint, machine)
            + machine.leaf(blueprint.num_params()) * (1.0 / recipe.microbatches_per_leaf() as f64);
        let costs = stages::costs(blueprint);
        let all = costs.iter().sum::<u64>().max(1) as f64;
        let tp_ranks = plan.mesh.degree(Axis::Tensor) as f64;
        let block = |cost: &u64| {
            microbatch * (*cost as f64 / all / tp_ranks / speed) + machine.block(threads)
        };
        Self {
            blocks: costs.iter().map(block).collect(),
            recomputed: recomputed_shares(recipe, blueprint),
            update_per_param: Seconds(machine.update_seconds_per_param / speed),
            overhead: Seconds(machine.step_overhead_seconds),
            compressor: machine.compressor(&recipe.compress.method.to_string()),
            num_params: blueprint.num_params(),
            matrices: matrix_seconds(recipe, blueprint, plan, machine, speed),
            mesh: plan.mesh,
            machine,
        }
    }

    /// Durations of a program's tasks, by their ids.
    pub(super) fn of(&self, program: &Program, prices: &mut CallPrices<'_>) -> Vec<Seconds> {
        let mut times = vec![Seconds(0.0); program.tasks.len()];
        // Ranks that keep their gradients decide alone, although the program has the call.
        let reduces = |op: &TaskOp| matches!(op, TaskOp::Reduce { .. } | TaskOp::Exchange { .. });
        let is_alone = program.position(reduces).is_none();
        for (id, task) in program.iter() {
            let index = id.0 as usize;
            if let Some((call, group)) = program.call(task) {
                if task.queue != Queue::Control || !is_alone {
                    times[index] = prices.call(call, group);
                }
                continue;
            }
            match &task.op {
                TaskOp::Send(message) => times[index] = prices.message(program.rank, message),
                TaskOp::Recv(message) if is_copied(message.kind) => {
                    times[index] = prices.message(program.rank, message);
                }
                TaskOp::Update { .. } => {
                    times[index] = self.update_per_param * num_updated(program, id);
                }
                TaskOp::Direction { .. } | TaskOp::TensorNorms(_) => {
                    times[index] = self.passes(program, id);
                }
                TaskOp::Orthogonalize { matrix } | TaskOp::FactorMoments { matrix }
                    if changes_grads(program, id) =>
                {
                    let device = self.mesh.index(Axis::Pipeline, Rank(program.rank));
                    times[index] = self.matrices[device][*matrix as usize];
                }
                TaskOp::ClientStep { .. } => {
                    times[index] = self.update_per_param * self.num_params as f64;
                    times[index] += self.passes(program, id);
                }
                TaskOp::ServerUpdate => {
                    times[index] = self.update_per_param * shard_len(program, id);
                    times[index] += self.passes(program, id) + self.decoding(program, id);
                }
                TaskOp::Encode { .. } if self.compressor.is_some() => {
                    times[index] = self.encoding(program, id);
                }
                TaskOp::Decode { .. } if self.compressor.is_some() => {
                    times[index] = self.decoding(program, id) * num_exchanging(program) as f64;
                }
                TaskOp::Mix { .. }
                | TaskOp::Debias
                | TaskOp::LoadClient { .. }
                | TaskOp::Aggregate { .. }
                | TaskOp::ReadShared
                | TaskOp::AddToShared => times[index] = self.passes(program, id),
                // Of the tasks that a step has once on the compute queue.
                TaskOp::Unscale => times[index] = self.overhead,
                op => {
                    let Some(pass) = op.block_pass().filter(|pass| pass.part == 0) else {
                        continue;
                    };
                    let num_parts = 1 + program.collectives_of(id).count();
                    let part = self.pass(op, pass.block as usize) * (1.0 / num_parts as f64);
                    // Parts and collectives take turns.
                    times[index..].iter_mut().step_by(2).take(num_parts).for_each(|it| *it = part);
                }
            }
        }
        // A step whose gradients are pushed unscales nothing.
        let unscales = program.position(|op| *op == TaskOp::Unscale).is_some();
        let first = program.position(|op| op.block_pass().is_some()).filter(|_| !unscales);
        if let Some(first) = first {
            times[first.0 as usize] += self.overhead;
        }
        times
    }

    /// One thread's passes over the buffers of a task.
    fn passes(&self, program: &Program, id: TaskId) -> Seconds {
        let pass = |(len, mode): (usize, Use)| {
            let times = if mode == Use::Update { 2.0 } else { 1.0 };
            self.machine.serial_pass(len) * times
        };
        buffers(program, id).map(pass).sum()
    }

    /// Compression of the gradients that a task reads, for ranks that decompress them.
    fn encoding(&self, program: &Program, id: TaskId) -> Seconds {
        let Some(time) = self.compressor else { return Seconds(0.0) };
        let lens = buffers(program, id).filter(|(_, mode)| *mode != Use::Write);
        let elements: usize = lens.map(|(len, _)| len).sum();
        let each = time.seconds_per_element - time.decode_seconds_per_element;
        Seconds(each.max(0.0) * elements as f64)
    }

    /// Decompression of the gradients that a task takes.
    fn decoding(&self, program: &Program, id: TaskId) -> Seconds {
        let Some(time) = self.compressor else { return Seconds(0.0) };
        let lens = buffers(program, id).filter(|(_, mode)| *mode == Use::Take);
        let elements: usize = lens.map(|(len, _)| len).sum();
        Seconds(time.decode_seconds_per_element * elements as f64)
    }

    fn pass(&self, op: &TaskOp, block: usize) -> Seconds {
        let share = match op {
            TaskOp::Recompute(_) => self.recomputed[block],
            TaskOp::Backward(_) => 2.0 / 3.0,
            _ => 1.0 / 3.0,
        };
        self.blocks[block] * share
    }
}

/// Passes over a tensor to factor its moments: sums of rows and columns, directions, their norm.
const FACTORING_PASSES: f64 = 6.0;

/// Time to orthogonalise each matrix, or to factor the moments of each tensor, by pipeline rank, on
/// a worker that has this share of the machine.
fn matrix_seconds(
    recipe: &Recipe,
    blueprint: &Blueprint,
    plan: &ReplicaPlan,
    machine: &MachineCalibration<'_>,
    speed: f64,
) -> Vec<Vec<Seconds>> {
    let num_devices = plan.mesh.degree(Axis::Pipeline);
    let of_device = |device: usize| {
        let at = RankPlan::new(plan, blueprint, rank_at(&plan.mesh, device, 0, 0));
        let rate = machine.rate(recipe.model.width);
        let seconds = |work: WholeWork| match work {
            WholeWork::Factoring(len) => machine.serial_pass(len) * FACTORING_PASSES,
            WholeWork::Products(flops) => Flops(flops as f64) / rate * (1.0 / speed),
        };
        at.whole_work().into_iter().map(seconds).collect()
    };
    (0..num_devices).map(of_device).collect()
}

/// Whether a task changes gradients: a rank may gather a matrix of which it owns nothing.
fn changes_grads(program: &Program, id: TaskId) -> bool {
    let mut changed = program.contents(id, &[Use::Update]);
    changed.any(|contents| matches!(contents, Contents::Grads { .. }))
}

/// Ranks whose compressed gradients a program adds.
fn num_exchanging(program: &Program) -> usize {
    let calls = program.tasks.iter().filter(|task| matches!(task.op, TaskOp::Exchange { .. }));
    calls
        .filter_map(|task| program.call(task))
        .map(|(_, group)| group.ranks.len())
        .next()
        .unwrap_or(1)
}

/// Lengths and uses of a task's buffers.
fn buffers(program: &Program, id: TaskId) -> impl Iterator<Item = (usize, Use)> + '_ {
    let of = |access: &lockstep_schedule::step::Access| {
        (program.buffers[access.buffer.0 as usize].len as usize, access.mode)
    };
    program.accesses(id).iter().map(of)
}

/// Whether a rank copies a message out of the link while it computes nothing: messages of
/// strategies, of which one rank may receive those of many.
const fn is_copied(kind: MessageKind) -> bool {
    matches!(
        kind,
        MessageKind::Weights { .. }
            | MessageKind::Request(_)
            | MessageKind::Reply(_)
            | MessageKind::Values { .. }
            | MessageKind::ClientUpdate { .. }
    )
}

/// Parameters that an update changes.
fn num_updated(program: &Program, update: TaskId) -> f64 {
    let buffers = program.accesses(update).iter().map(|it| program.buffers[it.buffer.0 as usize]);
    let mut states = buffers.filter(|it| matches!(it.contents, Contents::OptimizerState { .. }));
    states.next().map_or(0.0, |state| state.len as f64)
}

/// Parameters that a server's update changes.
fn shard_len(program: &Program, update: TaskId) -> f64 {
    let changed = program.accesses(update).iter().filter(|it| it.mode == Use::Update);
    let buffers = changed.map(|it| program.buffers[it.buffer.0 as usize]);
    let params = buffers.filter(|it| !matches!(it.contents, Contents::OptimizerState { .. }));
    params.map(|params| params.len as f64).sum()
}

/// Time of a micro-batch on all cores, without the cost per block.
fn microbatch_seconds(
    recipe: &Recipe,
    blueprint: &Blueprint,
    machine: &MachineCalibration<'_>,
) -> Seconds {
    let products = microbatch_flops(recipe, blueprint) / machine.rate(recipe.model.width);
    let scores = Seconds(machine.format.score_seconds * microbatch_scores(recipe));
    products + scores + machine.passing(blueprint.num_params())
}

/// Attention scores of a micro-batch: one per head, token, and preceding token.
pub fn microbatch_scores(recipe: &Recipe) -> f64 {
    let model = &recipe.model;
    let of_sequence = model.context * (model.context + 1) / 2;
    (recipe.train.microbatch_size * model.layers * model.heads * of_sequence) as f64
}

/// Model FLOPs of one micro-batch, forward and backward.
pub(super) fn microbatch_flops(recipe: &Recipe, blueprint: &Blueprint) -> Flops {
    let per_token = blueprint.flops_per_token();
    let tokens = (recipe.train.microbatch_size * recipe.model.context) as f64;
    Flops((per_token.forward + per_token.backward) as f64 * tokens)
}

/// By block: share of its FLOPs, forward and backward, that recomputation repeats.
pub(crate) fn recomputed_shares(recipe: &Recipe, blueprint: &Blueprint) -> Vec<f64> {
    let model = &recipe.model;
    // Attention scores and sums: two products of context x head_dim per head and token, half of
    // which the causal mask leaves.
    let attention = (2 * model.context * model.heads * model.head_dim()) as u64;
    let share = |flops: lockstep_model::Flops| {
        let repeated = match recipe.parallel.recompute {
            Recompute::Selective => attention,
            _ => flops.forward,
        };
        repeated as f64 / (flops.forward + flops.backward).max(1) as f64
    };
    let blocks = blueprint.blocks.iter();
    blocks.map(|block| share(block.flops_per_token(model.context))).collect()
}

//! The step program of a rank ([`lockstep_schedule::step`]), built from its replica plan.
//!
//! One file a technique, each of which adds its tasks:
//! - `kind`: kinds of steps, each with a program of its own
//! - `passes`: micro-batches through the blocks of the rank's pipeline stages
//! - `params`: parameters that are gathered before their use, or after the update
//! - `gradients`: reduction of gradients at every ZeRO stage
//! - `parameter_server`: pulls and pushes of workers, and the servers
//! - `federated`: rounds of clients; `hogwild`: threads with shared weights
//! - `stragglers`: steps that leave slow ranks out
//! - `replay`: programs made from others
//! - `update`: from reduced gradients to updated parameters; `update_inputs`: norms and whole
//!   matrices that some update rules need
//!
//! A strategy adds what workers exchange besides ([`StepTasks`]).
//!
//! Equal plans and ranks give equal programs; nothing here does I/O or holds tensors.

mod federated;
mod federated_step;
mod gradients;
mod hogwild;
mod kind;
pub(crate) mod parameter_server;
mod params;
mod passes;
mod replay;
mod stragglers;
mod update;
mod update_inputs;

pub(crate) use federated::federated_program;
pub use federated_step::FederatedStep;
pub(crate) use hogwild::thread_program;
pub use kind::{GradientUse, StepKind};
pub use parameter_server::{ServerStep, row_request_bytes};
pub(crate) use stragglers::hold_reductions;
pub use update::pair_numbers;
pub use update_inputs::WholeWork;

use crate::buckets::Buckets;
use crate::leaf_assignment::LeafAssignment;
use crate::replica_plan::ReplicaPlan;
use crate::sparse_embedding::SparseEmbedding;
use crate::trainable_params::TrainableParams;
use gradients::Gradients;
use lockstep_config::WireDtype;
use lockstep_config::units::Bytes;
use lockstep_mesh::{Axis, Mesh, Rank};
use lockstep_model::Blueprint;
use lockstep_optim::Slot;
use lockstep_schedule::pipeline::{Pipeline, Shape, Task as PipelineTask, forward};
use lockstep_schedule::step::{
    BufferId, Builder, Call, CommGroup, Contents, Lengths, Program, Queue, TaskBuilder, TaskOp,
};
use lockstep_schedule::{Contributions, Op};
use params::Windows;
use replay::Replay;
use std::ops::Range;

/// Bytes of an element: parameters are sent as `f32`, and gradients unless they are rounded.
pub const ELEMENT: Bytes = Bytes(4);

/// Bytes of a rounded gradient element.
const NARROW_ELEMENT: Bytes = Bytes(2);

/// Group of all ranks in every program.
const WORLD: u32 = 2;

/// Tasks that a synchronization strategy adds to a step.
pub trait StepTasks {
    /// Adds tasks once backward has filled a bucket that the strategy exchanges, ahead of the
    /// remaining passes.
    fn add_bucket_exchange(
        &self,
        _kind: &StepKind,
        _step: &mut StepBuilder<'_>,
        _bucket: (usize, BufferId),
    ) {
    }

    /// Adds tasks between the reduction of gradients and their norm; `grads` are the buckets with
    /// gradients.
    fn add_exchange(
        &self,
        _kind: &StepKind,
        _step: &mut StepBuilder<'_>,
        _grads: &[(usize, BufferId)],
    ) {
    }

    /// Adds tasks after the update.
    fn add_after_update(&self, _kind: &StepKind, _step: &mut StepBuilder<'_>) {}

    /// Whole program of a step, where it is not an update by reduced or local gradients.
    fn program(&self, _at: &RankPlan<'_>, _kind: &StepKind) -> Option<Program> {
        None
    }
}

/// A rank's place and its part of the model.
pub struct RankPlan<'a> {
    plan: &'a ReplicaPlan,
    blueprint: &'a Blueprint,
    rank: usize,
    /// Pipeline rank, data-parallel rank and number of tensor-parallel ranks.
    device: usize,
    part: usize,
    num_tp_ranks: usize,
    buckets: Buckets,
    trained: TrainableParams,
    sparse: Option<SparseEmbedding>,
    /// Blocks of each of its stages.
    runs: Vec<Range<usize>>,
    /// Its micro-batches, as numbers within the global batch.
    microbatches: Vec<usize>,
    /// Embedding rows that its micro-batches select, by rank of the run, where they are known.
    rows_by_rank: Option<&'a [usize]>,
}

impl<'a> RankPlan<'a> {
    /// Place of a rank of the plan's mesh.
    pub fn new(plan: &'a ReplicaPlan, blueprint: &'a Blueprint, rank: usize) -> Self {
        let at = |axis| plan.mesh.index(axis, Rank(rank));
        let (device, part) = (at(Axis::Pipeline), at(Axis::Data));
        let buckets = plan.buckets(blueprint).here(|block| plan.stages.device_of(block) == device);
        let trained = TrainableParams::new(blueprint, &buckets, &plan.phases, plan.phase);
        Self {
            sparse: plan.sparse(blueprint, &trained),
            runs: plan.stages.runs_of(device, blueprint.blocks.len()),
            microbatches: plan.leaf_assignment().microbatches_of(part, plan.leaves),
            num_tp_ranks: plan.mesh.degree(Axis::Tensor),
            plan,
            blueprint,
            rank,
            device,
            part,
            buckets,
            trained,
            rows_by_rank: None,
        }
    }

    /// Place of a rank in a step whose micro-batches select these embedding rows.
    pub fn with_rows(self, rows_by_rank: Option<&'a [usize]>) -> Self {
        Self { rows_by_rank, ..self }
    }

    /// Whether the rows of an embedding's gradient are exchanged sparsely, so that the calls depend
    /// on the tokens.
    pub fn has_sparse_rows(&self) -> bool {
        self.sparse.is_some()
    }

    /// Plan of the replica.
    pub fn plan(&self) -> &'a ReplicaPlan {
        self.plan
    }

    /// Model of the rank.
    pub fn blueprint(&self) -> &'a Blueprint {
        self.blueprint
    }

    /// Program of a training step without a strategy: gradients are reduced, or stay here.
    pub fn training(&self, kind: &StepKind) -> Program {
        self.build(kind, None)
    }

    /// Program of a training step of some kind under a strategy.
    pub fn training_with(&self, strategy: &dyn StepTasks, kind: &StepKind) -> Program {
        strategy.program(self, kind).unwrap_or_else(|| self.build(kind, Some(strategy)))
    }

    /// Passes of a step, with gradients that stay on this rank.
    fn passes(&self) -> Program {
        self.begin(&StepKind::local(), None).tasks.finish()
    }

    /// Everything up to reduced gradients.
    fn begin(&self, kind: &StepKind, strategy: Option<&dyn StepTasks>) -> StepBuilder<'_> {
        let pipeline = self.plan.stages.pipeline(self.plan.num_microbatches(self.part));
        let mut step = StepBuilder::new(self, &pipeline);
        let mut gradients = Gradients::new(self, kind, strategy);
        step.load_batch();
        for task in &pipeline.programs[self.device] {
            step.pass(*task, &mut gradients);
        }
        step.gather_losses();
        gradients.finish(&mut step);
        step
    }

    fn build(&self, kind: &StepKind, strategy: Option<&dyn StepTasks>) -> Program {
        let mut step = self.begin(kind, strategy);
        step.update(kind, strategy);
        if let Some(strategy) = strategy {
            strategy.add_after_update(kind, &mut step);
        }
        step.tasks.finish()
    }

    /// Program of an evaluation of as many micro-batches as the pipeline has ranks; a rank skips
    /// the passes of those that it does not have.
    pub fn evaluation(&self) -> Program {
        let stages = &self.plan.stages;
        let (num_devices, num_chunks) = (stages.num_devices(), stages.num_chunks());
        let shape = Shape { num_devices, num_chunks, num_microbatches: num_devices };
        let pipeline = stages.pipeline(self.plan.num_microbatches(self.part));
        let mut step = StepBuilder::new(self, &pipeline);
        step.is_evaluation = true;
        for task in forward::program(shape) {
            step.forward_pass(task, false);
        }
        step.release_all();
        step.tasks.finish()
    }

    /// Whether a task of the pipeline is padding: data-parallel ranks with fewer micro-batches join
    /// the collectives of the others and compute nothing.
    fn is_padding(&self, task: PipelineTask) -> bool {
        task.microbatch >= self.microbatches.len()
    }

    /// Ranks along an axis through this rank.
    fn ranks_along(&self, axis: Axis) -> Vec<usize> {
        self.plan.mesh.group(axis, Rank(self.rank)).ranks().iter().map(|rank| rank.0).collect()
    }

    /// Rank of another pipeline rank with the same data and tensor index.
    fn pipeline_peer(&self, device: usize) -> u32 {
        self.ranks_along(Axis::Pipeline)[device] as u32
    }

    /// Range of a bucket that this rank steps.
    fn own_len(&self, buckets: &Buckets, bucket: usize) -> usize {
        match self.plan.zero {
            0 => buckets.list[bucket].len,
            _ => buckets.list[bucket].part(self.part).len(),
        }
    }

    /// Buckets with gradients on this rank, ascending.
    fn grad_buckets(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let list = self.trained.grads.list.iter().enumerate();
        list.filter(|(_, bucket)| bucket.len > 0).map(|(index, _)| index)
    }

    /// Last block of a bucket that backward passes, if the bucket has gradients.
    fn filling_block(&self, bucket: usize) -> Option<usize> {
        let last = self.buckets.list[bucket].blocks.start.max(self.trained.first_block);
        (self.trained.grads.list[bucket].len > 0).then_some(last)
    }
}

/// Program under construction.
pub struct StepBuilder<'a> {
    at: &'a RankPlan<'a>,
    tasks: Builder,
    windows: Windows,
    /// Whether activations are dropped after their use in the forward pass.
    is_evaluation: bool,
    /// Marks of tied copies whose gradients were added to their owners.
    added_mirrors: Vec<BufferId>,
    /// Live micro-batches and deferred weight gradients, by stage of the rank.
    live: Vec<usize>,
    deferred_slots: Vec<usize>,
    data: u32,
    tensor: u32,
    world: u32,
    /// Groups of a strategy's workers.
    worker_groups: Vec<(Vec<usize>, u32)>,
}

impl<'a> StepBuilder<'a> {
    fn new(at: &'a RankPlan<'a>, pipeline: &Pipeline) -> Self {
        let mut tasks = Builder::new(at.rank);
        tasks.microbatches(at.microbatches.iter().copied());
        let contributions = match &at.plan.leaf_assignment() {
            LeafAssignment::Contiguous(runs) => Contributions::of_leaves(runs),
            LeafAssignment::Cyclic { num_workers } => Contributions::one_each(*num_workers),
        };
        let mut group = |axis: Axis, contributions: Option<Contributions>| {
            let ranks = at.ranks_along(axis);
            let contributions =
                contributions.unwrap_or_else(|| Contributions::one_each(ranks.len()));
            tasks.group(CommGroup { axis, ranks, contributions })
        };
        let data = group(Axis::Data, Some(contributions));
        let tensor = group(Axis::Tensor, None);
        let num_ranks = at.plan.mesh.num_ranks();
        let world = tasks.group(CommGroup {
            axis: Axis::Data,
            ranks: (0..num_ranks).collect(),
            contributions: Contributions::one_each(num_ranks),
        });
        Self {
            live: pipeline.live(at.device),
            deferred_slots: pipeline.deferred_weight_grads(at.device),
            at,
            tasks,
            windows: Windows::default(),
            is_evaluation: false,
            added_mirrors: Vec::new(),
            data,
            tensor,
            world,
            worker_groups: Vec::new(),
        }
    }

    /// Rank that runs the program.
    pub fn rank(&self) -> usize {
        self.at.rank
    }

    /// Model of the rank.
    pub fn blueprint(&self) -> &'a Blueprint {
        self.at.blueprint
    }

    /// Plan of the replica.
    pub fn plan(&self) -> &'a ReplicaPlan {
        self.at.plan
    }

    /// Buckets with parameters: index and number of elements.
    pub fn full_buckets(&self) -> Vec<(usize, usize)> {
        let list = self.at.buckets.list.iter().enumerate();
        list.filter(|(_, bucket)| bucket.len > 0)
            .map(|(index, bucket)| (index, bucket.len))
            .collect()
    }

    /// Bucket of a block.
    pub fn bucket_of(&self, block: usize) -> usize {
        self.at.buckets.of_block(block)
    }

    /// Whether a bucket has a tensor to whose gradient that of a tied copy is added once all
    /// passes are done.
    pub fn owns_tied(&self, bucket: usize) -> bool {
        self.at.trained.grads.mirrors.iter().any(|pair| pair.owner.0 == bucket)
    }

    /// Pieces of parameters that the optimizer of this rank steps.
    pub fn optimizer_slots(&self) -> Vec<Slot> {
        self.at.trained.slots(self.at.blueprint, &self.at.buckets, |bucket| 0..bucket.len)
    }

    /// Buffer with the parameters of a bucket.
    pub fn params_of(&mut self, bucket: usize) -> BufferId {
        self.params(bucket)
    }

    /// Buffer of the strategy, empty between steps.
    pub fn buffer(&mut self, contents: Contents, len: usize) -> BufferId {
        self.tasks.buffer(contents, len)
    }

    /// Buffer of the strategy, full between steps.
    pub fn persistent(&mut self, contents: Contents, len: usize) -> BufferId {
        self.tasks.persistent(contents, len)
    }

    /// Adds a task.
    pub fn task(&mut self, op: TaskOp, queue: Queue) -> TaskBuilder<'_> {
        self.tasks.task(op, queue)
    }

    /// Group of some workers.
    pub fn workers(&mut self, ranks: impl Iterator<Item = usize>) -> u32 {
        let ranks: Vec<usize> = ranks.collect();
        if let Some((_, group)) = self.worker_groups.iter().find(|(known, _)| *known == ranks) {
            return *group;
        }
        let contributions = Contributions::one_each(ranks.len());
        let group = CommGroup { axis: Axis::Data, ranks: ranks.clone(), contributions };
        let group = self.tasks.group(group);
        self.worker_groups.push((ranks, group));
        group
    }

    /// Adds the gathering of what the strategy measures: `len` numbers of each rank.
    pub fn gather_statistics(&mut self, len: usize) {
        let statistics = self.tasks.buffer(Contents::Statistics, len);
        let num_ranks = self.at.plan.mesh.num_ranks();
        let lengths = Lengths::Even(len * num_ranks);
        let call = Call { group: self.world, op: Op::AllGather, lengths, element: Bytes(8) };
        self.tasks.task(TaskOp::Statistics, Queue::Control).takes(statistics).calls(call);
    }

    /// Call of the data-parallel group.
    fn data_call(&self, op: Op, lengths: Lengths, element: Bytes) -> Call {
        Call { group: self.data, op, lengths, element }
    }

    /// Bytes of a gradient element on the wire.
    fn wire_element(&self) -> Bytes {
        if self.at.plan.wire == WireDtype::F32 { ELEMENT } else { NARROW_ELEMENT }
    }
}

/// Rank at these coordinates of the mesh.
pub fn rank_at(mesh: &Mesh, device: usize, part: usize, tp_rank: usize) -> usize {
    let is_there = |rank: &usize| {
        let at = |axis| mesh.index(axis, Rank(*rank));
        (at(Axis::Pipeline), at(Axis::Data), at(Axis::Tensor)) == (device, part, tp_rank)
    };
    (0..mesh.num_ranks()).find(is_there).expect("the mesh has this place")
}

#[cfg(test)]
mod tests;

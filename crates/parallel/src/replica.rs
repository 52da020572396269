//! A worker's model: parameters, gradients, and the memory that micro-batches pass through.
//!
//! A worker has the blocks of its stages of the pipeline, and its part of the batch; see
//! [`crate::groups`]. Nothing that is computed here depends on the number of workers: initial
//! weights are a function of (seed, name, element), a micro-batch's loss and gradients are a function of
//! the micro-batch and the parameters, and the order in which gradients are added is that of
//! [`crate::leaves`]. Workers only divide the micro-batches and the blocks among them, and, from ZeRO-1 on,
//! what they keep.
//!
//! A step is: [`Replica::run_microbatches`], [`Replica::finish_reduce`], [`Replica::unscale`],
//! [`Replica::clip`], then [`Replica::step`]; see [`crate::scaled`]. A mirror (the head's copy of a
//! tied embedding) has its own tree of sums; its total is added to the owner's total once, the
//! owner is stepped, and the copy follows. A step may be left out after its sums are finished.
//! After an error nothing of a replica can be used: parts of it were in the call that failed.

use crate::buckets::{Bucket, Buckets};
use crate::compress::Compression;
use crate::gossip::Gossip;
use crate::groups::Groups;
use crate::leaves::Leaves;
use crate::local::{Rounds, both};
use crate::losses::MicrobatchLosses;
use crate::norm::PartedNorm;
use crate::overlap::Overlap;
use crate::pipeline::{Device, Job, Sizes};
use crate::recompute::RecomputePlan;
use crate::run::Turn;
use crate::scaled::{Scaled, Unscaled};
use crate::server::{Client, Near};
use crate::shares::Shares;
use crate::sparse::SparseTable;
use crate::stages::Stages;
use crate::store::WorkerStore;
use crate::tensor::{Slicing, held_by};
use crate::trained::Trained;
use lockstep_comm::{Comm, CommError, Traffic};
use lockstep_config::{Dtype, LossScale};
use lockstep_mesh::{Axis, Degrees, Mesh};
use lockstep_model::{Blueprint, Microbatch, MicrobatchShape, Mode, Scratch, precision_of};
use lockstep_optim::{Clip, ClipPlan, Optimizer, Phases, Slot, Update};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::time::Duration;

/// How a model is divided among workers, and the sizes it is made for.
#[derive(Clone, Debug)]
pub struct ReplicaPlan {
    /// The shape of every micro-batch.
    pub microbatch: MicrobatchShape,
    /// How gradients are summed.
    pub leaves: Leaves,
    /// What backward computes again.
    pub recompute: RecomputePlan,
    /// The ZeRO stage: what workers keep only their part of.
    pub zero: usize,
    /// Leaves of each part of the data axis, where they are contiguous (stages 0 and 1).
    pub shares: Vec<usize>,
    /// How the workers stand.
    pub mesh: Mesh,
    /// How the model is cut along the pipeline.
    pub stages: Stages,
    /// Parameters that a bucket has at least, where there are as many.
    pub bucket_len: usize,
    /// Whether calls run beside the computation.
    pub overlap: bool,
    /// What gradients travel in; see [`crate::wire`].
    pub wire: Dtype,
    /// Whether the optimizer's state lies in a file.
    pub offload: bool,
    /// Which parameters are frozen when.
    pub phases: Phases,
    /// The phase that the run is in.
    pub phase: usize,
    /// How many steps old the gradients are that a step goes by.
    pub delay: u64,
}

/// See the module's text.
pub struct Replica {
    pub(crate) blueprint: Blueprint,
    pub(crate) plan: ReplicaPlan,
    pub(crate) groups: Groups,
    pub(crate) shares: Shares,
    /// The buckets of all stages.
    pub(crate) all: Buckets,
    pub(crate) store: WorkerStore,
    pub(crate) norm: PartedNorm,
    pub(crate) losses: MicrobatchLosses,
    pub(crate) device: Device,
    pub(crate) scratch: Scratch,
    /// What the loss is multiplied by; none where products are not in `fp16`.
    pub(crate) loss_scale: Option<LossScale>,
    /// The losses of an evaluation, of every worker that knows any, and how many that are.
    sums: Vec<f64>,
    sum_lens: Vec<usize>,
    /// What is kept for rounds, where workers take steps of their own.
    pub(crate) rounds: Option<Rounds>,
    /// What is kept for gossip with neighbours, and for servers that hold the weights.
    pub(crate) gossip: Option<Gossip>,
    pub(crate) client: Option<Client>,
    /// Who meets servers together with this worker.
    pub(crate) near: Option<Near>,
    /// What is kept to compress gradients, where they are.
    pub(crate) compression: Option<Compression>,
    /// What this worker does in a step, and what it did in the last one.
    pub(crate) turn: Turn,
    pub(crate) world: World,
    /// What was sent in this worker's name by others than the replica.
    pub(crate) elsewhere: Traffic,
}

impl ReplicaPlan {
    /// Everything on one worker, nothing computed again.
    pub fn alone(microbatch: MicrobatchShape, leaves: Leaves) -> Self {
        Self {
            microbatch,
            leaves,
            recompute: RecomputePlan::NONE,
            zero: 0,
            shares: vec![leaves.num_leaves],
            mesh: Mesh::new(Degrees::ONE).expect("one worker is a mesh"),
            stages: Stages::whole(),
            bucket_len: 0,
            overlap: false,
            wire: Dtype::F32,
            offload: false,
            phases: Phases::default(),
            phase: 0,
            delay: 0,
        }
    }

    /// Who runs which leaves: a number for every part of the data axis.
    pub fn leaf_shares(&self) -> Shares {
        Shares::at_stage(self.zero, &self.shares)
    }

    /// Microbatches that a pipeline with this part of the batch runs in a step, empty ones
    /// included.
    pub fn num_microbatches(&self, part: usize) -> usize {
        let Leaves { num_leaves, microbatches_per_leaf } = self.leaves;
        match self.leaf_shares() {
            Shares::Contiguous(shares) => shares[part].len() * microbatches_per_leaf,
            Shares::Cyclic { num_workers } => {
                num_leaves.div_ceil(num_workers) * microbatches_per_leaf
            }
        }
    }

    /// The buckets of all stages.
    pub fn buckets(&self, blueprint: &Blueprint) -> Buckets {
        Buckets::between(blueprint, self.bucket_len, self.shares.len(), self.stages.cuts())
    }

    /// The table whose rows travel one by one, if any does: in `f32` only.
    pub fn sparse(&self, blueprint: &Blueprint, trained: &Trained) -> Option<SparseTable> {
        let shares = self.leaf_shares();
        let found = SparseTable::find(blueprint, trained, &shares, self.leaves, self.microbatch);
        found.filter(|_| self.wire == Dtype::F32)
    }

    /// The sizes of a device's memory whose pipeline has this part of the batch.
    pub fn sizes<'a>(&self, blueprint: &'a Blueprint, part: usize) -> Sizes<'a> {
        let (microbatch, recompute) = (self.microbatch, self.recompute);
        Sizes { blueprint, microbatch, recompute, num_microbatches: self.num_microbatches(part) }
    }

    /// Whether every worker has the whole model and steps all of it.
    pub(crate) fn is_replicated(&self) -> bool {
        self.zero == 0 && self.mesh.degree(Axis::Data) == self.mesh.num_ranks()
    }
}

impl Replica {
    /// Allocates everything and fills in the initial weights. All members of `comm`, the workers of
    /// the plan's mesh, do so with the same blueprint, seed and plan.
    pub fn materialize(
        blueprint: Blueprint,
        seed: u64,
        cpu: &Cpu,
        plan: ReplicaPlan,
        comm: &Comm,
        world: &World,
    ) -> Result<Self, CommError> {
        let groups = Groups::new(comm, plan.mesh)?;
        Self::among(blueprint, seed, cpu, plan, groups, world)
    }

    /// See [`Self::materialize`]; for workers that are divided by the plan's mesh already.
    pub fn among(
        blueprint: Blueprint,
        seed: u64,
        cpu: &Cpu,
        plan: ReplicaPlan,
        groups: Groups,
        world: &World,
    ) -> Result<Self, CommError> {
        let shares = plan.leaf_shares();
        assert_eq!(shares.num_workers(), plan.mesh.degree(Axis::Data), "a share for every part");
        let (rank, part) = (groups.rank(), groups.data().group_rank());
        let device = groups.pipeline().group_rank();
        let addends: Vec<_> = match &shares {
            Shares::Contiguous(leaves) => leaves.clone(),
            Shares::Cyclic { num_workers } => (0..*num_workers).map(|w| w..w + 1).collect(),
        };
        let data = groups.data().summing(&addends, "data")?.canonical();
        let overlap = Overlap::new(data, groups.world().clone(), world.clone(), plan.overlap)
            .carrying(precision_of(plan.wire));
        let stages = plan.stages.clone();
        let all = plan.buckets(&blueprint);
        let buckets = all.here(|block| stages.device_of(block) == device);
        let trained = Trained::new(&blueprint, &buckets, &plan.phases, plan.phase);
        let norm = norm_of(&blueprint, &all, &plan, &groups, &overlap);
        let tellers = tellers(&stages, &groups);
        let losses = MicrobatchLosses::new(&shares, plan.leaves, &tellers, (rank, part));
        let sparse = plan.sparse(&blueprint, &trained);
        let store = WorkerStore::new(
            buckets,
            plan.zero,
            plan.leaves,
            &shares,
            sparse,
            trained,
            overlap,
            stages.clone(),
        )?;
        let sizes = plan.sizes(&blueprint, part);
        let link = Device::link(&sizes, groups.messages()?, world.clone());
        let slicing = Slicing::new(groups.tensor(), world.clone());
        let depth = stages.num_devices();
        let mut replica = Self {
            scratch: Scratch::new(sizes.scratch_len(&stages, device)),
            device: Device::new(stages, device, (link, slicing), &sizes),
            sums: vec![0.0; depth * shares.num_workers()],
            sum_lens: tellers.iter().map(|part| part.map_or(0, |_| depth)).collect(),
            blueprint,
            plan,
            groups,
            shares,
            all,
            store,
            norm,
            losses,
            rounds: None,
            gossip: None,
            client: None,
            near: None,
            compression: None,
            turn: Turn::default(),
            world: World::clone(world),
            elsewhere: Traffic::default(),
            loss_scale: None,
        };
        replica.initialize(seed, cpu)?;
        // The plan of a call is made when it comes for the first time; not in the middle of a run.
        let Self { store, sums, sum_lens, .. } = &mut replica;
        store.overlap.call(|comm| comm.all_gather_parts(sums, sum_lens))?;
        Ok(replica)
    }

    /// Goes over to another phase, or to leaves of another number of micro-batches: gradients and what
    /// depends on their layout are made anew. All workers do so together, between two steps.
    pub fn enter(&mut self, phase: usize, microbatches_per_leaf: usize) -> Result<(), CommError> {
        self.plan.phase = phase;
        self.plan.leaves.microbatches_per_leaf = microbatches_per_leaf;
        let Self { blueprint, plan, groups, shares, store, .. } = self;
        let trained = Trained::new(blueprint, &store.buckets, &plan.phases, phase);
        let sparse = plan.sparse(blueprint, &trained);
        store.renew_gradients(plan.leaves, shares, sparse, trained)?;
        self.norm = norm_of(blueprint, &self.all, plan, groups, &store.overlap);
        let (at, tellers) =
            ((groups.rank(), groups.data().group_rank()), tellers(&plan.stages, groups));
        self.losses = MicrobatchLosses::new(shares, plan.leaves, &tellers, at);
        self.device.renew(&plan.sizes(blueprint, at.1));
        Ok(())
    }

    /// The model this is a copy of.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Parameters that a bucket has at least, where there are as many.
    pub fn bucket_len(&self) -> usize {
        self.plan.bucket_len
    }

    /// How many micro-batches each worker runs.
    pub fn microbatches_by_worker(&self) -> Vec<usize> {
        let microbatches =
            |rank| self.shares.microbatches_of(self.groups.part_of(rank), self.plan.leaves).len();
        (0..self.groups.world().group_size()).map(microbatches).collect()
    }

    /// Runs micro-batches forward, without dropout, divided among the workers, and returns the sum of
    /// their token losses, added in the order of micro-batches.
    pub fn evaluate<'a>(
        &mut self,
        cpu: &Cpu,
        num_microbatches: usize,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<f64, CommError> {
        let data = self.groups.data();
        let (num_parts, part, depth) = (data.group_size(), data.group_rank(), self.device.depth());
        let mut total = 0.0;
        for first in (0..num_microbatches).step_by(num_parts * depth) {
            let number = |index: usize| first + index * num_parts + part;
            let Self { blueprint, plan, store, device, scratch, sums, sum_lens, .. } = self;
            let of_plan = |index: usize| {
                let microbatch = microbatch(number(index));
                assert_eq!(microbatch.shape, plan.microbatch, "the memory is for this shape");
                microbatch
            };
            device.run(
                store,
                &mut Job {
                    blueprint,
                    cpu,
                    mode: Mode::Evaluate,
                    scratch,
                    num_microbatches: (0..depth)
                        .filter(|index| number(*index) < num_microbatches)
                        .count(),
                    microbatch: &of_plan,
                    goes_on: &|_| true,
                    loss: &mut |microbatch, sum| sums[part * depth + microbatch] = sum,
                },
            )?;
            store.overlap.call(|comm| comm.all_gather_parts(sums, sum_lens))?;
            let microbatches = 0..(num_microbatches - first).min(num_parts * depth);
            let sum_of =
                |microbatch: usize| sums[microbatch % num_parts * depth + microbatch / num_parts];
            total = microbatches.map(sum_of).fold(total, |total, sum| total + sum);
        }
        Ok(total)
    }

    /// The logits of the micro-batch that was evaluated last, a row per token, on the worker that has the
    /// last block.
    pub fn logits(&self) -> &[f32] {
        &self.device.last_kept()[..self.plan.microbatch.rows() * self.blueprint.vocab]
    }

    /// Ends the sums of a step: all gradients of all workers are added up, and mirrors have given
    /// theirs to their owners.
    pub fn finish_reduce(&mut self, cpu: &Cpu) -> Result<Scaled, CommError> {
        self.store.finish_reduce(cpu, &mut self.device.link)?;
        Ok(Scaled { scale: self.loss_scale })
    }

    /// The norm of the summed gradients and the scales that bring it within the limits, the same on
    /// all workers.
    pub fn clip(&mut self, cpu: &Cpu, _sums: Unscaled, plan: &ClipPlan) -> Result<Clip, CommError> {
        self.norm.measure_grads(cpu, |bucket| self.store.own_grads(bucket));
        self.norm.clip(plan, &mut self.store.overlap)
    }

    /// What this worker's optimizer steps in this phase.
    pub fn slots(&self) -> Vec<Slot> {
        let Self { store, blueprint, .. } = self;
        store.trained().slots(blueprint, &store.buckets, |bucket| store.own(bucket))
    }

    /// The summed gradient of every parameter, or piece of one, that this worker steps.
    pub fn own_grads(&self) -> impl Iterator<Item = (Slot, &[f32])> {
        let grads = |slot: Slot| {
            let values = &self.store.own_grads(slot.block)[slot.grads.clone()];
            (slot, values)
        };
        self.slots().into_iter().map(grads)
    }

    /// Steps every parameter that this worker owns by its summed gradient.
    pub fn step(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
    ) -> Result<(), CommError> {
        if optimizer.needs_norms() {
            self.store.prepare(cpu, optimizer, update);
            let Self { norm, store, blueprint, .. } = self;
            let (norms, num_tensors) = (optimizer.norms_mut(), blueprint.num_tensors());
            norm.measure_params(cpu, |bucket| store.own_params(bucket));
            norm.by_name(&mut norms.params, num_tensors, &mut store.overlap)?;
            norm.measure_grads(cpu, |bucket| store.own_grads(bucket));
            norm.by_name(&mut norms.steps, num_tensors, &mut store.overlap)?;
        }
        self.store.step(cpu, optimizer, update, &mut self.device.link)
    }

    /// Whether a parameter is trained in this phase.
    pub fn is_trained(&self, param: &str) -> bool {
        !self.plan.phases.is_frozen(self.plan.phase, param)
    }

    /// Waits until parameters and gradients that are on their way have arrived.
    pub fn settle(&mut self) -> Result<(), CommError> {
        self.settle_delayed()?;
        self.store.settle()
    }

    /// What gradients, parameters and activations have weighed on this worker's wires so far.
    pub fn traffic(&self) -> Traffic {
        let gradients = self.store.overlap.comm().counters().total().traffic;
        let others = [
            self.device.link.traffic(),
            self.device.slicing.traffic(),
            self.traffic_of_rounds(),
            self.traffic_of_gossip(),
            self.traffic_of_client(),
            self.traffic_near(),
            self.traffic_compressed(),
            self.elsewhere,
        ];
        others.into_iter().fold(both(gradients, self.turn.past_traffic), both)
    }

    /// The group of workers that hold the same blocks and share the batch.
    pub fn comm(&self) -> &Comm {
        self.store.overlap.comm()
    }

    /// The pipeline's device that this worker is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many blocks each stage of the pipeline has.
    pub fn blocks_by_stage(&self) -> Vec<usize> {
        let (stages, num_blocks) = (&self.plan.stages, self.blueprint.blocks.len());
        (0..stages.num_stages()).map(|stage| stages.blocks(stage, num_blocks).len()).collect()
    }

    /// Who works with whom.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The time that this worker waited for the others since this was asked last.
    pub fn take_exposed(&mut self) -> Duration {
        let near = self.take_exposed_near();
        let Device { link, slicing, .. } = &mut self.device;
        let servers = self.client.as_mut().map_or(Duration::ZERO, Client::take_exposed) + near;
        self.store.overlap.take_exposed() + link.take_exposed() + slicing.take_exposed() + servers
    }
}

/// The workers that know losses, with the part of the batch that they know them of: those with the
/// last stage, and of those that hold its slices the first.
fn tellers(stages: &Stages, groups: &Groups) -> Vec<Option<usize>> {
    let last = (stages.num_stages() - 1) % stages.num_devices();
    let is_teller = |rank| groups.device_of(rank) == last && groups.holder_of(rank) == 0;
    let told = |rank| is_teller(rank).then(|| groups.part_of(rank));
    (0..groups.world().group_size()).map(told).collect()
}

/// Measures what is trained. Every piece of a parameter is measured by one worker: where several
/// have it, by the one with the first part of the batch.
fn norm_of(
    blueprint: &Blueprint,
    all: &Buckets,
    plan: &ReplicaPlan,
    groups: &Groups,
    overlap: &Overlap,
) -> PartedNorm {
    let slots = |device: usize, part: &dyn Fn(&Bucket) -> Range<usize>| {
        let buckets = all.here(|block| plan.stages.device_of(block) == device);
        let trained = Trained::new(blueprint, &buckets, &plan.phases, plan.phase);
        trained.slots(blueprint, &buckets, |bucket| part(bucket))
    };
    if plan.is_replicated() {
        return PartedNorm::whole(&slots(0, &|bucket| 0..bucket.len));
    }
    let slots_of = |rank| {
        let (device, part) = (groups.device_of(rank), groups.part_of(rank));
        let slots = match plan.zero {
            0 if part > 0 => Vec::new(),
            0 => slots(device, &|bucket| 0..bucket.len),
            _ => slots(device, &|bucket| bucket.part(part)),
        };
        held_by(blueprint, groups.holder_of(rank), slots)
    };
    PartedNorm::parted(slots_of, overlap)
}

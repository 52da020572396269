//! One rank's replica of the model: parameters, gradients and activation memory, and the verbs of a
//! training step.
//!
//! A rank holds the blocks of its pipeline stages and processes its data-parallel part of the
//! batch; [`crate::groups`] lists the process groups. No result depends on the number of ranks:
//! initial weights are a function of (seed, name, element), the loss and gradients of a micro-batch
//! are a function of the micro-batch and the parameters, and [`crate::leaves`] fixes the order of
//! gradient sums. Ranks divide only micro-batches, blocks and, from ZeRO-1 on, the state they keep.
//!
//! A step is [`Replica::run_step`]. Its parts are [`Replica::run_microbatches`],
//! [`Replica::finish_reduce`], [`Replica::unscale`], [`Replica::clip`], then [`Replica::step`];
//! [`crate::loss_scaling`] enforces that order by types.
//! A mirror (the output head's copy of a tied embedding) has its own reduction tree; its total is
//! added to the owner's total once, the optimizer steps the owner, and the mirror is copied from
//! it. A step may be skipped after its sums are finished. After an error a replica cannot be used:
//! some of its buffers were in the call that failed.

use crate::buckets::{Bucket, Buckets};
use crate::footprint::{Footprint, floats_of};
use crate::groups::Groups;
use crate::leaf_assignment::LeafAssignment;
use crate::loss_scaling::{ScaledGradients, UnscaledGradients};
use crate::matrix_updates::MatrixUpdates;
use crate::microbatch_losses::MicrobatchLosses;
use crate::overlap::Overlap;
use crate::param_store::ParamStore;
use crate::parameter_server::{Client, HostGroup};
use crate::pipeline::{Job, PipelineRank};
use crate::programs::{Programs, Segment};
use crate::replica_plan::ReplicaPlan;
use crate::sharded_norm::ShardedNorm;
use crate::stages::Stages;
use crate::step_context::StepContext;
use crate::strategy::Strategy;
use crate::task_spans::TaskSpans;
use crate::tensor_parallel::{TensorParallel, slots_of_tp_rank};
use crate::traffic::AxisCounters;
use crate::trainable_params::TrainableParams;
use lockstep_comm::{Comm, CommError, Counters, Reduction, Traffic};
use lockstep_config::LossScale;
use lockstep_mesh::Axis;
use lockstep_model::{Blueprint, Microbatch, Mode, Scratch, precision_of};
use lockstep_optim::{Clip, ClipPlan, Optimizer, Slot};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Compute, Device, View, ViewMut, copy_rounded};
use lockstep_tensor::gemm::Precision;
use std::ops::Range;
use std::sync::Arc;

/// One rank's replica of the model.
pub struct Replica {
    pub(crate) blueprint: Blueprint,
    pub(crate) plan: ReplicaPlan,
    pub(crate) groups: Groups,
    pub(crate) shares: LeafAssignment,
    /// Buckets of all pipeline stages.
    pub(crate) all: Buckets,
    pub(crate) store: ParamStore,
    /// Programs of this rank's steps and evaluations.
    pub(crate) programs: Programs,
    pub(crate) norm: ShardedNorm,
    /// Updates of whole matrices, if the optimizer has any.
    pub(crate) matrices: Option<MatrixUpdates>,
    pub(crate) losses: MicrobatchLosses,
    pub(crate) device: PipelineRank,
    pub(crate) scratch: Scratch,
    /// Loss scale; `None` unless products are in `fp16`.
    pub(crate) loss_scale: Option<LossScale>,
    /// Evaluation losses gathered from all ranks that compute the loss, and their number per rank.
    sums: Vec<f64>,
    sum_lens: Vec<usize>,
    /// State of the synchronization strategy, if it does more than reduce gradients.
    pub(crate) strategy: Option<Box<dyn Strategy>>,
    /// Client of the parameter servers.
    pub(crate) client: Option<Client>,
    /// Ranks of the host that share one client of the parameter servers.
    pub(crate) host_group: Option<HostGroup>,
    /// Duty of this rank in the step, and measurements of the last step.
    pub(crate) step_context: StepContext,
    pub(crate) world: World,
}

impl Replica {
    /// Allocates all memory and fills in the initial weights. Collective over `comm`, the ranks of
    /// the plan's mesh; all pass the same blueprint, seed and plan.
    pub fn materialize(
        blueprint: Blueprint,
        seed: u64,
        compute: &Compute,
        plan: ReplicaPlan,
        comm: &Comm,
        world: &World,
    ) -> Result<Self, CommError> {
        let groups = Groups::new(comm, plan.mesh)?;
        Self::materialize_in_groups(blueprint, seed, compute, plan, groups, world)
    }

    /// Like [`Self::materialize`], for process groups that exist already.
    pub fn materialize_in_groups(
        blueprint: Blueprint,
        seed: u64,
        compute: &Compute,
        plan: ReplicaPlan,
        groups: Groups,
        world: &World,
    ) -> Result<Self, CommError> {
        let shares = plan.leaf_assignment();
        assert_eq!(
            shares.num_workers(),
            plan.mesh.degree(Axis::Data),
            "leaves for every data-parallel rank"
        );
        let (rank, part) = (groups.rank(), groups.data().group_rank());
        let device = groups.pipeline().group_rank();
        let addends: Vec<_> = match &shares {
            LeafAssignment::Contiguous(leaves) => leaves.clone(),
            LeafAssignment::Cyclic { num_workers } => (0..*num_workers).map(|w| w..w + 1).collect(),
        };
        let data = groups.data().summing(&addends, "data")?.canonical();
        let overlap = Overlap::new(data, groups.world().clone(), world.clone(), plan.overlap)
            .carrying(precision_of(plan.wire.dtype()))
            .computing_on(compute.accelerator().cloned());
        let stages = plan.stages.clone();
        let all = plan.buckets(&blueprint);
        let buckets = all.here(|block| stages.device_of(block) == device);
        let trained = TrainableParams::new(&blueprint, &buckets, &plan.phases, plan.phase);
        let norm = norm_of(&blueprint, &all, &plan, &groups, &overlap)?;
        let loss_ranks = loss_ranks(&stages, &groups);
        let losses = MicrobatchLosses::new(
            &shares,
            plan.leaves,
            &loss_ranks,
            (rank, part),
            plan.loss_values,
        );
        let sparse = plan.sparse(&blueprint, &trained);
        let store = ParamStore::new(
            buckets,
            plan.zero,
            plan.leaves,
            &shares,
            sparse,
            trained,
            overlap,
            stages.clone(),
            plan.copy_of_params(&blueprint),
        )?;
        let matrices =
            MatrixUpdates::new(&blueprint, &store.buckets, &plan, compute.accelerator())?;
        let sizes = plan.sizes(&blueprint, part);
        let link = PipelineRank::link(&sizes, groups.messages()?, world.clone());
        let on = compute.accelerator().cloned();
        let tensor_parallel = TensorParallel::new(groups.tensor(), world.clone(), on);
        let depth = stages.num_devices();
        let programs = Programs::new(&plan, &blueprint, rank);
        let (scratch_len, ends) = (sizes.scratch_len(&stages, device), (link, tensor_parallel));
        let mut replica = Self {
            programs,
            scratch: Scratch::new(compute.device(), scratch_len)?,
            device: PipelineRank::new(stages, device, ends, &sizes, compute.accelerator())?,
            sums: vec![0.0; depth * shares.num_workers()],
            sum_lens: loss_ranks.iter().map(|part| part.map_or(0, |_| depth)).collect(),
            blueprint,
            plan,
            groups,
            shares,
            all,
            store,
            norm,
            matrices,
            losses,
            strategy: None,
            client: None,
            host_group: None,
            step_context: StepContext {
                exchanged_at: world.clock().now(),
                ..StepContext::default()
            },
            world: World::clone(world),
            loss_scale: None,
        };
        replica.list_matrices();
        replica.initialize(seed, compute)?;
        // A collective is planned on its first call; do that before the run starts.
        let Self { store, sums, sum_lens, .. } = &mut replica;
        store.overlap.call(|comm| comm.all_gather_parts(sums, sum_lens))?;
        Ok(replica)
    }

    /// Enters another phase of the freezing schedule, or changes the micro-batches per leaf;
    /// reallocates the gradients and what depends on their layout. Collective, between two steps.
    pub fn enter_phase(
        &mut self,
        phase: usize,
        microbatches_per_leaf: usize,
    ) -> Result<(), CommError> {
        self.plan.phase = phase;
        self.plan.leaves.microbatches_per_leaf = microbatches_per_leaf;
        let Self { blueprint, plan, groups, shares, store, .. } = self;
        let trained = TrainableParams::new(blueprint, &store.buckets, &plan.phases, phase);
        let sparse = plan.sparse(blueprint, &trained);
        store.renew_gradients(plan.leaves, shares, sparse, trained)?;
        self.norm = norm_of(blueprint, &self.all, plan, groups, &store.overlap)?;
        let (at, loss_ranks) =
            ((groups.rank(), groups.data().group_rank()), loss_ranks(&plan.stages, groups));
        self.losses = MicrobatchLosses::new(shares, plan.leaves, &loss_ranks, at, plan.loss_values);
        self.device.renew(&plan.sizes(blueprint, at.1))?;
        self.programs.renew(plan, blueprint, groups.rank());
        self.list_matrices();
        self.renew_leaf_norms()
    }

    /// Lists the whole matrices that the optimizer updates in this phase.
    fn list_matrices(&mut self) {
        let slots = self.slots();
        let Self { matrices, blueprint, store, plan, .. } = self;
        if let Some(matrices) = matrices {
            matrices.enter_phase(blueprint, &store.buckets, plan, &slots);
        }
    }

    /// Accelerator that runs the blocks; `None` where the CPU does.
    pub fn accelerator(&self) -> Option<&Arc<dyn Device>> {
        self.store.overlap.accelerator()
    }

    /// Blueprint of the model.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Minimum number of parameters of a bucket.
    pub fn bucket_len(&self) -> usize {
        self.plan.bucket_len
    }

    /// Number of micro-batches that each rank runs.
    pub fn microbatches_by_worker(&self) -> Vec<usize> {
        let microbatches = |rank| {
            self.shares.microbatches_of(self.groups.dp_rank_of(rank), self.plan.leaves).len()
        };
        (0..self.groups.world().group_size()).map(microbatches).collect()
    }

    /// Sums over the pairs of the last step, where its loss is that of preferences: how many have
    /// a positive margin, and the margins, added in micro-batch order.
    pub fn pair_sums(&self) -> Option<[f64; 2]> {
        self.losses.pairs()
    }

    /// Whether a rank reports the losses of its data-parallel part.
    pub(crate) fn reports_loss(&self, rank: usize) -> bool {
        self.sum_lens[rank] > 0
    }

    /// Runs micro-batches forward without dropout, divided among the ranks, and returns the sum of
    /// their token losses, added in micro-batch order.
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
            let Self { blueprint, plan, store, device, scratch, sums, sum_lens, programs, .. } =
                self;
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
                    should_run: &|_| true,
                    loss: &mut |microbatch, loss| sums[part * depth + microbatch] = loss.sum,
                    done: &|_| {},
                },
                &programs.evaluation,
                0..programs.evaluation.tasks.len() as u32,
            )?;
            store.overlap.call(|comm| comm.all_gather_parts(sums, sum_lens))?;
            let microbatches = 0..(num_microbatches - first).min(num_parts * depth);
            let sum_of =
                |microbatch: usize| sums[microbatch % num_parts * depth + microbatch / num_parts];
            total = microbatches.map(sum_of).fold(total, |total, sum| total + sum);
        }
        Ok(total)
    }

    /// Logits of the last evaluated micro-batch, one row per token, on the rank with the last
    /// block.
    ///
    /// # Panics
    /// Where there are too many to keep: the head then computes them in chunks.
    pub fn logits(&self, cpu: &Cpu) -> Result<Vec<f32>, CommError> {
        let (saved, dtype) = (self.device.last_saved(), self.blueprint.activations);
        let len = self.plan.microbatch.rows() * self.blueprint.vocab;
        let (saved, mut logits) = (View::of(saved).cast(dtype).range(0..len), vec![0.0; len]);
        copy_rounded(cpu, saved, ViewMut::of(&mut logits))?;
        Ok(logits)
    }

    /// Finishes the gradient sums of a step: waits for all reductions and adds the mirrors'
    /// gradients to their owners.
    pub fn finish_reduce(&mut self, cpu: &Cpu) -> Result<ScaledGradients, CommError> {
        self.finish_reduction(cpu, &TaskSpans::default())
    }

    /// Like [`Self::finish_reduce`], with the spans of its tasks.
    pub(crate) fn finish_reduction(
        &mut self,
        cpu: &Cpu,
        spans: &TaskSpans,
    ) -> Result<ScaledGradients, CommError> {
        let Self { store, device, programs, .. } = self;
        let step = &programs.training;
        let tasks = step.segment(Segment::Reduction);
        store.finish_reduce(cpu, &mut device.link, &step.program, tasks, spans)?;
        Ok(ScaledGradients { scale: self.loss_scale })
    }

    /// Sets the loss scale from the next step on; `None` unless products are in `fp16`.
    pub fn set_loss_scale(&mut self, scale: Option<LossScale>) {
        self.loss_scale = scale;
    }

    /// Divides this rank's sums by the loss scale, exactly, and counts those that `fp16` would have
    /// rounded to zero at that scale.
    pub fn unscale(
        &mut self,
        cpu: &Cpu,
        ScaledGradients { scale }: ScaledGradients,
    ) -> Result<UnscaledGradients, CommError> {
        let Self { norm, store, .. } = self;
        norm.count_underflows(scale.is_some(), |bucket| store.own_grads(bucket));
        if let Some(scale) = scale.filter(|scale| *scale != LossScale::ONE) {
            self.rescale(cpu, 1.0 / scale.factor())?;
        }
        Ok(UnscaledGradients { _sums: () })
    }

    /// Multiplies all owned gradient sums by `factor`.
    pub fn rescale(&mut self, cpu: &Cpu, factor: f32) -> Result<(), CommError> {
        let Self { store, device, .. } = self;
        for bucket in 0..store.buckets.list.len() {
            // Buckets of other stages and frozen buckets have no sums.
            if store.trained().grads.list[bucket].len > 0 {
                let (grads, errors) =
                    (store.own_grads_view_mut(bucket)?, ViewMut::of::<u64>(&mut []));
                device.compute_device(cpu).scale(grads, factor, Precision::F32, errors)?;
            }
        }
        Ok(())
    }

    /// Fraction of the last step's gradients, over all ranks, that `fp16` would have rounded to
    /// zero at its scale; zero unless products are in `fp16`.
    pub fn underflow_fraction(&self) -> f64 {
        self.norm.underflow_fraction()
    }

    /// Norm of the summed gradients and the clipping factors, equal on all ranks.
    pub fn clip(
        &mut self,
        cpu: &Cpu,
        _sums: UnscaledGradients,
        plan: &ClipPlan,
    ) -> Result<Clip, CommError> {
        self.measure_norm(cpu)?;
        self.norm.clip(plan, &mut self.store.overlap)
    }

    /// Sums the squares of the gradients that this rank holds.
    pub(crate) fn measure_norm(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        let Self { norm, store, device, .. } = self;
        Ok(norm.measure_grads(device.compute_device(cpu), |bucket| store.own_grads_view(bucket))?)
    }

    /// Norm from the measured sums. Where ranks update by their own gradients, a norm that is not
    /// finite on one rank counts for all.
    pub(crate) fn agree(
        &mut self,
        _sums: UnscaledGradients,
        plan: &ClipPlan,
        step: u64,
    ) -> Result<Clip, CommError> {
        let mut clip = self.norm.clip(plan, &mut self.store.overlap)?;
        if self.is_local_step(step) && !self.holds_on_all_ranks(clip.norm.is_finite())? {
            clip.norm = f64::NAN;
        }
        Ok(clip)
    }

    /// Whether a condition holds on all ranks. Collective.
    pub fn holds_on_all_ranks(&mut self, holds: bool) -> Result<bool, CommError> {
        let mut fails = [u32::from(!holds)];
        self.store.overlap.call(|comm| comm.all_reduce(&mut fails, Reduction::Max))?;
        Ok(fails[0] == 0)
    }

    /// Numbers of the micro-batches that this rank runs.
    pub fn own_microbatches(&self) -> &[usize] {
        self.losses.own_microbatches()
    }

    /// Slots that this rank's optimizer steps in this phase.
    pub fn slots(&self) -> Vec<Slot> {
        let Self { store, blueprint, .. } = self;
        store.trained().slots(blueprint, &store.buckets, |bucket| store.own(bucket))
    }

    /// Summed gradient of every parameter, or piece of one, that this rank steps.
    pub fn own_grads(&self) -> impl Iterator<Item = (Slot, &[f32])> {
        let grads = |slot: Slot| {
            let values = &self.store.own_grads(slot.block)[slot.grads.clone()];
            (slot, values)
        };
        self.slots().into_iter().map(grads)
    }

    /// Whether a parameter is trained in this phase.
    pub fn is_trained(&self, param: &str) -> bool {
        !self.plan.phases.is_frozen(self.plan.phase, param)
    }

    /// Waits for all parameters and gradients in flight.
    pub fn settle(&mut self) -> Result<(), CommError> {
        self.settle_delayed()?;
        self.store.settle()
    }

    /// Bytes sent for gradients, parameters and activations by this rank so far.
    pub fn traffic(&self) -> Traffic {
        let axes = self.counters_by_axis();
        let all = axes.all().into_iter().fold(Counters::default(), Counters::and);
        all.total().traffic
    }

    /// Parts of [`Self::traffic`].
    pub fn counters_by_axis(&self) -> AxisCounters {
        let gradients = self.store.overlap.comm().counters();
        let strategy = self.strategy.as_ref().map_or(Counters::default(), |it| it.counters());
        AxisCounters {
            data: gradients.and(&self.step_context.past_counters),
            pipeline: self.device.link.counters(),
            tensor: self.device.tensor_parallel.counters(),
            strategy: strategy.and(&self.client_counters()).and(&self.host_counters()),
        }
    }

    /// Memory held by this replica and its optimizer.
    pub fn footprint(&self, optimizer: &Optimizer) -> Footprint {
        let store = self.store.footprint();
        let (activations, messages) = self.device.num_elements();
        let matrices = self.matrices.as_ref().map_or(0, MatrixUpdates::num_elements);
        let [outer, exchanged] = self.strategy.as_ref().map_or([0; 2], |it| it.num_elements());
        let teacher = self.blueprint.teacher.as_ref();
        let [own_of_teacher, of_pass] = teacher.map_or([0; 2], |it| it.num_elements());
        let frozen = self.blueprint.frozen_tensors();
        let frozen = frozen.map(|(_, tensor)| floats_of(tensor.num_bytes())).sum::<usize>();
        let tile = self.blueprint.tile().map_or(0, |(tile, _)| tile.num_elements());
        let buffers = store.buffers + self.scratch.len() + messages + exchanged + matrices;
        Footprint {
            weights: store.weights + own_of_teacher + frozen,
            optimizer: optimizer.resident_len() + outer,
            activations,
            buffers: buffers + of_pass + tile,
            ..store
        }
    }

    /// The data-parallel group: ranks that hold the same blocks.
    pub fn comm(&self) -> &Comm {
        self.store.overlap.comm()
    }

    /// This rank's part of the pipeline.
    pub fn device(&self) -> &PipelineRank {
        &self.device
    }

    /// Number of blocks of each pipeline stage.
    pub fn blocks_by_stage(&self) -> Vec<usize> {
        let (stages, num_blocks) = (&self.plan.stages, self.blueprint.blocks.len());
        (0..stages.num_stages()).map(|stage| stages.blocks(stage, num_blocks).len()).collect()
    }

    /// Process groups of this rank.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }
}

/// For each rank, the data-parallel rank whose losses it reports: ranks of the last stage, the
/// first tensor-parallel rank of each.
fn loss_ranks(stages: &Stages, groups: &Groups) -> Vec<Option<usize>> {
    let last = (stages.num_stages() - 1) % stages.num_devices();
    let reports_loss = |rank| groups.device_of(rank) == last && groups.tp_rank_of(rank) == 0;
    let reported_part = |rank| reports_loss(rank).then(|| groups.dp_rank_of(rank));
    (0..groups.world().group_size()).map(reported_part).collect()
}

/// Norm over the trainable parameters. Exactly one rank measures each piece of a parameter: the one
/// with data-parallel rank 0 where several hold it.
fn norm_of(
    blueprint: &Blueprint,
    all: &Buckets,
    plan: &ReplicaPlan,
    groups: &Groups,
    overlap: &Overlap,
) -> Result<ShardedNorm, CommError> {
    let slots = |device: usize, part: &dyn Fn(&Bucket) -> Range<usize>| {
        let buckets = all.here(|block| plan.stages.device_of(block) == device);
        let trained = TrainableParams::new(blueprint, &buckets, &plan.phases, plan.phase);
        trained.slots(blueprint, &buckets, |bucket| part(bucket))
    };
    let slots_of = |rank| {
        let (device, part) = (groups.device_of(rank), groups.dp_rank_of(rank));
        let slots = match plan.zero {
            0 if part > 0 => Vec::new(),
            0 => slots(device, &|bucket| 0..bucket.len),
            _ => slots(device, &|bucket| bucket.part(part)),
        };
        slots_of_tp_rank(blueprint, groups.tp_rank_of(rank), slots)
    };
    let mut norm = if plan.is_replicated() {
        ShardedNorm::whole(&slots(0, &|bucket| 0..bucket.len))
    } else {
        ShardedNorm::sharded(slots_of, overlap)
    };
    if let Some(accelerator) = overlap.accelerator() {
        norm.allocate_on(&**accelerator)?;
    }
    Ok(norm)
}

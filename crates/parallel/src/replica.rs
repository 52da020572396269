//! A worker's model: parameters, gradients, and the memory that lanes pass through.
//!
//! Nothing that is computed here depends on the number of workers: initial weights are a function
//! of (seed, name, element), a lane's loss and gradients are a function of the lane and the
//! parameters, and the order in which gradients are added is that of [`crate::leaves`]. Workers
//! only divide the lanes among them, and, from ZeRO-1 on, what they keep.
//!
//! A step is: [`Replica::run_lanes`], [`Replica::finish_reduce`], [`Replica::clip`], then
//! [`Replica::step`]. A mirror (the head's copy of a tied embedding) has its own tree of sums; its
//! total is added to the owner's total once, the owner is stepped, and the copy follows. A step may
//! be left out after its sums are finished. After an error nothing of a replica can be used: parts
//! of it were in the call that failed.

use crate::buckets::{Bucket, Buckets};
use crate::footprint::Footprint;
use crate::lane::{Activations, Store};
use crate::leaves::Leaves;
use crate::losses::LaneLosses;
use crate::norm::PartedNorm;
use crate::overlap::Overlap;
use crate::recompute::RecomputePlan;
use crate::shares::Shares;
use crate::sparse::SparseTable;
use crate::store::WorkerStore;
use crate::trained::Trained;
use lockstep_comm::{Comm, CommError, Traffic};
use lockstep_model::{Blueprint, Context, Lane, LaneShape, Mode, Param, Scratch, init};
use lockstep_optim::{Clip, ClipPlan, Optimizer, Phases, Slot, Update};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::time::Duration;

/// How a model is divided among workers, and the sizes it is made for.
#[derive(Clone, Debug)]
pub struct ReplicaPlan {
    /// The shape of every lane.
    pub lane: LaneShape,
    /// How gradients are summed.
    pub leaves: Leaves,
    /// What backward computes again.
    pub recompute: RecomputePlan,
    /// The ZeRO stage: what workers keep only their part of.
    pub zero: usize,
    /// Leaves of each worker, where they are contiguous (stages 0 and 1).
    pub shares: Vec<usize>,
    /// Parameters that a bucket has at least, where there are as many.
    pub bucket_len: usize,
    /// Whether calls run beside the computation.
    pub overlap: bool,
    /// Which parameters are frozen when.
    pub phases: Phases,
    /// The phase that the run is in.
    pub phase: usize,
}

/// See the module's text.
pub struct Replica {
    pub(crate) blueprint: Blueprint,
    pub(crate) plan: ReplicaPlan,
    shares: Shares,
    pub(crate) store: WorkerStore,
    norm: PartedNorm,
    pub(crate) losses: LaneLosses,
    pub(crate) activations: Activations,
    pub(crate) d_stream: Vec<f32>,
    pub(crate) scratch: Scratch,
    /// One number of every worker, and that it is one.
    one_each: Vec<f64>,
    ones: Vec<usize>,
}

impl ReplicaPlan {
    /// Everything on one worker, nothing computed again.
    pub fn alone(lane: LaneShape, leaves: Leaves) -> Self {
        Self {
            lane,
            leaves,
            recompute: RecomputePlan::NONE,
            zero: 0,
            shares: vec![leaves.num_leaves],
            bucket_len: 0,
            overlap: false,
            phases: Phases::default(),
            phase: 0,
        }
    }

    /// Who runs which leaves.
    pub fn leaf_shares(&self) -> Shares {
        Shares::at_stage(self.zero, &self.shares)
    }
}

impl Replica {
    /// Allocates everything and fills in the initial weights. All members of `comm` do so with the
    /// same blueprint, seed and plan.
    pub fn materialize(
        blueprint: Blueprint,
        seed: u64,
        cpu: &Cpu,
        plan: ReplicaPlan,
        comm: &Comm,
        world: &World,
    ) -> Result<Self, CommError> {
        let shares = plan.leaf_shares();
        assert_eq!(shares.num_workers(), comm.num_members(), "a share for every worker");
        let addends: Vec<_> = match &shares {
            Shares::Contiguous(leaves) => leaves.clone(),
            Shares::Cyclic { num_workers } => (0..*num_workers).map(|w| w..w + 1).collect(),
        };
        let data = comm.summing(&addends, "data")?.canonical();
        let overlap = Overlap::new(data, comm.clone(), world.clone(), plan.overlap);
        let buckets = Buckets::new(&blueprint, plan.bucket_len, comm.num_members());
        let trained = Trained::new(&blueprint, &buckets, &plan.phases, plan.phase);
        let norm = norm_of(&blueprint, &buckets, &trained, plan.zero, &overlap);
        let losses = LaneLosses::new(&shares, plan.leaves, comm.position());
        let sparse = SparseTable::find(&blueprint, &trained, &shares, plan.leaves, plan.lane);
        let store =
            WorkerStore::new(buckets, plan.zero, plan.leaves, &shares, sparse, trained, overlap)?;
        let mut replica = Self {
            activations: Activations::new(&blueprint, plan.lane, plan.recompute),
            d_stream: vec![0.0; plan.lane.rows() * blueprint.max_width()],
            scratch: Scratch::new(blueprint.scratch_len(plan.lane)),
            one_each: vec![0.0; comm.num_members()],
            ones: vec![1; comm.num_members()],
            blueprint,
            plan,
            shares,
            store,
            norm,
            losses,
        };
        replica.initialize(seed, cpu)?;
        // The plan of a call is made when it comes for the first time; not in the middle of a run.
        let Self { store, one_each, ones, .. } = &mut replica;
        store.overlap.call(|comm| comm.all_gather_parts(one_each, ones))?;
        Ok(replica)
    }

    fn initialize(&mut self, seed: u64, cpu: &Cpu) -> Result<(), CommError> {
        self.fill(|param, first, values| {
            init::fill(cpu, seed, param, first, values);
            Ok(())
        })
    }

    /// Sets all parameters without anybody holding them whole: `fill` sets the elements of one from
    /// a position on, and each worker asks for what it keeps only. A mirror is asked for too.
    pub fn fill<E: From<CommError>>(
        &mut self,
        mut fill: impl FnMut(&Param, usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.store.settle()?;
        for (block, param) in self.blueprint.params() {
            let (bucket, range) = self.store.buckets.place(block, param);
            let own = self.store.own(&self.store.buckets.list[bucket]);
            let (start, end) = (range.start.max(own.start), range.end.min(own.end));
            if start < end {
                let values =
                    &mut self.store.own_params_mut(bucket)[start - own.start..end - own.start];
                fill(param, start - range.start, values)?;
            }
        }
        self.store.publish()?;
        Ok(self.store.settle()?)
    }

    /// Goes over to another phase, or to leaves of another number of lanes: gradients and what
    /// depends on their layout are made anew. All workers do so together, between two steps.
    pub fn enter(&mut self, phase: usize, lanes_per_leaf: usize) -> Result<(), CommError> {
        self.plan.phase = phase;
        self.plan.leaves.lanes_per_leaf = lanes_per_leaf;
        let Self { blueprint, plan, shares, store, .. } = self;
        let trained = Trained::new(blueprint, &store.buckets, &plan.phases, phase);
        let sparse = SparseTable::find(blueprint, &trained, shares, plan.leaves, plan.lane);
        store.renew_gradients(plan.leaves, shares, sparse, trained)?;
        let (buckets, trained) = (&store.buckets, store.trained());
        self.norm = norm_of(blueprint, buckets, trained, plan.zero, &store.overlap);
        self.losses = LaneLosses::new(shares, plan.leaves, store.overlap.comm().position());
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

    /// How many lanes each worker runs.
    pub fn lanes_by_worker(&self) -> Vec<usize> {
        let lanes = |worker| self.shares.lanes_of(worker, self.plan.leaves).len();
        (0..self.shares.num_workers()).map(lanes).collect()
    }

    /// Runs this worker's lanes of a step forward and backward and adds their gradients to their
    /// leaves; `lane` gives a lane by its number, `step` numbers dropout masks. Returns the sum of
    /// the token losses of all lanes of all workers, added in the order of lanes.
    pub fn run_lanes<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        lane: &dyn Fn(usize) -> Lane<'a>,
    ) -> Result<f64, CommError> {
        self.store.restart();
        self.store.overlap.begin_step(step);
        let mode = Mode::Train { seed, step };
        for index in 0..self.losses.num_own() {
            let lane = lane(self.losses.own_lane(index));
            assert_eq!(lane.shape, self.plan.lane, "the memory is for this shape");
            let blocks = &self.blueprint.blocks;
            let mut ctx = Context { cpu, lane: &lane, mode, scratch: &mut self.scratch };
            let loss = self.activations.forward(blocks, &mut self.store, &mut ctx)?;
            let d_stream = &mut self.d_stream;
            self.activations.backward(blocks, &mut self.store, &mut ctx, d_stream)?;
            self.losses.set_own(index, loss);
            if (index + 1).is_multiple_of(self.plan.leaves.lanes_per_leaf) {
                self.store.finish_leaf();
            }
        }
        for _ in 0..self.num_passes_without_leaf() {
            self.store.pass_over(cpu, self.plan.leaves.lanes_per_leaf)?;
        }
        self.losses.gather(&mut self.store.overlap)
    }

    /// How often the other workers run a leaf when this one has none left.
    pub(crate) fn num_passes_without_leaf(&self) -> usize {
        let Leaves { num_leaves, lanes_per_leaf } = self.plan.leaves;
        let num_passes = num_leaves.div_ceil(self.shares.num_workers());
        num_passes.saturating_sub(self.losses.num_own() / lanes_per_leaf)
    }

    /// Runs lanes forward, without dropout, divided among the workers, and returns the sum of
    /// their token losses, added in the order of lanes.
    pub fn evaluate<'a>(
        &mut self,
        cpu: &Cpu,
        num_lanes: usize,
        lane: &dyn Fn(usize) -> Lane<'a>,
    ) -> Result<f64, CommError> {
        let comm = self.store.overlap.comm();
        let (num_workers, worker) = (comm.num_members(), comm.position());
        let mut total = 0.0;
        for first in (0..num_lanes).step_by(num_workers) {
            if first + worker < num_lanes {
                let lane = lane(first + worker);
                assert_eq!(lane.shape, self.plan.lane, "the memory is for this shape");
                let mode = Mode::Evaluate;
                let mut ctx = Context { cpu, lane: &lane, mode, scratch: &mut self.scratch };
                let blocks = &self.blueprint.blocks;
                let sum = self.activations.forward(blocks, &mut self.store, &mut ctx)?;
                self.one_each[worker] = sum;
            } else {
                self.store.pass_over_forward()?;
            }
            let sums = &mut self.one_each;
            self.store.overlap.call(|comm| comm.all_gather_parts(sums, &self.ones))?;
            total = sums.iter().take(num_lanes - first).fold(total, |total, sum| total + sum);
        }
        Ok(total)
    }

    /// The logits of the lane that was evaluated last, a row per token.
    pub fn logits(&self) -> &[f32] {
        let head = self.blueprint.blocks.len() - 1;
        &self.activations.kept(head)[..self.plan.lane.rows() * self.blueprint.vocab]
    }

    /// Ends the sums of a step: all gradients of all workers are added up, and mirrors have given
    /// theirs to their owners.
    pub fn finish_reduce(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        self.store.finish_reduce(cpu)
    }

    /// The norm of the summed gradients and the scales that bring it within the limits, the same on
    /// all workers.
    pub fn clip(&mut self, cpu: &Cpu, plan: &ClipPlan) -> Result<Clip, CommError> {
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
            let (norms, num_tensors) = (optimizer.norms_mut(), blueprint.owned_params().count());
            norm.measure_params(cpu, |bucket| store.own_params(bucket));
            norm.by_name(&mut norms.params, num_tensors, &mut store.overlap)?;
            norm.measure_grads(cpu, |bucket| store.own_grads(bucket));
            norm.by_name(&mut norms.steps, num_tensors, &mut store.overlap)?;
        }
        self.store.step(cpu, optimizer, update)
    }

    /// Gives every parameter that is saved, whole, by name. All workers visit together.
    pub fn visit_params<E: From<CommError>>(
        &mut self,
        mut visit: impl FnMut(&Param, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut params: Vec<_> = self.blueprint.owned_params().collect();
        params.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        for (block, param) in params {
            self.store.fetch(block, None)?;
            visit(param, &self.store.params(block)[param.range()])?;
        }
        Ok(())
    }

    /// Gives the optimizer's state of every parameter that is trained, whole, by name, and by kind.
    /// All workers visit together.
    pub fn visit_state<E: From<CommError>>(
        &mut self,
        optimizer: &Optimizer,
        mut visit: impl FnMut(&Param, &str, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut params: Vec<_> = self.blueprint.owned_params().collect();
        params.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        params.retain(|(_, param)| self.is_trained(&param.name));
        for (block, param) in params {
            let lens = self.store.piece_lens(block, param);
            for (kind, name) in optimizer.kinds().iter().enumerate() {
                let own = optimizer.state(&param.name, kind).unwrap_or(&[]);
                if own.len() == param.len() && self.plan.zero == 0 {
                    visit(param, name, own)?;
                    continue;
                }
                let worker = self.store.overlap.comm().position();
                let start: usize = lens[..worker].iter().sum();
                let mut whole = vec![0.0; param.len()];
                whole[start..start + own.len()].copy_from_slice(own);
                self.store.overlap.call(|comm| comm.all_gather_parts(&mut whole, &lens))?;
                visit(param, name, &whole)?;
            }
        }
        Ok(())
    }

    /// Replaces all parameters; `values` gives each by name.
    pub fn restore<'a, E: From<CommError>>(
        &mut self,
        mut values: impl FnMut(&Param) -> Result<&'a [f32], E>,
    ) -> Result<(), E> {
        self.store.settle()?;
        let Self { store, blueprint, .. } = &*self;
        let slots = store.buckets.slots(blueprint, |bucket| store.own(bucket));
        for (_, param) in self.blueprint.owned_params() {
            let values = values(param)?;
            if let Some(slot) = slots.iter().find(|slot| slot.name == param.name) {
                let own = &mut self.store.own_params_mut(slot.block)[slot.range.clone()];
                own.copy_from_slice(&values[slot.first..][..slot.range.len()]);
            }
        }
        self.store.publish()?;
        Ok(self.store.settle()?)
    }

    /// Whether a parameter is trained in this phase.
    pub fn is_trained(&self, param: &str) -> bool {
        !self.plan.phases.is_frozen(self.plan.phase, param)
    }

    /// Waits until parameters that are on their way have arrived.
    pub fn settle(&mut self) -> Result<(), CommError> {
        self.store.settle()
    }

    /// What gradients and parameters have weighed on this worker's wires so far.
    pub fn traffic(&self) -> Traffic {
        self.store.overlap.comm().counters().total().traffic
    }

    /// The group of workers that share the batch.
    pub fn comm(&self) -> &Comm {
        self.store.overlap.comm()
    }

    /// The time that this worker waited for the others since this was asked last.
    pub fn take_exposed(&mut self) -> Duration {
        self.store.overlap.take_exposed()
    }

    /// The memory this replica and its optimizer hold.
    pub fn footprint(&self, optimizer: &Optimizer) -> Footprint {
        let store = self.store.footprint();
        Footprint {
            optimizer: optimizer.state_len(),
            activations: self.activations.num_elements() + self.d_stream.len(),
            buffers: store.buffers + self.scratch.len(),
            ..store
        }
    }
}

/// Measures what is trained.
fn norm_of(
    blueprint: &Blueprint,
    buckets: &Buckets,
    trained: &Trained,
    zero: usize,
    overlap: &Overlap,
) -> PartedNorm {
    let slots =
        |part: &dyn Fn(&Bucket) -> Range<usize>| trained.slots(blueprint, buckets, |b| part(b));
    match zero {
        0 => PartedNorm::whole(&slots(&|bucket| 0..bucket.len)),
        _ => PartedNorm::parted(|worker| slots(&|bucket| bucket.part(worker)), overlap),
    }
}

//! Synchronization strategies of workers that hold whole replicas.
//!
//! A strategy is a [`StrategyPlan`], which says what tasks a step of the run has, and a
//! [`Strategy`], which holds a rank's state and runs those tasks. Both are in the strategy's own
//! file ([`crate::local_sgd`], [`crate::gossip`], [`crate::compress`]); [`crate::strategies`]
//! registers them. The planner reads the plan alone.

use crate::buckets::Buckets;
use crate::groups::Groups;
use crate::measurements::{ConsensusDistance, Measurements, Topology};
use crate::param_store::ParamStore;
use crate::replica_plan::ReplicaPlan;
use crate::step_program::{StepKind, StepTasks};
use crate::task_spans::TaskSpans;
use lockstep_comm::{Comm, CommError, Counters};
use lockstep_model::{Blueprint, Microbatch};
use lockstep_optim::{Optimizer, Slot, Update};
use lockstep_platform::World;
use lockstep_schedule::step::{Program, TaskOp};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::Device;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Steps of a strategy, known before the run.
pub trait StrategyPlan: StepTasks + Send + Sync {
    /// Kind of a step; steps of one kind have the same program.
    fn kind_at(&self, step: u64) -> StepKind;

    /// Kinds of the first `steps` steps with their numbers.
    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        let mut counts = BTreeMap::new();
        (0..steps).for_each(|step| *counts.entry(self.kind_at(step)).or_insert(0) += 1);
        counts
    }

    /// Union of the kinds of the first `steps` steps.
    fn union(&self, steps: u64) -> StepKind {
        let mut all = StepKind::default();
        for kind in self.step_counts(steps).into_keys() {
            all.gradients = all.gradients.max(kind.gradients);
            all.due.extend(kind.due);
            all.servers = all.servers.or(kind.servers);
            all.federated = all.federated.or(kind.federated);
        }
        all.due.sort_unstable();
        all.due.dedup();
        all
    }

    /// Whether all ranks take each step together. Otherwise each divides its gradients by the
    /// targets of the whole batch, and decides by its own loss and gradients whether to update.
    fn steps_together(&self) -> bool {
        true
    }

    /// Whether workers hold the optimizer state.
    fn holds_optimizer_state(&self) -> bool {
        true
    }

    /// Programs of ranks and threads that are not workers with a replica of their own.
    fn other_programs(
        &self,
        _plan: &ReplicaPlan,
        _blueprint: &Blueprint,
        _kind: &StepKind,
    ) -> Vec<Program> {
        Vec::new()
    }

    /// Allocates the state of a rank. Collective over the workers.
    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError>;
}

/// State of a strategy on one rank.
pub trait Strategy: Send {
    /// Prepares for a step.
    fn begin_step(&mut self, _at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        Ok(())
    }

    /// Runs passes in a model of the strategy, if the step has them there; returns whether it has.
    fn run_passes(&mut self, _passes: &Passes<'_, '_>) -> Result<bool, CommError> {
        Ok(false)
    }

    /// Runs one of the strategy's tasks.
    fn run(&mut self, cpu: &Cpu, op: TaskOp, at: &mut StrategyContext<'_>)
    -> Result<(), CommError>;

    /// Loss of the step, where the strategy gathers it.
    fn loss(&self) -> Option<StepLoss> {
        None
    }

    /// Micro-batches of a client in a step, where each client divides its gradients by its own
    /// number of targets.
    fn microbatches_per_client(&self) -> Option<usize> {
        None
    }

    /// Gives every rank the mean of all ranks' weights, where they have their own. Collective.
    fn install_mean(&mut self, _at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        Ok(())
    }

    /// Gives every rank its own weights back.
    fn restore_own(&mut self, _at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        Ok(())
    }

    /// Resumes after `num_steps` steps from the state that [`Self::visit`] has restored.
    fn resume(&mut self, _num_steps: u64, _at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        Ok(())
    }

    /// Visits the state of a checkpoint, to save or to restore it: the name of each tensor,
    /// whether it is this rank's own or equal on all ranks, and its values. Ends early where
    /// `visit` returns false.
    fn visit(
        &mut self,
        at: &StateLayout<'_>,
        visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool,
    );

    /// Visits state that may move to other ranks when a run resumes: the name of each tensor,
    /// whether this rank saves it, and its values. Ends early where `visit` returns false.
    fn visit_movable(&mut self, _visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool) {}

    /// Calls of this rank, and the bytes that it has sent.
    fn counters(&self) -> Counters;

    /// Numbers of elements held: of optimizer state, and of buffers.
    fn num_elements(&self) -> [usize; 2];

    /// Takes what was measured in the last step.
    fn take_measurements(&mut self) -> Measurements {
        Measurements::default()
    }

    /// Number of this rank's gradients by staleness, where gradients may be stale.
    fn staleness(&self) -> Option<&BTreeMap<u64, u64>> {
        None
    }

    /// Consensus distance when the mean was installed last.
    fn consensus(&self) -> Option<ConsensusDistance> {
        None
    }

    /// Graph on which ranks average with neighbors.
    fn topology(&self) -> Option<Topology> {
        None
    }
}

/// Called before a micro-batch with its number and a function that tells whether the step is over.
pub type BeforeMicrobatch<'a> = dyn Fn(usize, &dyn Fn() -> bool) + 'a;

/// Passes of some micro-batches.
pub struct Passes<'a, 'l> {
    /// Compute device.
    pub cpu: &'a Cpu,
    /// Seed of the run, and the step, which select dropout masks.
    pub seed: u64,
    /// Step that runs.
    pub step: u64,
    /// Program of the step.
    pub program: &'a Program,
    /// Its tasks to run.
    pub tasks: Range<u32>,
    /// Returns a micro-batch by its number in the batch.
    pub microbatch: &'a dyn Fn(usize) -> Microbatch<'l>,
    /// Called before each micro-batch.
    pub before_microbatch: &'a BeforeMicrobatch<'a>,
    pub(crate) spans: &'a TaskSpans,
}

/// Loss of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLoss {
    /// Sum of the token losses.
    pub sum: f64,
    /// Number of targets that it covers, where that is not the number of the batch.
    pub num_targets: Option<f64>,
    /// Norm of the gradients, where no task of the step measures it.
    pub norm: Option<f64>,
}

/// A replica on which a strategy starts.
pub struct StrategyStart<'a> {
    /// Process groups of the rank.
    pub groups: &'a Groups,
    /// Plan of the replica.
    pub plan: &'a ReplicaPlan,
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Buckets of the model.
    pub buckets: &'a Buckets,
    /// Clocks and threads.
    pub world: &'a World,
    pub(crate) store: &'a ParamStore,
}

impl StrategyStart<'_> {
    /// Accelerator that runs the blocks; `None` where the CPU does.
    pub fn accelerator(&self) -> Option<&Arc<dyn Device>> {
        self.store.overlap.accelerator()
    }

    /// Slots that this rank's optimizer steps.
    pub fn slots(&self) -> Vec<Slot> {
        let Self { store, blueprint, .. } = self;
        store.trained().slots(blueprint, &store.buckets, |bucket| store.own(bucket))
    }

    /// Copies all parameters to a flat vector; `places` has the range of each tensor.
    pub(crate) fn read_params(&self, places: &BTreeMap<String, Range<usize>>, into: &mut [f32]) {
        read_params(self.store, self.blueprint, places, into);
    }
}

fn read_params(
    store: &ParamStore,
    blueprint: &Blueprint,
    places: &BTreeMap<String, Range<usize>>,
    into: &mut [f32],
) {
    for (block, param) in blueprint.tensors() {
        let (bucket, range) = store.buckets.place(block, param);
        into[places[&param.name].clone()].copy_from_slice(&store.own_params(bucket)[range]);
    }
}

/// Part of a replica that a strategy's task works on.
pub struct StrategyContext<'a> {
    /// Step that runs.
    pub step: u64,
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Optimizer, where the step has one.
    pub optimizer: Option<&'a mut Optimizer>,
    /// Update that was decided on, once it was.
    pub update: Option<Update>,
    pub(crate) store: &'a mut ParamStore,
}

impl StrategyContext<'_> {
    /// Buckets of parameters.
    pub fn buckets(&self) -> &Buckets {
        &self.store.buckets
    }

    /// Parameters of a bucket.
    pub fn params_mut(&mut self, bucket: usize) -> &mut [f32] {
        self.store.own_params_mut(bucket)
    }

    /// Slots that this rank's optimizer steps.
    pub fn slots(&self) -> Vec<Slot> {
        let Self { store, blueprint, .. } = self;
        store.trained().slots(blueprint, &store.buckets, |bucket| store.own(bucket))
    }

    /// Sets all parameters, tied copies included, from a flat vector; `places` has the range of
    /// each tensor.
    pub(crate) fn set_params(&mut self, places: &BTreeMap<String, Range<usize>>, from: &[f32]) {
        for (block, param) in self.blueprint.params() {
            let (bucket, range) = self.store.buckets.place(block, param);
            let name = param.mirror_of.as_ref().unwrap_or(&param.name);
            self.store.own_params_mut(bucket)[range].copy_from_slice(&from[places[name].clone()]);
        }
    }

    /// Copies all parameters to a flat vector.
    pub(crate) fn read_params(&self, places: &BTreeMap<String, Range<usize>>, into: &mut [f32]) {
        read_params(self.store, self.blueprint, places, into);
    }

    /// Makes a call of the few numbers that steer a run, among all ranks.
    pub fn control<R>(
        &mut self,
        call: impl FnOnce(&Comm) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        self.store.overlap.call(call)
    }
}

/// Names and places of the parameters in a strategy's state.
pub struct StateLayout<'a> {
    /// Model.
    pub blueprint: &'a Blueprint,
    /// Buckets of parameters.
    pub buckets: &'a Buckets,
}

/// Gradients stay on each rank, for something else to exchange.
pub(crate) struct KeepGradients;

impl StepTasks for KeepGradients {}

impl StrategyPlan for KeepGradients {
    fn kind_at(&self, _step: u64) -> StepKind {
        StepKind::local()
    }

    fn start(&self, _at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(None)
    }
}

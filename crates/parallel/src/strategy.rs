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
use lockstep_comm::{Comm, CommError, Traffic};
use lockstep_model::Blueprint;
use lockstep_optim::{Optimizer, Slot};
use lockstep_schedule::step::TaskOp;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;

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

    /// Whether [`crate::Replica::run_step`] runs the programs.
    fn is_interpreted(&self) -> bool {
        true
    }

    /// Allocates the state of a rank. Collective over the workers.
    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError>;
}

/// State of a strategy on one rank.
pub trait Strategy: Send {
    /// Prepares for a step.
    fn begin_step(&mut self, _at: &mut StrategyContext<'_>) {}

    /// Runs one of the strategy's tasks.
    fn run(&mut self, cpu: &Cpu, op: TaskOp, at: &mut StrategyContext<'_>)
    -> Result<(), CommError>;

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

    /// Bytes that this rank has sent.
    fn traffic(&self) -> Traffic;

    /// Numbers of elements held: of optimizer state, and of buffers.
    fn num_elements(&self) -> [usize; 2];

    /// Takes what was measured in the last step.
    fn take_measurements(&mut self) -> Measurements {
        Measurements::default()
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
    pub(crate) store: &'a ParamStore,
}

impl StrategyStart<'_> {
    /// Slots that this rank's optimizer steps.
    pub fn slots(&self) -> Vec<Slot> {
        let Self { store, blueprint, .. } = self;
        store.trained().slots(blueprint, &store.buckets, |bucket| store.own(bucket))
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

    /// Reduced or local gradients of a bucket.
    pub fn grads_mut(&mut self, bucket: usize) -> &mut [f32] {
        self.store.own_grads_mut(bucket)
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

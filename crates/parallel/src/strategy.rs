//! Synchronization strategies of workers that hold whole replicas.
//!
//! A strategy is a [`StrategyPlan`], which says what tasks a step of the run has, and a
//! [`Strategy`], which holds a rank's state and runs those tasks. Both are in the strategy's own
//! file ([`crate::local_sgd`], [`crate::gossip`], [`crate::compress`]); [`plan_of`] registers them.
//! The planner reads the plan alone.

use crate::buckets::Buckets;
use crate::compress::{CompressedExchange, CompressionStats};
use crate::gossip::{ConsensusDistance, GossipPlan};
use crate::local_sgd::{Drift, LocalSgdPlan};
use crate::param_store::ParamStore;
use crate::replica::Replica;
use crate::step_program::{FederatedStep, ServerStep, StepBuilder, StepKind};
use lockstep_comm::{Comm, CommError, Traffic};
use lockstep_config::{Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_optim::Optimizer;
use lockstep_schedule::step::{BufferId, TaskOp};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;

/// Tasks of a strategy, known before the run.
pub trait StrategyPlan: Send + Sync {
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

    /// Adds what happens between the reduction of gradients and their norm.
    fn add_exchange(&self, _kind: &StepKind, _step: &mut StepBuilder<'_>, _grads: &[BufferId]) {}

    /// Adds what happens after the update.
    fn add_after_update(&self, _kind: &StepKind, _step: &mut StepBuilder<'_>) {}

    /// Whether [`Replica::run_step`] runs the programs.
    fn is_interpreted(&self) -> bool {
        true
    }

    /// Allocates the state of a rank. Collective over the workers.
    fn start(&self, replica: &Replica) -> Result<Option<Box<dyn Strategy>>, CommError>;
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

/// Graph on which ranks average with neighbors.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Name in recipes.
    pub name: String,
    /// Largest number of neighbors of a rank.
    pub max_degree: usize,
    /// 1 minus the rate at which disagreement shrinks per step.
    pub spectral_gap: f64,
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

/// What a strategy measured in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Distance of replicas at the end of a round.
    pub drift: Option<Drift>,
    /// Compression of the gradients.
    pub compression: Option<CompressionStats>,
}

/// Gradients are reduced over all ranks in every step, and nothing else.
struct AllReduce;

impl StrategyPlan for AllReduce {
    fn kind_at(&self, _step: u64) -> StepKind {
        StepKind::reduce()
    }

    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        BTreeMap::from([(StepKind::reduce(), steps)])
    }

    fn start(&self, _replica: &Replica) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(None)
    }
}

/// Gradients stay on each rank, for something else to exchange.
pub(crate) struct KeepGradients;

impl StrategyPlan for KeepGradients {
    fn kind_at(&self, _step: u64) -> StepKind {
        StepKind::local()
    }

    fn start(&self, _replica: &Replica) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(None)
    }
}

/// Parameter servers, federated clients or Hogwild's threads. They step outside
/// [`Replica::run_step`]; their programs serve the planner and the proof.
struct OwnLoop(Recipe);

impl StrategyPlan for OwnLoop {
    fn kind_at(&self, step: u64) -> StepKind {
        let (recipe, local) = (&self.0, StepKind::local());
        match recipe.sync.mode {
            SyncMode::ParameterServer => {
                StepKind { servers: Some(ServerStep::at(recipe, step)), ..local }
            }
            SyncMode::Federated => {
                StepKind { federated: Some(FederatedStep::at(recipe, step)), ..local }
            }
            _ => local,
        }
    }

    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        let (recipe, local) = (&self.0, StepKind::local);
        match recipe.sync.mode {
            SyncMode::ParameterServer => {
                let kind = |step| StepKind { servers: Some(step), ..local() };
                let steps = ServerStep::of_run(recipe).into_iter();
                steps.map(|(step, count)| (kind(step), count)).collect()
            }
            SyncMode::Federated => {
                let kind = |step| StepKind { federated: Some(step), ..local() };
                let steps = FederatedStep::of_run(recipe).into_iter();
                steps.map(|(step, count)| (kind(step), count)).collect()
            }
            _ => BTreeMap::from([(local(), steps)]),
        }
    }

    fn is_interpreted(&self) -> bool {
        false
    }

    fn start(&self, _replica: &Replica) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(None)
    }
}

/// Strategy of a recipe's workers.
pub fn plan_of(recipe: &Recipe) -> Box<dyn StrategyPlan> {
    match recipe.sync.mode {
        SyncMode::LocalSgd => Box::new(LocalSgdPlan::new(recipe)),
        SyncMode::Gossip => Box::new(GossipPlan::new(recipe)),
        SyncMode::AllReduce if recipe.compress.is_on() => Box::new(CompressedExchange::new(recipe)),
        SyncMode::AllReduce => Box::new(AllReduce),
        SyncMode::ParameterServer | SyncMode::Federated | SyncMode::Hogwild => {
            Box::new(OwnLoop(recipe.clone()))
        }
    }
}

impl Replica {
    /// Adopts a strategy. Collective, before the first step; every rank holds the whole model
    /// unless all that the strategy does is to reduce gradients.
    pub fn adopt(&mut self, plan: Box<dyn StrategyPlan>) -> Result<(), CommError> {
        if !plan.is_interpreted() {
            return Ok(());
        }
        self.strategy = plan.start(self)?;
        assert!(
            self.strategy.is_none() || self.plan.is_replicated(),
            "the strategy requires a whole replica on each rank"
        );
        self.programs.adopt(plan);
        Ok(())
    }

    /// Whether the gradients of a step stay on this rank, so that ranks update by their own.
    pub fn is_local_step(&self, step: u64) -> bool {
        self.programs.kind_at(step).is_local()
    }

    /// Runs something with the strategy, if there is one.
    pub(crate) fn with_strategy<R>(
        &mut self,
        step: u64,
        optimizer: Option<&mut Optimizer>,
        run: impl FnOnce(&mut dyn Strategy, &mut StrategyContext<'_>) -> R,
    ) -> Option<R> {
        let Self { strategy, blueprint, store, .. } = self;
        let mut at = StrategyContext { step, blueprint, optimizer, store };
        strategy.as_deref_mut().map(|strategy| run(strategy, &mut at))
    }

    /// Installs the mean of all ranks' weights, where they have their own, until
    /// [`Self::restore_own_weights`]. Collective.
    pub fn install_mean_weights(&mut self) -> Result<(), CommError> {
        match self.with_strategy(0, None, |strategy, at| strategy.install_mean(at)) {
            Some(done) => done.and_then(|()| self.store.publish(&mut self.device.link)),
            None => Ok(()),
        }
    }

    /// Restores every rank's own weights.
    pub fn restore_own_weights(&mut self) -> Result<(), CommError> {
        match self.with_strategy(0, None, |strategy, at| strategy.restore_own(at)) {
            Some(done) => done.and_then(|()| self.store.publish(&mut self.device.link)),
            None => Ok(()),
        }
    }

    /// Resumes the strategy after `num_steps` steps from its restored state.
    pub fn resume_strategy(
        &mut self,
        num_steps: u64,
        optimizer: &mut Optimizer,
    ) -> Result<(), CommError> {
        let resume = |strategy: &mut dyn Strategy, at: &mut StrategyContext<'_>| {
            strategy.resume(num_steps, at)
        };
        match self.with_strategy(num_steps, Some(optimizer), resume) {
            Some(done) => done.and_then(|()| self.store.publish(&mut self.device.link)),
            None => Ok(()),
        }
    }

    /// Visits the strategy's checkpoint state ([`Strategy::visit`]).
    pub fn visit_strategy<E>(
        &mut self,
        mut visit: impl FnMut(&str, bool, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { strategy: Some(strategy), blueprint, store, .. } = self else { return Ok(()) };
        let mut result = Ok(());
        let at = StateLayout { blueprint, buckets: &store.buckets };
        strategy.visit(&at, &mut |name, is_own, values| {
            result = visit(name, is_own, values);
            result.is_ok()
        });
        result
    }

    /// Takes what the strategy measured in the last step.
    pub fn take_measurements(&mut self) -> Measurements {
        self.strategy.as_mut().map_or(Measurements::default(), |it| it.take_measurements())
    }

    /// Consensus distance when the mean was installed last.
    pub fn consensus(&self) -> Option<ConsensusDistance> {
        self.strategy.as_ref()?.consensus()
    }

    /// Graph on which ranks average with neighbors, if they do.
    pub fn topology(&self) -> Option<Topology> {
        self.strategy.as_ref()?.topology()
    }
}

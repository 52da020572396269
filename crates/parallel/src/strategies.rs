//! Registration of synchronization strategies, and the steps of a recipe's run.

use crate::compress::CompressedExchange;
use crate::gossip::GossipPlan;
use crate::local_sgd::LocalSgdPlan;
use crate::replica_plan::ReplicaPlan;
use crate::step_program::parameter_server::{
    ServerPlan, server_program, tokens_by_worker, worker_program,
};
use crate::step_program::{
    FederatedStep, RankPlan, ServerStep, StepKind, StepTasks, federated_program, hold_reductions,
    thread_program,
};
use crate::strategy::{Strategy, StrategyPlan, StrategyStart};
use lockstep_comm::CommError;
use lockstep_config::{Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_schedule::step::Program;
use std::collections::BTreeMap;

/// Gradients are reduced over all ranks in every step, and nothing else.
struct AllReduce;

impl StepTasks for AllReduce {}

impl StrategyPlan for AllReduce {
    fn kind_at(&self, _step: u64) -> StepKind {
        StepKind::reduce()
    }

    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        BTreeMap::from([(StepKind::reduce(), steps)])
    }

    fn start(&self, _at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(None)
    }
}

/// Parameter servers, federated clients or Hogwild's threads. They step outside
/// [`crate::Replica::run_step`]; their programs serve the planner and the proof.
struct OwnLoop(Recipe);

impl StepTasks for OwnLoop {}

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

    fn start(&self, _at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
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

impl StepKind {
    /// Kind of a step of a recipe.
    pub fn at(recipe: &Recipe, step: u64) -> Self {
        plan_of(recipe).kind_at(step)
    }

    /// Kinds of a run's steps with their numbers.
    pub fn of_run(recipe: &Recipe) -> BTreeMap<Self, u64> {
        plan_of(recipe).step_counts(recipe.train.steps.max(1))
    }

    /// Union of all kinds of a run's steps.
    pub fn all_of(recipe: &Recipe) -> Self {
        plan_of(recipe).union(recipe.train.steps.max(1))
    }
}

impl RankPlan<'_> {
    /// Program of a training step of some kind of a recipe's run.
    pub fn training_of(&self, recipe: &Recipe, kind: &StepKind) -> Program {
        if let Some(step) = kind.servers {
            return worker_program(self, recipe, step);
        }
        if let Some(step) = &kind.federated {
            return federated_program(self, recipe, step);
        }
        if recipe.sync.mode == SyncMode::Hogwild {
            return thread_program(recipe, self.plan(), self.blueprint(), 0);
        }
        let program = self.training_with(&*plan_of(recipe), kind);
        if kind.is_reduced() && recipe.sync.stragglers.policy.leaves_out() {
            return hold_reductions(&program);
        }
        program
    }
}

/// Programs of all ranks in a step of a recipe: workers, then parameter servers; with Hogwild,
/// threads.
pub fn programs(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    kind: &StepKind,
) -> Vec<Program> {
    let worker = |rank| RankPlan::new(plan, blueprint, rank).training_of(recipe, kind);
    let mut all: Vec<Program> = (0..plan.mesh.num_ranks()).map(worker).collect();
    if let Some(step) = kind.servers {
        let tokens = tokens_by_worker(&RankPlan::new(plan, blueprint, 0));
        let servers = ServerPlan::new(recipe, blueprint, step, &tokens);
        let numbers = 0..recipe.num_server_ranks();
        all.extend(numbers.map(|number| server_program(&servers, number)));
    }
    if recipe.sync.mode == SyncMode::Hogwild {
        let thread = |thread| thread_program(recipe, plan, blueprint, thread);
        all.extend((1..recipe.sync.threads).map(thread));
    }
    all
}

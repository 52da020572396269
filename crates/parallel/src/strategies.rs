//! Registration of synchronization strategies: steps, ranks and figures of a recipe's run.

use crate::compress::CompressedExchange;
use crate::federated::FederatedRounds;
use crate::gossip::GossipPlan;
use crate::hogwild::{HogwildThreads, ThreadPool};
use crate::local_sgd::{LocalSgdPlan, auto_steps};
use crate::parameter_server::{self, PullPushPlan};
use crate::replica_plan::ReplicaPlan;
use crate::step_program::{RankPlan, StepKind, StepTasks, hold_reductions};
use crate::strategy::{Strategy, StrategyPlan, StrategyStart};
use crate::sync_strategy::{Role, Together, TrainingHost};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_platform::World;
use lockstep_schedule::step::Program;
use lockstep_tensor::device::Compute;
use std::borrow::Cow;
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

/// Strategy of a recipe's workers.
pub fn plan_of(recipe: &Recipe) -> Box<dyn StrategyPlan> {
    match recipe.sync.mode {
        SyncMode::LocalSgd => Box::new(LocalSgdPlan::new(recipe)),
        SyncMode::Gossip => Box::new(GossipPlan::new(recipe)),
        SyncMode::ParameterServer => Box::new(PullPushPlan::new(recipe)),
        SyncMode::Federated => Box::new(FederatedRounds::new(recipe)),
        SyncMode::Hogwild => Box::new(HogwildThreads::new(recipe)),
        SyncMode::AllReduce if recipe.compress.is_on() => Box::new(CompressedExchange::new(recipe)),
        SyncMode::AllReduce => Box::new(AllReduce),
    }
}

/// Joins the run of a recipe with one of its ranks. Collective.
pub fn join<H: TrainingHost>(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
) -> Result<Role<H>, CommError> {
    let workers = comm.clone();
    match recipe.sync.mode {
        SyncMode::ParameterServer => parameter_server::join(recipe, world, comm),
        SyncMode::Hogwild => Ok(Role::Worker { strategy: Box::new(ThreadPool::new()), workers }),
        SyncMode::AllReduce | SyncMode::LocalSgd | SyncMode::Gossip | SyncMode::Federated => {
            Ok(Role::Worker { strategy: Box::new(Together), workers })
        }
    }
}

/// Whether the strategy of a recipe describes the model a second time, so that it trains model
/// families only.
pub fn needs_family(recipe: &Recipe) -> bool {
    let mode = recipe.sync.mode;
    matches!(mode, SyncMode::ParameterServer | SyncMode::Hogwild | SyncMode::Federated)
}

/// Recipe with the settings that an earlier attempt has chosen; `earlier` returns its recipe.
pub fn with_chosen_settings(
    recipe: &Recipe,
    earlier: impl FnOnce() -> Option<Recipe>,
) -> Cow<'_, Recipe> {
    auto_steps::with_recorded_steps(recipe, earlier)
}

/// Recipe with the settings that its strategy chooses by measurements at the start, and a notice
/// about the choice; `earlier` returns the recipe of an earlier attempt. Collective.
pub fn choose_settings<'a>(
    recipe: &'a Recipe,
    earlier: impl FnOnce() -> Option<Recipe>,
    world: &World,
    compute: &Compute,
    comm: &Comm,
) -> Result<(Cow<'a, Recipe>, Option<String>), CommError> {
    auto_steps::choose_steps(recipe, earlier, world, compute, comm)
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
    all.extend(plan_of(recipe).other_programs(plan, blueprint, kind));
    all
}

//! Memory of synchronization strategies besides the replica: anchors and outer momentum of local
//! SGD, messages of gossip, residuals of compression, clients of federated learning, threads of
//! Hogwild, shards of parameter servers.

use crate::traffic::StepKind;
use lockstep_config::{Consistency, FederatedMethod, Outer, Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_parallel::compress::exchange_plan;
use lockstep_parallel::federated::server_optimizer;
use lockstep_parallel::gossip::mixer::Mixer;
use lockstep_parallel::step_program::RankPlan;
use lockstep_parallel::{
    Footprint, Leaves, ReplicaPlan, from_recipe, params_of_fragment, strategies,
};
use lockstep_schedule::step::{Buffer, Contents, Program};

/// Extra elements of a worker: of an outer optimizer, and of everything else.
pub(super) fn extra_elements(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    worker: usize,
) -> [usize; 2] {
    match recipe.sync.mode {
        SyncMode::AllReduce if recipe.compress.is_on() => {
            [0, of_compression(recipe, plan, blueprint, worker)]
        }
        SyncMode::AllReduce => [0, 0],
        SyncMode::LocalSgd => of_local_sgd(recipe, plan, blueprint),
        SyncMode::Gossip => [0, of_gossip(recipe, plan, blueprint, worker)],
        SyncMode::Federated => of_federation(recipe, plan, blueprint, worker),
        SyncMode::Hogwild => [0, of_threads(recipe, plan, blueprint)],
        SyncMode::ParameterServer => [0, of_pushes(recipe, plan, blueprint, worker)],
    }
}

fn of_compression(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    worker: usize,
) -> usize {
    let Some(exchange) = exchange_plan(recipe, plan, blueprint) else { return 0 };
    let group = recipe.compress.group_workers.max(1);
    if worker.is_multiple_of(group) {
        return exchange.num_elements(recipe.train.steps.saturating_sub(1));
    }
    // Only the first rank of a group compresses; the others sum and receive.
    3 * exchange.num_params()
}

fn of_local_sgd(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint) -> [usize; 2] {
    let buckets = plan.buckets(blueprint);
    let outer = if recipe.sync.outer == Outer::Nesterov { buckets.num_params() } else { 0 };
    let fragments = (0..recipe.sync.fragments).filter(|_| recipe.sync.fragments > 1);
    let longest = fragments.filter_map(|n| fragment_len(recipe, blueprint, n)).max().unwrap_or(0);
    // Weights at the start of the round, and the mean change in transfer.
    [outer, buckets.num_params() + buckets.max_len().max(longest)]
}

/// Parameters of a fragment, if not empty.
fn fragment_len(recipe: &Recipe, blueprint: &Blueprint, fragment: usize) -> Option<usize> {
    let params = params_of_fragment(blueprint, fragment, recipe.sync.fragments);
    let len: usize = params.map(|(_, param)| param.len()).sum();
    (len > 0).then_some(len)
}

fn of_gossip(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint, worker: usize) -> usize {
    let (buckets, graph) = (plan.buckets(blueprint), from_recipe::graph_from_recipe(recipe));
    let (params, longest) = (buckets.num_params(), buckets.max_len());
    // The worker's own weights during evaluation of the mean, and that mean in transfer.
    let evaluation = params + 2 * longest;
    if recipe.sync.has_byzantine_settings() {
        let num_neighbors =
            graph.in_neighbors(0, worker).iter().filter(|(from, _)| *from != worker);
        let num_neighbors = num_neighbors.count();
        // Weights before, as sent and as mixed; of each neighbour its weights and their change, and
        // the worker's own change.
        return evaluation + (3 + 2 * num_neighbors + 1) * params;
    }
    let biased = if graph.is_directed() { params } else { 0 };
    evaluation + biased + Mixer::planned_len(&graph, worker, longest)
}

/// The model of clients that take turns, the weights and optimizers of a round's clients, and the
/// coordinator's state.
fn of_federation(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    worker: usize,
) -> [usize; 2] {
    let keys = &recipe.federated;
    let params = blueprint.num_params();
    let leaf = recipe.num_microbatches() / keys.sampled;
    let alone = held_alone(recipe, plan, blueprint, leaf);
    let (turns, state) = (alone.total() - alone.optimizer, alone.optimizer);
    let steps = StepKind::of_run(recipe).into_keys();
    let num_active = steps.filter_map(|kind| Some(kind.federated?.clients[worker])).max();
    let num_active = num_active.unwrap_or(0);
    let (is_coordinator, is_scaffold) = (worker == 0, keys.method == FederatedMethod::Scaffold);
    let moments = server_optimizer::num_moments(keys.server);
    let of_coordinator = |number: usize| if is_coordinator { number } else { 0 };
    let delayed = if keys.late_fraction > 0.0 { keys.max_delay_rounds as usize } else { 0 };
    // Masked updates have eight bytes an element.
    let width = if keys.secure_aggregation { 2 } else { 1 };
    let masked = if keys.secure_aggregation { width * num_active } else { 0 };
    let controls = recipe.clients_by_worker()[worker] + 1 + num_active;
    // Global weights and their change; what clients hold; what the coordinator receives.
    let vectors = 2
        + num_active
        + masked
        + if is_scaffold { controls } else { 0 }
        + of_coordinator(keys.sampled * (delayed + width));
    [num_active * state + of_coordinator(moments) * params, turns + vectors * params]
}

/// Shared weights, and of each thread a model of its own and the weights that it read.
fn of_threads(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint) -> usize {
    let threads = recipe.sync.threads;
    let leaf = recipe.num_microbatches() / threads;
    let alone = held_alone(recipe, plan, blueprint, leaf);
    let each = alone.total() - alone.optimizer + blueprint.num_params();
    blueprint.num_params() + threads * each
}

/// Memory of a replica of one rank with one leaf.
fn held_alone(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    microbatches_per_leaf: usize,
) -> Footprint {
    let leaves = Leaves { num_leaves: 1, microbatches_per_leaf };
    let alone = ReplicaPlan {
        recompute: plan.recompute,
        ..ReplicaPlan::single_rank(plan.microbatch, leaves)
    };
    Footprint::plan(blueprint, &alone, recipe.optim.name, 0)
}

/// Residuals and messages of compressed pushes.
fn of_pushes(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint, worker: usize) -> usize {
    if !recipe.compress.is_on() {
        return 0;
    }
    let residual = if recipe.compress.error_feedback { blueprint.num_params() } else { 0 };
    let place = RankPlan::new(plan, blueprint, worker);
    let program = place.training_of(recipe, &StepKind::at(recipe, 0));
    let encoded =
        program.buffers.iter().filter(|it| matches!(it.contents, Contents::Encoded { .. }));
    let bytes: u64 = encoded.map(|it| it.len).sum();
    residual + (bytes as usize).div_ceil(size_of::<f32>())
}

/// Elements of each parameter server's weights, of gradients that wait for their update, and of
/// optimizer state.
pub(super) fn server_elements(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
) -> Vec<[usize; 3]> {
    if recipe.num_servers() == 0 {
        return Vec::new();
    }
    let keys = &recipe.sync.server;
    // A synchronous update waits for all pushes; an asynchronous one takes each.
    let waiting = match keys.consistency {
        Consistency::Sync | Consistency::Elastic => recipe.num_pushers(),
        Consistency::Async | Consistency::Bounded => 1,
    };
    let programs = strategies::programs(recipe, plan, blueprint, &StepKind::at(recipe, 0));
    let of_server = |program: &Program| {
        let kept = program.buffers.iter().filter(|buffer| buffer.is_persistent);
        let is_state = |it: &&Buffer| matches!(it.contents, Contents::OptimizerState { .. });
        let (state, weights): (Vec<&Buffer>, Vec<&Buffer>) = kept.partition(is_state);
        let [state, weights] = [state, weights]
            .map(|all: Vec<&Buffer>| all.iter().map(|it| it.len as usize).sum::<usize>());
        [weights * (1 + keys.read_delay as usize), weights * waiting, state]
    };
    programs[recipe.run.workers..].iter().map(of_server).collect()
}

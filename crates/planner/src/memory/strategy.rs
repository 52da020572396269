//! Memory of synchronization strategies besides the replica: anchors and outer momentum of local
//! SGD, messages of gossip, residuals of compression.

use lockstep_config::{Outer, Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_parallel::compress::exchange_plan;
use lockstep_parallel::gossip::mixer::Mixer;
use lockstep_parallel::{ReplicaPlan, from_recipe, params_of_fragment};

/// Extra elements of a worker: of an outer optimizer, and of everything else.
pub(crate) fn extra_elements(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    worker: usize,
) -> [usize; 2] {
    let last = recipe.train.steps.saturating_sub(1);
    if recipe.compress.is_on() && recipe.sync.mode == SyncMode::AllReduce {
        let exchange = exchange_plan(recipe, plan, blueprint);
        return [0, exchange.map_or(0, |exchange| exchange.num_elements(last))];
    }
    let buckets = plan.buckets(blueprint);
    if recipe.sync.mode == SyncMode::Gossip {
        let graph = from_recipe::graph_from_recipe(recipe);
        // The worker's own weights during evaluation of the mean, that mean, and messages sent and
        // received.
        let copies = 1 + usize::from(graph.is_directed());
        let longest = buckets.max_len();
        let besides = 2 * longest + Mixer::planned_len(&graph, worker, longest);
        return [0, copies * buckets.num_params() + besides];
    }
    if recipe.sync.mode != SyncMode::LocalSgd {
        return [0, 0];
    }
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

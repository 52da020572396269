//! Sync pattern of each step: all-reduce of gradients, local SGD, gossip, compressed exchange.
//!
//! In most runs workers all-reduce gradients in every step. Local steps communicate nothing. At the
//! end of a round all workers average their weight changes, bucket by bucket; before that, groups
//! of workers may average among themselves, or all of them a fragment of the model. Compressed
//! gradients are exchanged after the step, once a warm-up is over. Some gossip graphs change from
//! step to step. A forecast therefore reports the mean step: each pattern is counted once, with its
//! frequency.

use super::call::{Call, GroupCalls, Lengths, Message, StepCalls};
use lockstep_config::units::Bytes;
use lockstep_config::{Outer, Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_parallel::compress::{ExchangePlan, Method, PlannedCall};
use lockstep_parallel::gossip::mixer::Mixer;
use lockstep_parallel::{Graph, ReplicaPlan, from_recipe, params_of_fragment};
use lockstep_schedule::{Contributions, Op};
use std::collections::BTreeMap;
use std::ops::Range;

/// Communication of workers in a step, and after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SyncPattern {
    /// All-reduce of gradients.
    pub gradients: bool,
    /// End of a round of local SGD.
    pub round: bool,
    /// Average within groups of workers.
    pub local_group: bool,
    /// Fragments of the model that are averaged.
    pub fragments: Vec<usize>,
    /// Exchange of gradients, compressed as in this step.
    pub compressed: Option<u64>,
    /// Gossip of weights with the neighbours of this step.
    pub gossip: Option<u64>,
}

/// Whether workers synchronize in rounds.
fn has_rounds(recipe: &Recipe) -> bool {
    recipe.sync.mode == SyncMode::LocalSgd
}

/// Whether gradients are compressed in a step.
fn is_compressed(recipe: &Recipe, step: u64) -> bool {
    recipe.sync.mode == SyncMode::AllReduce && recipe.compress.is_on_in(step)
}

/// Gossip graph of the workers, if any.
fn graph_of(recipe: &Recipe) -> Option<Graph> {
    (recipe.sync.mode == SyncMode::Gossip).then(|| from_recipe::graph_from_recipe(recipe))
}

/// Step from which on the compression is constant: a ratio that falls makes earlier steps differ.
fn steady_from(recipe: &Recipe) -> u64 {
    match from_recipe::method_of(recipe) {
        Some(Method::Dgc { warmup_steps, .. }) => warmup_steps,
        _ => 0,
    }
}

/// All-reduce of gradients, and nothing else.
fn gradients() -> SyncPattern {
    SyncPattern { gradients: true, ..SyncPattern::default() }
}

/// Sync pattern of a step.
pub fn sync_pattern_at(recipe: &Recipe, step: u64) -> SyncPattern {
    if let Some(graph) = graph_of(recipe) {
        return SyncPattern {
            gossip: Some(step % graph.period() as u64),
            ..SyncPattern::default()
        };
    }
    if is_compressed(recipe, step) {
        return SyncPattern {
            compressed: Some(step.min(steady_from(recipe))),
            ..SyncPattern::default()
        };
    }
    if !has_rounds(recipe) || step < recipe.first_round() {
        return gradients();
    }
    let Range { start, end } = recipe.round_at(step);
    if end - start == 1 {
        return gradients();
    }
    SyncPattern {
        round: step + 1 == end,
        local_group: recipe.is_group_sync_due(step + 1),
        fragments: recipe.fragments_due(step + 1).collect(),
        ..SyncPattern::default()
    }
}

/// Sync patterns of a run with their number of steps. Long runs of one pattern are not walked,
/// since a run may have millions of steps.
pub fn sync_patterns(recipe: &Recipe) -> BTreeMap<SyncPattern, u64> {
    let steps = recipe.train.steps.max(1);
    let mut patterns = BTreeMap::new();
    let mut add = |pattern: SyncPattern, count: u64| {
        if count > 0 {
            *patterns.entry(pattern).or_insert(0) += count;
        }
    };
    if let Some(graph) = graph_of(recipe) {
        let turns = graph.period() as u64;
        for turn in 0..turns.min(steps) {
            let gossip = SyncPattern { gossip: Some(turn), ..SyncPattern::default() };
            add(gossip, (steps - turn).div_ceil(turns));
        }
    } else if has_rounds(recipe) {
        let meets_inside = recipe.sync.group_workers > 1 || recipe.sync.fragments > 1;
        add(gradients(), recipe.first_round().min(steps));
        for round in recipe.rounds() {
            let len = round.end - round.start;
            if meets_inside {
                round.for_each(|step| add(sync_pattern_at(recipe, step), 1));
            } else if len == 1 {
                add(gradients(), 1);
            } else {
                add(SyncPattern::default(), len - 1);
                add(SyncPattern { round: true, ..SyncPattern::default() }, 1);
            }
        }
    } else if is_compressed(recipe, u64::MAX) {
        let first = recipe.compress.warmup_steps.min(steps);
        let steady_from = steady_from(recipe).clamp(first, steps);
        add(gradients(), first);
        (first..steady_from).for_each(|step| add(sync_pattern_at(recipe, step), 1));
        add(sync_pattern_at(recipe, steady_from), steps - steady_from);
    } else {
        add(gradients(), steps);
    }
    patterns
}

/// Union of all sync patterns of a run.
pub(crate) fn all(recipe: &Recipe) -> SyncPattern {
    let mut all = SyncPattern::default();
    for pattern in sync_patterns(recipe).into_keys() {
        let SyncPattern { gradients, round, local_group, fragments, compressed, gossip } = pattern;
        all.gradients |= gradients;
        all.round |= round;
        all.local_group |= local_group;
        all.fragments.extend(fragments);
        // The first compressed step has the largest messages.
        all.compressed = all.compressed.or(compressed);
        all.gossip = all.gossip.or(gossip);
    }
    all.fragments.sort_unstable();
    all.fragments.dedup();
    all
}

/// Removes the calls that a step of this pattern does not make, and adds those after the step.
pub(crate) fn apply(
    pattern: &SyncPattern,
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    calls: &mut StepCalls,
) {
    if !pattern.gradients {
        calls.data.iter_mut().flatten().for_each(|group| group.list.clear());
        (calls.has_rows, calls.is_exact) = (false, true);
    }
    let buckets = plan.buckets(blueprint);
    let lens = || buckets.list.iter().map(|bucket| bucket.len).filter(|len| *len > 0);
    let workers = recipe.run.workers;
    if let (Some(turn), Some(graph)) = (pattern.gossip, graph_of(recipe)) {
        calls.neighbor_messages = neighbor_messages(&graph, turn, &lens().collect::<Vec<_>>());
    }
    if pattern.round {
        calls.after_step.push(sums(0..workers, lens()));
    }
    if pattern.local_group {
        let size = recipe.sync.group_workers;
        let ranks = |first: usize| first..(first + size).min(workers);
        calls.after_step.extend((0..workers).step_by(size).map(|first| sums(ranks(first), lens())));
    }
    for &fragment in &pattern.fragments {
        calls.after_step.push(sums(0..workers, fragment_len(recipe, blueprint, fragment)));
    }
    if let Some(step) = pattern.compressed
        && let Some(exchange) = exchange_of(recipe, plan, blueprint)
    {
        let of = |planned: PlannedCall| Call {
            element: Bytes(planned.element),
            ..Call::once(planned.op, Lengths::Even(planned.len))
        };
        let list = exchange.calls(step).into_iter().map(of).collect();
        calls
            .after_step
            .push((0, GroupCalls { contributions: Contributions::one_each(workers), list }));
    }
}

/// Gossip messages of every worker.
fn neighbor_messages(graph: &Graph, turn: u64, lens: &[usize]) -> Vec<Vec<Message>> {
    let n = graph.num_workers();
    let of_worker = |worker: usize| {
        let peers = (0..n).filter(move |to| graph.has_edge(turn, worker, *to));
        let all = |to| {
            // A directed graph also sends a weight of eight bytes.
            let weight = graph.is_directed().then_some(2);
            let lens = lens.iter().copied().chain(weight);
            lens.map(move |len| Message { to, len, times: 1 })
        };
        peers.flat_map(all).collect()
    };
    (0..n).map(of_worker).collect()
}

/// Compressed exchange of gradients, if any.
fn exchange_of(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint) -> Option<ExchangePlan> {
    let compression = from_recipe::compression_from_recipe(recipe)?;
    let method_of = |param: &str| from_recipe::tensor_method(recipe, &compression, param);
    Some(ExchangePlan::new(compression, plan, blueprint, method_of))
}

/// All-reduces of these lengths among consecutive ranks, with the first of them.
fn sums(ranks: Range<usize>, lens: impl IntoIterator<Item = usize>) -> (usize, GroupCalls) {
    let of = |(bucket, len)| Call { bucket, ..Call::once(Op::AllReduce, Lengths::Even(len)) };
    let list = lens.into_iter().enumerate().map(of).collect();
    (ranks.start, GroupCalls { contributions: Contributions::one_each(ranks.len()), list })
}

/// Parameters of a fragment, if not empty.
fn fragment_len(recipe: &Recipe, blueprint: &Blueprint, fragment: usize) -> Option<usize> {
    let params = params_of_fragment(blueprint, fragment, recipe.sync.fragments);
    let len: usize = params.map(|(_, param)| param.len()).sum();
    (len > 0).then_some(len)
}

/// Extra elements of a worker: of an outer optimizer, and of everything else.
pub(crate) fn extra_elements(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    worker: usize,
) -> [usize; 2] {
    let last = recipe.train.steps.saturating_sub(1);
    if recipe.compress.is_on() && recipe.sync.mode == SyncMode::AllReduce {
        let exchange = exchange_of(recipe, plan, blueprint);
        return [0, exchange.map_or(0, |exchange| exchange.num_elements(last))];
    }
    let buckets = plan.buckets(blueprint);
    if let Some(graph) = graph_of(recipe) {
        // The worker's own weights during evaluation of the mean, that mean, and messages sent and
        // received.
        let copies = 1 + usize::from(graph.is_directed());
        let longest = buckets.max_len();
        let besides = 2 * longest + Mixer::planned_len(&graph, worker, longest);
        return [0, copies * buckets.num_params() + besides];
    }
    if !has_rounds(recipe) {
        return [0, 0];
    }
    let outer = if recipe.sync.outer == Outer::Nesterov { buckets.num_params() } else { 0 };
    let fragments = (0..recipe.sync.fragments).filter(|_| recipe.sync.fragments > 1);
    let longest = fragments.filter_map(|n| fragment_len(recipe, blueprint, n)).max().unwrap_or(0);
    // Weights at the start of the round, and the mean change in transfer.
    [outer, buckets.num_params() + buckets.max_len().max(longest)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn patterns_match_a_walk_over_all_steps() {
        let rounds = ["sync.mode=local-sgd", "sync.local_steps=3"];
        let dgc = ["compress.method=dgc", "compress.ratio_warmup_steps=9"];
        let variants: &[&[&str]] = &[
            &[],
            &rounds,
            &["sync.mode=local-sgd", "sync.local_steps=1", "sync.final_local_steps=6"],
            &[&rounds[..], &["sync.synchronous_fraction=0.4"]].concat(),
            &[&rounds[..], &["sync.group_workers=2", "sync.inner_rounds=2"]].concat(),
            &[&rounds[..], &["sync.fragments=3", "sync.inner_rounds=2"]].concat(),
            &["compress.method=top-k", "compress.warmup_steps=5"],
            &[&dgc[..], &["compress.warmup_steps=4"]].concat(),
            &[&dgc[..], &["compress.ratio_warmup_steps=99"]].concat(),
            &["sync.mode=gossip", "sync.graph=one-peer"],
        ];
        for variant in variants {
            let sets = ["run.workers=4", "train.steps=23"].iter().chain(*variant);
            let sets = sets.map(|set| (*set).to_owned()).collect();
            let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("a recipe");
            let mut walked = BTreeMap::new();
            for step in 0..23 {
                *walked.entry(sync_pattern_at(&recipe, step)).or_insert(0) += 1;
            }
            assert_eq!(sync_patterns(&recipe), walked, "{variant:?}");
        }
    }
}

//! Kinds of steps: in most runs workers add up their gradients in every step, but some agree in
//! rounds (local SGD) or with their neighbours alone (gossip), or write their gradients in fewer
//! bytes (compression).
//!
//! A step that each of them takes alone moves nothing. At the end of a round all of them add up
//! what became of their weights, bucket by bucket; before that, those who are close may do so among
//! themselves, or all of them with a fragment of the model. Gradients that are compressed travel
//! behind the step, and not before a warm-up is over. Neighbours change from step to step on some
//! graphs. So steps differ, and a run is told by the mean of its steps: each kind is counted once,
//! and how often it comes.

use super::calls::{Call, GroupCalls, Lengths, Message, StepCalls};
use lockstep_config::units::Bytes;
use lockstep_config::{Outer, Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_parallel::compress::{Method, PlannedCall, PlannedExchange};
use lockstep_parallel::gossip::mixer::Mixer;
use lockstep_parallel::{Graph, ReplicaPlan, asked, params_of_fragment};
use lockstep_schedule::{Addends, Op};
use std::collections::BTreeMap;
use std::ops::Range;

/// What workers do together in a step, and behind it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Meeting {
    /// They add up gradients.
    pub gradients: bool,
    /// They end a round that they took apart.
    pub round: bool,
    /// Those who are close average.
    pub near: bool,
    /// They average these fragments.
    pub fragments: Vec<usize>,
    /// They exchange gradients as they would write them in this step.
    pub compressed: Option<u64>,
    /// Each tells its neighbours of this step its weights.
    pub mixed: Option<u64>,
}

/// Whether workers agree in rounds.
fn has_rounds(recipe: &Recipe) -> bool {
    recipe.sync.mode == SyncMode::LocalSgd
}

/// Whether all workers exchange what they have written of their gradients in a step.
fn is_compressed(recipe: &Recipe, step: u64) -> bool {
    recipe.sync.mode == SyncMode::AllReduce && recipe.compress.is_on_in(step)
}

/// Neighbours of workers, where they tell nobody else.
fn graph_of(recipe: &Recipe) -> Option<Graph> {
    (recipe.sync.mode == SyncMode::Gossip).then(|| asked::graph_of(recipe))
}

/// The step from which on gradients are compressed in one way: a share that falls makes steps
/// before it differ.
fn settled(recipe: &Recipe) -> u64 {
    match asked::method_of(recipe) {
        Some(Method::Dgc { warmup_steps, .. }) => warmup_steps,
        _ => 0,
    }
}

/// They add up gradients, and nothing else.
fn gradients() -> Meeting {
    Meeting { gradients: true, ..Meeting::default() }
}

/// What workers of a recipe do together in a step.
pub fn meeting_in(recipe: &Recipe, step: u64) -> Meeting {
    if let Some(graph) = graph_of(recipe) {
        return Meeting { mixed: Some(step % graph.num_turns() as u64), ..Meeting::default() };
    }
    if is_compressed(recipe, step) {
        return Meeting { compressed: Some(step.min(settled(recipe))), ..Meeting::default() };
    }
    if !has_rounds(recipe) || step < recipe.first_round() {
        return gradients();
    }
    let Range { start, end } = recipe.round_at(step);
    if end - start == 1 {
        return gradients();
    }
    Meeting {
        round: step + 1 == end,
        near: recipe.is_group_meeting(step + 1),
        fragments: recipe.fragments_meeting(step + 1).collect(),
        ..Meeting::default()
    }
}

/// Every kind of step of a run, with how many there are of it. Long stretches of one kind are not
/// walked, since a run may have millions of steps.
pub fn kinds(recipe: &Recipe) -> BTreeMap<Meeting, u64> {
    let steps = recipe.train.steps.max(1);
    let mut kinds = BTreeMap::new();
    let mut add = |meeting: Meeting, count: u64| {
        if count > 0 {
            *kinds.entry(meeting).or_insert(0) += count;
        }
    };
    if let Some(graph) = graph_of(recipe) {
        let turns = graph.num_turns() as u64;
        for turn in 0..turns.min(steps) {
            let mixed = Meeting { mixed: Some(turn), ..Meeting::default() };
            add(mixed, (steps - turn).div_ceil(turns));
        }
    } else if has_rounds(recipe) {
        let meets_inside = recipe.sync.group_workers > 1 || recipe.sync.fragments > 1;
        add(gradients(), recipe.first_round().min(steps));
        for round in recipe.rounds() {
            let len = round.end - round.start;
            if meets_inside {
                round.for_each(|step| add(meeting_in(recipe, step), 1));
            } else if len == 1 {
                add(gradients(), 1);
            } else {
                add(Meeting::default(), len - 1);
                add(Meeting { round: true, ..Meeting::default() }, 1);
            }
        }
    } else if is_compressed(recipe, u64::MAX) {
        let first = recipe.compress.warmup_steps.min(steps);
        let settled = settled(recipe).clamp(first, steps);
        add(gradients(), first);
        (first..settled).for_each(|step| add(meeting_in(recipe, step), 1));
        add(meeting_in(recipe, settled), steps - settled);
    } else {
        add(gradients(), steps);
    }
    kinds
}

/// Everything that workers ever do together.
pub(crate) fn all(recipe: &Recipe) -> Meeting {
    let mut all = Meeting::default();
    for meeting in kinds(recipe).into_keys() {
        let Meeting { gradients, round, near, fragments, compressed, mixed } = meeting;
        all.gradients |= gradients;
        all.round |= round;
        all.near |= near;
        all.fragments.extend(fragments);
        // The first of them has most to say.
        all.compressed = all.compressed.or(compressed);
        all.mixed = all.mixed.or(mixed);
    }
    all.fragments.sort_unstable();
    all.fragments.dedup();
    all
}

/// Leaves of a step's calls those that such a step makes, and adds what comes behind it.
pub(crate) fn apply(
    meeting: &Meeting,
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    calls: &mut StepCalls,
) {
    if !meeting.gradients {
        calls.data.iter_mut().flatten().for_each(|group| group.list.clear());
        (calls.has_rows, calls.is_exact) = (false, true);
    }
    let buckets = plan.buckets(blueprint);
    let lens = || buckets.list.iter().map(|bucket| bucket.len).filter(|len| *len > 0);
    let workers = recipe.run.workers;
    if let (Some(turn), Some(graph)) = (meeting.mixed, graph_of(recipe)) {
        calls.told = told(&graph, turn, &lens().collect::<Vec<_>>());
    }
    if meeting.round {
        calls.behind.push(sums(0..workers, lens()));
    }
    if meeting.near {
        let size = recipe.sync.group_workers;
        let members = |first: usize| first..(first + size).min(workers);
        calls.behind.extend((0..workers).step_by(size).map(|first| sums(members(first), lens())));
    }
    for &fragment in &meeting.fragments {
        calls.behind.push(sums(0..workers, fragment_len(recipe, blueprint, fragment)));
    }
    if let Some(step) = meeting.compressed
        && let Some(exchange) = exchange_of(recipe, plan, blueprint)
    {
        let of = |planned: PlannedCall| Call {
            element: Bytes(planned.element),
            ..Call::once(planned.op, Lengths::Even(planned.len))
        };
        let list = exchange.calls(step).into_iter().map(of).collect();
        calls.behind.push((0, GroupCalls { addends: Addends::one_each(workers), list }));
    }
}

/// What every worker of a graph tells its neighbours.
fn told(graph: &Graph, turn: u64, lens: &[usize]) -> Vec<Vec<Message>> {
    let n = graph.num_workers();
    let of_worker = |worker: usize| {
        let peers = (0..n).filter(move |to| graph.has_edge(turn, worker, *to));
        let all = |to| {
            // What goes one way comes with a number of eight bytes.
            let weight = graph.is_directed().then_some(2);
            let lens = lens.iter().copied().chain(weight);
            lens.map(move |len| Message { to, len, times: 1 })
        };
        peers.flat_map(all).collect()
    };
    (0..n).map(of_worker).collect()
}

/// How gradients are exchanged, where they are compressed.
fn exchange_of(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
) -> Option<PlannedExchange> {
    let asked = asked::compression_of(recipe)?;
    let method_of = |param: &str| asked::method_of_tensor(recipe, &asked, param);
    Some(PlannedExchange::new(asked, plan, blueprint, method_of))
}

/// Sums of vectors of these lengths among consecutive ranks, with the first of them.
fn sums(ranks: Range<usize>, lens: impl IntoIterator<Item = usize>) -> (usize, GroupCalls) {
    let of = |(bucket, len)| Call { bucket, ..Call::once(Op::AllReduce, Lengths::Even(len)) };
    let list = lens.into_iter().enumerate().map(of).collect();
    (ranks.start, GroupCalls { addends: Addends::one_each(ranks.len()), list })
}

/// Parameters of a fragment, if it has any.
fn fragment_len(recipe: &Recipe, blueprint: &Blueprint, fragment: usize) -> Option<usize> {
    let params = params_of_fragment(blueprint, fragment, recipe.sync.fragments);
    let len: usize = params.map(|(_, param)| param.len()).sum();
    (len > 0).then_some(len)
}

/// Elements that a worker keeps besides: of an outer optimizer, and for all else.
pub(crate) fn held(
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
        // Its own weights while the mean is judged, that mean, and what leaves and comes.
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
    // Where the round began, and the mean change on its way.
    [outer, buckets.num_params() + buckets.max_len().max(longest)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn kinds_are_those_of_all_steps_one_by_one() {
        let rounds = ["sync.mode=local-sgd", "sync.local_steps=3"];
        let dgc = ["compress.method=dgc", "compress.ratio_warmup_steps=9"];
        let variants: &[&[&str]] = &[
            &[],
            &rounds,
            &["sync.mode=local-sgd", "sync.local_steps=1", "sync.final_local_steps=6"],
            &[&rounds[..], &["sync.synchronous=0.4"]].concat(),
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
                *walked.entry(meeting_in(&recipe, step)).or_insert(0) += 1;
            }
            assert_eq!(kinds(&recipe), walked, "{variant:?}");
        }
    }
}

//! Kinds of steps: steps of one kind have the same program.
//!
//! In most runs workers reduce gradients in every step. Local steps communicate nothing. At the end
//! of a round of local SGD all workers average their weight changes, bucket by bucket; before that,
//! groups of workers may average among themselves, or all of them a fragment of the model.
//! Compressed gradients are exchanged once a warm-up is over. Some gossip graphs change from step
//! to step. Parameter servers get the first weights before the first step.

use super::{FederatedStep, ServerStep};
use crate::compress::Method;
use crate::from_recipe;
use crate::gossip::Graph;
use lockstep_config::{Recipe, SyncMode};
use std::collections::BTreeMap;
use std::ops::Range;

/// Communication of workers in a step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StepKind {
    /// Gradients are reduced over the data-parallel ranks; otherwise each rank keeps its own.
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
    /// Exchange with parameter servers.
    pub servers: Option<ServerStep>,
    /// Clients and their updates.
    pub federated: Option<FederatedStep>,
}

impl StepKind {
    /// A step that reduces gradients, and nothing else.
    pub fn reduce() -> Self {
        Self { gradients: true, ..Self::default() }
    }

    /// A step in which every rank keeps its gradients.
    pub fn local() -> Self {
        Self::default()
    }

    /// A step with parameter servers.
    fn with_servers(step: ServerStep) -> Self {
        Self { servers: Some(step), ..Self::default() }
    }

    /// A step of federated clients.
    fn with_clients(step: FederatedStep) -> Self {
        Self { federated: Some(step), ..Self::default() }
    }

    /// Kind of a step of a recipe.
    pub fn at(recipe: &Recipe, step: u64) -> Self {
        if recipe.num_servers() > 0 {
            return Self::with_servers(ServerStep::at(recipe, step));
        }
        if recipe.is_federated() {
            return Self::with_clients(FederatedStep::at(recipe, step));
        }
        if recipe.sync.mode == SyncMode::Hogwild {
            return Self::local();
        }
        if let Some(graph) = graph_of(recipe) {
            let gossip = Some(step % graph.period() as u64);
            return Self { gossip, ..Self::default() };
        }
        if is_compressed(recipe, step) {
            let compressed = Some(step.min(steady_from(recipe)));
            return Self { compressed, ..Self::default() };
        }
        if !has_rounds(recipe) || step < recipe.first_round() {
            return Self::reduce();
        }
        let Range { start, end } = recipe.round_at(step);
        if end - start == 1 {
            return Self::reduce();
        }
        Self {
            round: step + 1 == end,
            local_group: recipe.is_group_sync_due(step + 1),
            fragments: recipe.fragments_due(step + 1).collect(),
            ..Self::default()
        }
    }

    /// Kinds of a run's steps with their numbers. Long runs of one kind are not walked, since a run
    /// may have millions of steps.
    pub fn of_run(recipe: &Recipe) -> BTreeMap<Self, u64> {
        let steps = recipe.train.steps.max(1);
        let mut counts = BTreeMap::new();
        let mut add = |kind: Self, count: u64| {
            if count > 0 {
                *counts.entry(kind).or_insert(0) += count;
            }
        };
        if recipe.num_servers() > 0 {
            let steps = ServerStep::of_run(recipe).into_iter();
            steps.for_each(|(step, count)| add(Self::with_servers(step), count));
        } else if recipe.is_federated() {
            let steps = FederatedStep::of_run(recipe).into_iter();
            steps.for_each(|(step, count)| add(Self::with_clients(step), count));
        } else if recipe.sync.mode == SyncMode::Hogwild {
            add(Self::local(), steps);
        } else if let Some(graph) = graph_of(recipe) {
            let turns = graph.period() as u64;
            for turn in 0..turns.min(steps) {
                let gossip = Self { gossip: Some(turn), ..Self::default() };
                add(gossip, (steps - turn).div_ceil(turns));
            }
        } else if has_rounds(recipe) {
            let meets_inside = recipe.sync.group_workers > 1 || recipe.sync.fragments > 1;
            add(Self::reduce(), recipe.first_round().min(steps));
            for round in recipe.rounds() {
                let len = round.end - round.start;
                if meets_inside {
                    round.for_each(|step| add(Self::at(recipe, step), 1));
                } else if len == 1 {
                    add(Self::reduce(), 1);
                } else {
                    add(Self::default(), len - 1);
                    add(Self { round: true, ..Self::default() }, 1);
                }
            }
        } else if is_compressed(recipe, u64::MAX) {
            let first = recipe.compress.warmup_steps.min(steps);
            let steady_from = steady_from(recipe).clamp(first, steps);
            add(Self::reduce(), first);
            (first..steady_from).for_each(|step| add(Self::at(recipe, step), 1));
            add(Self::at(recipe, steady_from), steps - steady_from);
        } else {
            add(Self::reduce(), steps);
        }
        counts
    }

    /// Union of all kinds of a run's steps.
    pub fn all_of(recipe: &Recipe) -> Self {
        let mut all = Self::default();
        for kind in Self::of_run(recipe).into_keys() {
            let Self { gradients, round, local_group, fragments, compressed, gossip, .. } = kind;
            all.gradients |= gradients;
            all.round |= round;
            all.local_group |= local_group;
            all.fragments.extend(fragments);
            // The first compressed step has the largest messages.
            all.compressed = all.compressed.or(compressed);
            all.gossip = all.gossip.or(gossip);
            all.servers = all.servers.or(kind.servers);
            all.federated = all.federated.or(kind.federated);
        }
        all.fragments.sort_unstable();
        all.fragments.dedup();
        all
    }
}

/// Whether workers synchronize in rounds.
pub(crate) fn has_rounds(recipe: &Recipe) -> bool {
    recipe.sync.mode == SyncMode::LocalSgd
}

/// Whether gradients are compressed in a step.
fn is_compressed(recipe: &Recipe, step: u64) -> bool {
    recipe.sync.mode == SyncMode::AllReduce && recipe.compress.is_on_in(step)
}

/// Gossip graph of the workers, if any.
pub(crate) fn graph_of(recipe: &Recipe) -> Option<Graph> {
    (recipe.sync.mode == SyncMode::Gossip).then(|| from_recipe::graph_from_recipe(recipe))
}

/// Step from which on the compression is constant: a ratio that falls makes earlier steps differ.
fn steady_from(recipe: &Recipe) -> u64 {
    match from_recipe::method_of(recipe) {
        Some(Method::Dgc { warmup_steps, .. }) => warmup_steps,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn counts_match_a_walk_over_all_steps() {
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
            &["sync.mode=federated", "federated.clients=9", "federated.dropout=0.3"],
            &["sync.mode=hogwild", "run.workers=1", "optim.name=sgd", "optim.weight_decay=0"],
            &["sync.mode=parameter-server", "checkpoint.every=4"],
            &["sync.mode=parameter-server", "sync.switch_to_sync_after=0.5", "checkpoint.every=1"],
        ];
        for variant in variants {
            let sets = ["run.workers=4", "train.steps=23"].iter().chain(*variant);
            let sets = sets.map(|set| (*set).to_owned()).collect();
            let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("a recipe");
            let mut walked = BTreeMap::new();
            for step in 0..23 {
                *walked.entry(StepKind::at(&recipe, step)).or_insert(0) += 1;
            }
            assert_eq!(StepKind::of_run(&recipe), walked, "{variant:?}");
        }
    }
}

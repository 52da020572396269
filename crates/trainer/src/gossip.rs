//! Gossip averaging in training: graph of the recipe, events and checkpoints. [`lockstep_parallel`]
//! implements the mixing.

use crate::TrainError;
use crate::learner::Learner;
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{AggregationRule, Recipe, Server};
use lockstep_parallel::byzantine::ByzantineWorker;
use lockstep_parallel::robust_aggregation::Aggregator;
use lockstep_parallel::{Replica, from_recipe};
use lockstep_telemetry::Event;

/// Prepares a replica for gossip.
pub(crate) fn prepare(recipe: &Recipe, replica: &mut Replica) -> Result<(), CommError> {
    replica.enable_gossip(from_recipe::graph_from_recipe(recipe))?;
    if recipe.sync.has_byzantine_settings() {
        let attack = attack_of(recipe, replica.groups().rank());
        replica.enable_robust_gossip(aggregation_rule(recipe), attack);
    }
    Ok(())
}

/// Attack of a worker, if the recipe makes it Byzantine.
pub(crate) fn attack_of(recipe: &Recipe, worker: usize) -> Option<ByzantineWorker> {
    let Server { byzantine, attack, .. } = recipe.sync.server;
    let is_byzantine = worker + byzantine >= recipe.run.workers;
    is_byzantine.then(|| ByzantineWorker::new(recipe.train.seed, attack, worker))
}

/// Rule that aggregates the contributions of several workers.
pub(crate) fn aggregation_rule(recipe: &Recipe) -> Aggregator {
    let Server { aggregation, assumed_byzantine, gradient_clip: clip, .. } = recipe.sync.server;
    match aggregation {
        AggregationRule::Mean if clip > 0.0 => Aggregator::ClippedMean { max_norm: clip },
        AggregationRule::Mean => Aggregator::Mean,
        AggregationRule::Median => Aggregator::Median,
        AggregationRule::TrimmedMean => Aggregator::TrimmedMean { trim: assumed_byzantine },
        AggregationRule::Krum => Aggregator::Krum { assumed_byzantine },
    }
}

/// Event that describes the gossip graph.
pub(crate) fn graph_event(recipe: &Recipe, replica: &Replica) -> Option<Event> {
    let rate = replica.gossip_rate()?;
    Some(Event::GraphFormed {
        graph: recipe.sync.gossip.graph.name().to_owned(),
        max_degree: from_recipe::graph_from_recipe(recipe).max_degree(),
        spectral_gap: 1.0 - rate,
    })
}

/// Event with the consensus distance, if workers have their own weights.
pub(crate) fn consensus_event(step: u64, replica: &Replica) -> Option<Event> {
    let found = replica.consensus()?;
    Some(Event::Consensus {
        step,
        distance: found.mean,
        distance_max: found.max,
        distance_max_rank: found.worker,
    })
}

/// Adds this worker's gossip state to a checkpoint.
pub(crate) fn save(snapshot: &mut Snapshot, learner: &mut Learner) {
    let worker = learner.replica.groups().rank();
    let saved = learner.replica.visit_gossip(|name, values| {
        snapshot.add(&format!("worker.{worker}.{name}"), &[values.len()], 0, values);
        Ok::<_, std::convert::Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
}

/// Restores this worker's gossip state.
pub(crate) fn load(reader: &Reader, learner: &mut Learner) -> Result<(), TrainError> {
    let worker = learner.replica.groups().rank();
    learner.replica.visit_gossip(|name, values| {
        let name = format!("worker.{worker}.{name}");
        Ok::<_, TrainError>(reader.read(&name, &[values.len()], 0, values)?)
    })?;
    Ok(learner.replica.resume_gossip()?)
}

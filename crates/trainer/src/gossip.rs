//! Workers that average with their neighbours: the graph of a recipe, and what each worker keeps.

use crate::TrainError;
use crate::saved::Learner;
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::CommError;
use lockstep_config::{FederatedCombine, Recipe, Server};
use lockstep_parallel::liars::Liar;
use lockstep_parallel::robust::Combine;
use lockstep_parallel::{Replica, asked};
use lockstep_telemetry::Event;

/// Makes room for gossip.
pub(crate) fn prepare(recipe: &Recipe, replica: &mut Replica) -> Result<(), CommError> {
    replica.gossip(asked::graph_of(recipe))?;
    if recipe.sync.is_guarded() {
        let liar = liar_of(recipe, replica.groups().rank());
        replica.guard_gossip(rule_of(recipe), liar);
    }
    Ok(())
}

/// The lying side of a worker, if it has one.
pub(crate) fn liar_of(recipe: &Recipe, worker: usize) -> Option<Liar> {
    let Server { byzantine, attack, .. } = recipe.sync.server;
    let lies = worker + byzantine >= recipe.run.workers;
    lies.then(|| Liar::new(recipe.train.seed, attack, worker))
}

/// How what several workers say becomes one.
pub(crate) fn rule_of(recipe: &Recipe) -> Combine {
    let Server { combine, liars, gradient_clip: clip, .. } = recipe.sync.server;
    match combine {
        FederatedCombine::Mean if clip > 0.0 => Combine::ClippedMean { most: clip },
        FederatedCombine::Mean => Combine::Mean,
        FederatedCombine::Median => Combine::Median,
        FederatedCombine::TrimmedMean => Combine::TrimmedMean { trim: liars },
        FederatedCombine::Krum => Combine::Krum { liars },
    }
}

/// What a run says of its graph, where it has one.
pub(crate) fn announcement(recipe: &Recipe, replica: &Replica) -> Option<Event> {
    let rate = replica.gossip_rate()?;
    Some(Event::GraphFormed {
        graph: recipe.sync.gossip.graph.name().to_owned(),
        max_degree: asked::graph_of(recipe).max_degree(),
        spectral_gap: 1.0 - rate,
    })
}

/// What is found of how far workers are apart, where they may be.
pub(crate) fn observation(step: u64, replica: &Replica) -> Option<Event> {
    let found = replica.consensus()?;
    Some(Event::Consensus {
        step,
        distance: found.mean,
        distance_max: found.max,
        distance_max_rank: found.worker,
    })
}

/// Copies what this worker keeps for itself, while the mean is shown.
pub(crate) fn save(room: &mut Snapshot, learner: &mut Learner) {
    let worker = learner.replica.groups().rank();
    let saved = learner.replica.visit_gossip(|name, values| {
        room.add(&format!("worker.{worker}.{name}"), &[values.len()], 0, values);
        Ok::<_, std::convert::Infallible>(())
    });
    saved.unwrap_or_else(|never| match never {});
}

/// Reads it back.
pub(crate) fn load(reader: &Reader, learner: &mut Learner) -> Result<(), TrainError> {
    let worker = learner.replica.groups().rank();
    learner.replica.visit_gossip(|name, values| {
        let name = format!("worker.{worker}.{name}");
        Ok::<_, TrainError>(reader.read(&name, &[values.len()], 0, values)?)
    })?;
    Ok(learner.replica.resume_gossip()?)
}

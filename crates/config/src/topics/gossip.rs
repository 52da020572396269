//! Gossip averaging: each worker averages its weights with its neighbours on a graph.

use super::limits::MAX_WORKERS;
use super::{Recipe, SyncMode};
use crate::error::ConfigError;
use crate::lint::{Lint, lints};
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, topic};

topic! {
    /// Settings of gossip averaging.
    pub struct Gossip at sync.gossip, among "sync" {
        /// Communication graph: the neighbours with which a worker averages its weights after every
        /// step. directed-ring, one-peer and random-directed send in one direction and use
        /// push-sum.
        graph: GraphName = "ring", when("sync.mode", &["gossip"]);

        /// Number of neighbours of a worker on a random graph.
        degree: usize = (
            "= 3, or 2 where a regular graph of degree 3 does not exist",
            default_degree
        ), integer(1, MAX_WORKERS), when("sync.graph", GraphName::WITH_DEGREE);
    }
}

/// Three, or as many as there are other workers. A regular graph needs an even number of edge
/// ends, so three becomes two for an odd number of workers.
fn default_degree(recipe: &Recipe) -> usize {
    // Outside gossip the value must not depend on the number of workers.
    if recipe.sync.mode != SyncMode::Gossip {
        return 2;
    }
    let workers = recipe.run.workers;
    let is_regular = recipe.sync.gossip.graph == GraphName::RandomRegular;
    let most = workers.saturating_sub(1).clamp(1, 3);
    let odd_ends = is_regular && workers % 2 == 1 && most == 3;
    if odd_ends { 2 } else { most }
}

choices! {
    /// Communication graph of gossip averaging.
    GraphName {
        /// Both neighbours on a ring.
        Ring = "ring",
        /// Four neighbours on a torus.
        Torus = "torus",
        /// Ranks at distance 1, 2, 4, 8, … in both directions.
        Exponential = "exponential",
        /// `sync.degree` neighbours on a random regular graph.
        RandomRegular = "random-regular",
        /// All workers.
        Complete = "complete",
        /// The next rank on a ring, one direction.
        DirectedRing = "directed-ring",
        /// One rank per step, at distance 1, 2, 4, … in turn, one direction.
        OnePeer = "one-peer",
        /// The next rank on a ring and random others, one direction.
        RandomDirected = "random-directed",
    }
}

impl GraphName {
    /// Graphs with a configurable number of neighbours.
    pub(crate) const WITH_DEGREE: &'static [&'static str] = &["random-regular", "random-directed"];

    /// Whether edges are one-directional, which needs push-sum to correct the average.
    pub const fn is_directed(self) -> bool {
        matches!(self, Self::DirectedRing | Self::OnePeer | Self::RandomDirected)
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["sync.degree", "run.workers", "sync.graph"], graph_exists),
    // Gossip replicas differ by design, so comparing them would fail.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("keeps different weights on every worker").with(
            "run.check_replicas_every",
            0,
            r.run.check_replicas_every > 0,
        );
    }),
])
.when(&["sync.mode"], |r| r.sync.mode == SyncMode::Gossip);

/// A random regular graph has an even number of edge ends and is connected.
fn graph_exists(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (Gossip { graph, degree }, workers) = (&c.sync.gossip, c.run.workers);
    let suits = |degree: usize| match graph {
        GraphName::RandomRegular => {
            let is_connected = degree >= 2 || workers <= 2;
            degree < workers && is_connected && (degree * workers).is_multiple_of(2)
        }
        GraphName::RandomDirected => degree < workers,
        _ => true,
    };
    let better = (1..workers).rev().filter(|degree| suits(*degree));
    let nearest = better.min_by_key(|other| other.abs_diff(*degree)).unwrap_or(1);
    let rule = format!("gives no connected {graph} graph of run.workers = {workers}");
    // One worker has no neighbours, whatever the degree.
    c.refuse(workers > 1 && !suits(*degree), rule, nearest)
}

pub(crate) const ROBUST_RULES: Rules = Rules::new(&[
    // Push-sum weights of a directed graph cannot be aggregated robustly.
    Rule::new(&["sync.graph", "sync.aggregation", "sync.byzantine"], |c| {
        let rule = "is directed, which robust aggregation does not support";
        c.refuse(c.sync.gossip.graph.is_directed(), rule, "\"exponential\"")
    }),
    // Robust aggregation tolerates a minority of Byzantine workers.
    Rule::new(&["sync.assumed_byzantine", "run.workers", "sync.aggregation"], |c| {
        let (server, workers) = (&c.sync.server, c.run.workers);
        let most = server.aggregation.max_byzantine(workers)?;
        let name = server.aggregation;
        let rule = format!("is more than \"{name}\" tolerates with run.workers = {workers}");
        c.refuse(server.assumed_byzantine > most, rule, most)
    }),
])
.when(&["sync.mode"], |r| r.sync.mode == SyncMode::Gossip && r.sync.has_byzantine_settings());

/// Largest ring that mixes fast enough.
const MAX_RING: usize = 16;

pub(crate) const LINTS: &[Lint] = lints! {
    "slow-mixing": "information crosses the ring in half as many steps as it has workers";
        if "sync.graph = ring or directed-ring with more than 16 workers";
        advice "use sync.graph = \"exponential\"";
        |r| let (graph, workers) = (r.sync.gossip.graph, r.run.workers);
            let is_ring = matches!(graph, GraphName::Ring | GraphName::DirectedRing);
            when r.sync.mode == SyncMode::Gossip && is_ring && workers > MAX_RING =>
                "sync.graph = \"{graph}\" of {workers} workers mixes slowly";

    "few-neighbours": "a worker has too few neighbours for robust aggregation";
        if "fewer than 2 sync.assumed_byzantine + 1 neighbours (trimmed-mean), or + 3 (krum), \
            counting the worker itself, on a ring or torus";
        advice "use sync.aggregation = \"median\", or a graph with more neighbours";
        |r| let (server, workers) = (&r.sync.server, r.run.workers);
            let neighbours = match r.sync.gossip.graph {
                _ if r.sync.mode != SyncMode::Gossip => return None,
                GraphName::Ring => 3.min(workers),
                GraphName::Torus => 5.min(workers),
                _ => return None,
            };
            let (rule, assumed) = (server.aggregation, server.assumed_byzantine);
            when neighbours < rule.min_vectors(assumed)? =>
                "sync.aggregation = \"{rule}\" with sync.assumed_byzantine = {assumed} has only \
                 {neighbours} vectors to compare";
};

//! Lints about parameter servers, gossip and federated clients.

use super::{Lint, is_text};
use crate::recipe::{
    AggregationRule, Consistency, Family, FederatedMethod, GraphName, OptimName, Recipe,
    RowSharding, SyncMode, SyncPartition,
};

/// Largest momentum that tolerates stale gradients.
const MAX_STALE_MOMENTUM: f64 = 0.5;
/// Largest number of workers per server.
const MAX_WORKERS_PER_SERVER: usize = 10;
/// Largest product of local steps and other clients of a round.
const MAX_CLIENT_DISTANCE: u64 = 100;
/// Dirichlet concentration below which clients have hardly a class in common.
const MIN_ALPHA: f64 = 0.1;
/// Largest ring that mixes fast enough.
const MAX_RING: usize = 16;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "unstable-delay",
        condition: "gradients are so stale that descent along the largest curvature diverges",
        threshold: "optim.lr x staleness / (1 - momentum) >= 1 on a quadratic, whose curvature is \
                    1",
        advice: "lower optim.lr or sync.staleness",
        check: unstable_delay,
    },
    Lint {
        id: "busy-servers",
        condition: "every step of every worker moves the whole model through the servers twice",
        threshold: "run.workers > 10 x sync.servers",
        advice: "raise sync.servers, or use all-reduce",
        check: busy_servers,
    },
    Lint {
        id: "hot-server",
        condition: "frequent tokens often have low ids, and one server owns all of them",
        threshold: "sync.sparse_rows with sync.row_sharding = range and several servers",
        advice: "use sync.row_sharding = \"hash\", or sync.row_cache",
        check: hot_server,
    },
    Lint {
        id: "no-rare-rows",
        condition: "a step has as many tokens as the embedding has rows, so most rows are sent \
                    anyway",
        threshold: "sync.sparse_rows with model.vocab or more tokens per worker and step",
        advice: "leave it off, or use more workers",
        check: no_rare_rows,
    },
    Lint {
        id: "row-cache-momentum",
        condition: "cached rows are stale, and momentum amplifies the staleness of frequent rows",
        threshold: "sync.row_cache > 0 with momentum or beta1 > 0.5",
        advice: "lower it to 0.5 or less, or lower sync.row_cache_every",
        check: row_cache_momentum,
    },
    Lint {
        id: "long-client-rounds",
        condition: "clients take many local steps before they are averaged",
        threshold: "sync.local_steps x (federated.sampled - 1) > 100",
        advice: "take shorter rounds, or federated.method = \"scaffold\"",
        check: long_client_rounds,
    },
    Lint {
        id: "skewed-clients",
        condition: "clients with hardly a class in common drift apart",
        threshold: "federated.method = fedavg with sync.dirichlet_alpha < 0.1 or sync.partition = \
                    by-class",
        advice: "use federated.method = \"scaffold\" or \"fedprox\"",
        check: skewed_clients,
    },
    Lint {
        id: "slow-mixing",
        condition: "information crosses the ring in half as many steps as it has workers",
        threshold: "sync.graph = ring or directed-ring with more than 16 workers",
        advice: "use sync.graph = \"exponential\"",
        check: slow_mixing,
    },
    Lint {
        id: "few-neighbours",
        condition: "a worker has too few neighbours for robust aggregation",
        threshold: "fewer than 2 sync.assumed_byzantine + 1 neighbours (trimmed-mean), or + 3 \
                    (krum), counting the worker itself, on a ring or torus",
        advice: "use sync.aggregation = \"median\", or a graph with more neighbours",
        check: few_neighbours,
    },
];

/// The momentum setting of the optimizer, with its value.
fn momentum(recipe: &Recipe) -> Option<(&'static str, f64)> {
    let optim = &recipe.optim;
    match optim.name {
        OptimName::Sgd => None,
        OptimName::Momentum | OptimName::Nesterov | OptimName::Lars => {
            Some(("momentum", optim.momentum))
        }
        OptimName::Adam | OptimName::AdamW | OptimName::Lamb => Some(("beta1", optim.beta1)),
    }
}

fn is_served(recipe: &Recipe) -> bool {
    recipe.sync.mode == SyncMode::ParameterServer
}

/// Staleness of gradients where servers do not wait for all workers.
fn staleness(recipe: &Recipe) -> Option<u64> {
    let server = &recipe.sync.server;
    let others = recipe.num_pushers() as u64 - 1;
    let found = match server.consistency {
        _ if !is_served(recipe) => return None,
        Consistency::Sync | Consistency::Elastic => 0,
        Consistency::Async => others,
        Consistency::Bounded => others.min(server.staleness),
    };
    Some(found.max(server.read_delay)).filter(|staleness| *staleness > 0)
}

fn unstable_delay(recipe: &Recipe) -> Option<String> {
    let staleness = staleness(recipe)?;
    let (lr, momentum) = (recipe.optim.lr, momentum(recipe).map_or(0.0, |(_, value)| value));
    let reach = lr * staleness as f64 / (1.0 - momentum);
    (recipe.model.family == Family::Quadratic && reach >= 1.0)
        .then(|| format!("optim.lr = {lr} with gradients of staleness {staleness} diverges"))
}

fn busy_servers(recipe: &Recipe) -> Option<String> {
    let (workers, servers) = (recipe.run.workers, recipe.num_servers());
    (servers > 0 && recipe.num_pushers() > MAX_WORKERS_PER_SERVER * servers)
        .then(|| format!("sync.servers = {servers} is the bottleneck of run.workers = {workers}"))
}

fn hot_server(recipe: &Recipe) -> Option<String> {
    let (servers, by) = (recipe.num_servers(), recipe.sync.server.rows.sparse_sharding()?);
    (servers > 1 && by == RowSharding::Range).then(|| {
        format!("sync.row_sharding = \"range\" gives one of {servers} servers most of the load")
    })
}

fn no_rare_rows(recipe: &Recipe) -> Option<String> {
    let (vocab, workers) = (recipe.model.vocab, recipe.run.workers);
    let tokens = recipe.train.batch * recipe.model.context / workers;
    (is_served(recipe) && recipe.sync.server.rows.sparse && is_text(recipe) && tokens >= vocab)
        .then(|| format!("sync.sparse_rows = true with {tokens} tokens for {vocab} rows"))
}

fn row_cache_momentum(recipe: &Recipe) -> Option<String> {
    let ((name, value), cache) = (momentum(recipe)?, recipe.sync.server.rows.cache);
    (is_served(recipe) && cache > 0 && value > MAX_STALE_MOMENTUM).then(|| {
        format!("optim.{name} = {value} amplifies the staleness of sync.row_cache = {cache}")
    })
}

fn long_client_rounds(recipe: &Recipe) -> Option<String> {
    let (steps, sampled) = (recipe.sync.local_steps, recipe.federated.sampled);
    let distance = steps.saturating_mul(sampled as u64 - 1);
    let is_plain = recipe.federated.method == FederatedMethod::FedAvg;
    (recipe.is_federated() && is_plain && distance > MAX_CLIENT_DISTANCE).then(|| {
        format!(
            "sync.local_steps = {steps} with {sampled} clients acts like a staleness of {distance}"
        )
    })
}

fn skewed_clients(recipe: &Recipe) -> Option<String> {
    let (alpha, by) = (recipe.sync.dirichlet_alpha, recipe.sync.partition);
    let is_plain = recipe.federated.method == FederatedMethod::FedAvg;
    if !recipe.is_federated() || !is_plain || recipe.sync.local_steps < 2 {
        return None;
    }
    match by {
        SyncPartition::Dirichlet if alpha < MIN_ALPHA => {
            Some(format!("sync.dirichlet_alpha = {alpha} lets clients drift apart"))
        }
        SyncPartition::ByClass => {
            Some("sync.partition = \"by-class\" lets clients drift apart".to_owned())
        }
        _ => None,
    }
}

fn slow_mixing(recipe: &Recipe) -> Option<String> {
    let (graph, workers) = (recipe.sync.gossip.graph, recipe.run.workers);
    let is_ring = matches!(graph, GraphName::Ring | GraphName::DirectedRing);
    (recipe.sync.mode == SyncMode::Gossip && is_ring && workers > MAX_RING)
        .then(|| format!("sync.graph = \"{graph}\" of {workers} workers mixes slowly"))
}

fn few_neighbours(recipe: &Recipe) -> Option<String> {
    let (robust, workers) = (&recipe.sync.server, recipe.run.workers);
    let neighbours = match recipe.sync.gossip.graph {
        _ if recipe.sync.mode != SyncMode::Gossip => return None,
        GraphName::Ring => 3.min(workers),
        GraphName::Torus => 5.min(workers),
        _ => return None,
    };
    let needed = match robust.aggregation {
        AggregationRule::Mean | AggregationRule::Median => return None,
        AggregationRule::TrimmedMean => 2 * robust.assumed_byzantine + 1,
        AggregationRule::Krum => 2 * robust.assumed_byzantine + 3,
    };
    let (rule, assumed) = (robust.aggregation, robust.assumed_byzantine);
    (neighbours < needed).then(|| {
        format!(
            "sync.aggregation = \"{rule}\" with sync.assumed_byzantine = {assumed} has only \
             {neighbours} vectors to compare"
        )
    })
}

/// For every lint, settings to which it applies and settings just below its threshold.
#[cfg(test)]
pub(super) const CASES: &[(&str, &str, &[&str], &[&str])] = &[
    (
        "unstable-delay",
        "quadratic",
        &["sync.mode=parameter-server", "sync.read_delay=4", "optim.name=sgd", "optim.lr=0.25"],
        &["sync.mode=parameter-server", "sync.read_delay=4", "optim.name=sgd", "optim.lr=0.24"],
    ),
    (
        "busy-servers",
        "tiny",
        &[SERVED, "run.workers=11", "train.batch=32", "numerics.invariant_up_to=32"],
        &[SERVED, "run.workers=10", "train.batch=32", "numerics.invariant_up_to=32"],
    ),
    (
        "hot-server",
        "tiny",
        &[SERVED, "sync.sparse_rows=true", "sync.servers=2", "sync.row_sharding=range"],
        &[SERVED, "sync.sparse_rows=true", "sync.servers=2", "sync.row_sharding=hash"],
    ),
    (
        "no-rare-rows",
        "tiny",
        &[SERVED, "sync.sparse_rows=true", "train.batch=8", "model.context=64", "run.workers=2"],
        &[SERVED, "sync.sparse_rows=true", "train.batch=8", "model.context=63", "run.workers=2"],
    ),
    (
        "row-cache-momentum",
        "tiny",
        &[SERVED, "sync.sparse_rows=true", "sync.row_cache=9", "optim.beta1=0.51"],
        &[SERVED, "sync.sparse_rows=true", "sync.row_cache=9", "optim.beta1=0.5"],
    ),
    ("long-client-rounds", "federated", &["sync.local_steps=12"], &["sync.local_steps=11"]),
    ("skewed-clients", "federated", &["sync.dirichlet_alpha=0.09"], &["sync.dirichlet_alpha=0.1"]),
    (
        "slow-mixing",
        "tiny",
        &["sync.mode=gossip", "run.workers=17", "train.batch=32", "numerics.invariant_up_to=32"],
        &["sync.mode=gossip", "run.workers=16", "train.batch=32", "numerics.invariant_up_to=32"],
    ),
    (
        "few-neighbours",
        "tiny",
        &["sync.mode=gossip", "run.workers=5", "sync.aggregation=krum"],
        &["sync.mode=gossip", "run.workers=5", "sync.aggregation=krum", "sync.graph=torus"],
    ),
];

#[cfg(test)]
const SERVED: &str = "sync.mode=parameter-server";

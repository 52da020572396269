//! Servers, gossip and clients: what delay, skew and crowds do to learning without one lockstep.

use super::{Lint, is_text};
use crate::recipe::{
    AggregationRule, Consistency, Family, FederatedMethod, GraphName, OptimName, Recipe,
    RowSharding, SyncMode, SyncPartition,
};

/// Momentum that stale gradients go with.
const MAX_STALE_MOMENTUM: f64 = 0.5;
/// Workers whose whole models a server can move.
const MAX_WORKERS_PER_SERVER: usize = 10;
/// Steps of a round times the other clients of it.
const MAX_CLIENT_DISTANCE: u64 = 100;
/// Dirichlet's parameter below which clients have hardly a class in common.
const MIN_ALPHA: f64 = 0.1;
/// Workers on a circle to whom news comes in time.
const MAX_RING: usize = 16;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "unstable-delay",
        condition: "gradients are so old that descent on the steepest side overshoots ever farther",
        threshold: "optim.lr x staleness / (1 - momentum) >= 1 on a bowl, whose curvature is 1",
        advice: "lower optim.lr or sync.staleness",
        rows: &["G29", "482"],
        check: unstable_delay,
    },
    Lint {
        id: "busy-servers",
        condition: "every step of every worker moves the whole model twice through the servers",
        threshold: "run.workers > 10 x sync.servers",
        advice: "raise sync.servers, or use all-reduce",
        rows: &["480", "F11.1"],
        check: busy_servers,
    },
    Lint {
        id: "hot-server",
        condition: "common tokens often have low numbers, and one server has all of them",
        threshold: "sync.sparse_rows with sync.row_sharding = range and several servers",
        advice: "use sync.row_sharding = \"hash\", or sync.row_cache",
        rows: &["G25", "H41"],
        check: hot_server,
    },
    Lint {
        id: "no-rare-rows",
        condition: "a step has as many tokens as the table has rows, so most rows travel anyway",
        threshold: "sync.sparse_rows with as many tokens a worker and step as model.vocab",
        advice: "leave it off, or use more workers",
        rows: &["G25"],
        check: no_rare_rows,
    },
    Lint {
        id: "hot-momentum",
        condition: "rows that are kept are stale, and momentum adds to it where most updates go",
        threshold: "sync.row_cache > 0 with momentum or beta1 > 0.5",
        advice: "lower it to 0.5 or less, or lower sync.row_cache_every",
        rows: &["H38"],
        check: hot_momentum,
    },
    Lint {
        id: "distant-clients",
        condition: "clients go far on their own samples before they are averaged",
        threshold: "sync.local_steps x (federated.sampled - 1) > 100",
        advice: "take shorter rounds, or federated.method = \"scaffold\"",
        rows: &["A33", "476"],
        check: distant_clients,
    },
    Lint {
        id: "skewed-clients",
        condition: "clients with hardly a class in common pull the mean away from what all want",
        threshold: "federated.method = fedavg with sync.dirichlet_alpha < 0.1 or sync.partition = by-class",
        advice: "use federated.method = \"scaffold\" or \"fedprox\"",
        rows: &["457", "F7.2", "H34"],
        check: skewed_clients,
    },
    Lint {
        id: "slow-news",
        condition: "news of one worker takes as many steps as half the circle is long",
        threshold: "sync.graph = ring or directed-ring with more than 16 workers",
        advice: "use sync.graph = \"exponential\"",
        rows: &["R44"],
        check: slow_news,
    },
    Lint {
        id: "few-neighbours",
        condition: "a worker hears too few others to tell who lies",
        threshold: "fewer than 2 sync.assumed_byzantine + 1 heard (trimmed-mean), or + 3 (krum), oneself \
                    included, on a ring or torus",
        advice: "use sync.aggregation = \"median\", or a graph with more neighbours",
        rows: &["R44"],
        check: few_neighbours,
    },
];

/// The setting that repeats old gradients, and how strongly.
fn memory(recipe: &Recipe) -> Option<(&'static str, f64)> {
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

/// The updates that a gradient may miss, where servers do not wait for all.
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
    let (lr, memory) = (recipe.optim.lr, memory(recipe).map_or(0.0, |(_, value)| value));
    let reach = lr * staleness as f64 / (1.0 - memory);
    (recipe.model.family == Family::Quadratic && reach >= 1.0)
        .then(|| format!("optim.lr = {lr} with gradients that miss {staleness} updates diverges"))
}

fn busy_servers(recipe: &Recipe) -> Option<String> {
    let (workers, servers) = (recipe.run.workers, recipe.num_servers());
    (servers > 0 && recipe.num_pushers() > MAX_WORKERS_PER_SERVER * servers)
        .then(|| format!("sync.servers = {servers} is the bottleneck of run.workers = {workers}"))
}

fn hot_server(recipe: &Recipe) -> Option<String> {
    let (servers, by) = (recipe.num_servers(), recipe.sync.server.rows.sparse_sharding()?);
    (servers > 1 && by == RowSharding::Range).then(|| {
        format!("sync.row_sharding = \"range\" gives one of {servers} servers most of the work")
    })
}

fn no_rare_rows(recipe: &Recipe) -> Option<String> {
    let (vocab, workers) = (recipe.model.vocab, recipe.run.workers);
    let tokens = recipe.train.batch * recipe.model.context / workers;
    (is_served(recipe) && recipe.sync.server.rows.sparse && is_text(recipe) && tokens >= vocab)
        .then(|| format!("sync.sparse_rows = true with {tokens} tokens for {vocab} rows"))
}

fn hot_momentum(recipe: &Recipe) -> Option<String> {
    let ((name, value), hot) = (memory(recipe)?, recipe.sync.server.rows.cache);
    (is_served(recipe) && hot > 0 && value > MAX_STALE_MOMENTUM)
        .then(|| format!("optim.{name} = {value} repeats what sync.row_cache = {hot} makes stale"))
}

fn distant_clients(recipe: &Recipe) -> Option<String> {
    let (steps, sampled) = (recipe.sync.local_steps, recipe.federated.sampled);
    let distance = steps.saturating_mul(sampled as u64 - 1);
    let is_plain = recipe.federated.method == FederatedMethod::FedAvg;
    (recipe.is_federated() && is_plain && distance > MAX_CLIENT_DISTANCE).then(|| {
        format!("sync.local_steps = {steps} with {sampled} clients is like a delay of {distance}")
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

fn slow_news(recipe: &Recipe) -> Option<String> {
    let (graph, workers) = (recipe.sync.gossip.graph, recipe.run.workers);
    let is_ring = matches!(graph, GraphName::Ring | GraphName::DirectedRing);
    (recipe.sync.mode == SyncMode::Gossip && is_ring && workers > MAX_RING)
        .then(|| format!("sync.graph = \"{graph}\" of {workers} workers mixes slowly"))
}

fn few_neighbours(recipe: &Recipe) -> Option<String> {
    let (robust, workers) = (&recipe.sync.server, recipe.run.workers);
    let heard = match recipe.sync.gossip.graph {
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
    let (combine, liars) = (robust.aggregation, robust.assumed_byzantine);
    (heard < needed)
        .then(|| format!("sync.aggregation = \"{combine}\" with sync.assumed_byzantine = {liars} of {heard} heard"))
}

/// A setting that each lint speaks about, and one just on the other side of its line.
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
        "hot-momentum",
        "tiny",
        &[SERVED, "sync.sparse_rows=true", "sync.row_cache=9", "optim.beta1=0.51"],
        &[SERVED, "sync.sparse_rows=true", "sync.row_cache=9", "optim.beta1=0.5"],
    ),
    ("distant-clients", "federated", &["sync.local_steps=12"], &["sync.local_steps=11"]),
    ("skewed-clients", "federated", &["sync.dirichlet_alpha=0.09"], &["sync.dirichlet_alpha=0.1"]),
    (
        "slow-news",
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

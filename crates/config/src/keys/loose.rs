//! Keys of learning without one lockstep: gossip and servers.

use super::{float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Consistency, GraphName, Recipe, StalenessWeight, SyncMode};
use crate::value::Value;

use Default::{Derived, Fixed};

const GOSSIP: &[&str] = &["gossip"];
const SERVER: &[&str] = &["parameter-server"];

pub(super) const GRAPH: Key = Key::new(
    "sync.graph",
    Kind::Choice(GraphName::NAMES),
    Fixed("\"ring\""),
    field!(sync.gossip.graph: choice GraphName),
    "Whom a worker averages its weights with after every step. directed-ring, one-peer and \
     random-directed send one way and correct for it (push-sum).",
)
.only_when("sync.mode", GOSSIP);

pub(super) const DEGREE: Key = Key::new(
    "sync.degree",
    integer(1, super::MAX_WORKERS),
    Derived { text: "= 3, or 2 where that does not go", from: usual_degree },
    field!(sync.gossip.degree: integer usize),
    "How many others a worker sends to on a graph drawn by chance.",
)
.only_when("sync.graph", GraphName::WITH_DEGREE);

pub(super) const THREADS: Key = Key::new(
    "sync.threads",
    integer(1, super::MAX_WORKERS),
    Fixed("4"),
    field!(sync.threads: integer usize),
    "Threads of the worker that step the same weights without a lock.",
)
.only_when("sync.mode", &["hogwild"])
.else_count(1);

pub(super) const SERVERS: Key = Key::new(
    "sync.servers",
    integer(1, super::MAX_WORKERS),
    Fixed("1"),
    field!(sync.server.count: integer usize),
    "How many servers hold the weights, a range of them each: processes besides those of \
     run.workers, with the ranks behind theirs.",
)
.only_when("sync.mode", SERVER)
.else_count(0);

pub(super) const REPLICAS: Key = Key::new(
    "sync.replicas",
    integer(0, 1),
    Fixed("0"),
    field!(sync.server.replicas: integer usize),
    "How many more processes hold what each server holds. With one a server acknowledges nothing \
     that its copy does not have, and the run survives the loss of either.",
)
.only_when("sync.mode", SERVER)
.else_count(0);

pub(super) const CONSISTENCY: Key = Key::new(
    "sync.consistency",
    Kind::Choice(Consistency::NAMES),
    Fixed("\"async\""),
    field!(sync.server.consistency: choice Consistency),
    "Who waits for whom: sync adds up the gradients of all workers in every step; async takes each \
     as it comes; bounded lets those who are ahead wait so that none has missed more than \
     sync.staleness updates; elastic adds up the gradients of sync.quorum workers, or of those \
     who have come after sync.close_after_ms.",
)
.only_when("sync.mode", SERVER);

pub(super) const STALENESS: Key = Key::new(
    "sync.staleness",
    integer(0, 1_000_000),
    Fixed("10"),
    field!(sync.server.staleness: integer u64),
    "The most updates that a gradient may have missed between reading the weights and stepping \
     them. Below run.workers - 1 not all workers can be at work at once.",
)
.only_when("sync.consistency", &["bounded"]);

pub(super) const STALENESS_WEIGHT: Key = Key::new(
    "sync.staleness_weight",
    Kind::Choice(StalenessWeight::NAMES),
    Fixed("\"none\""),
    field!(sync.server.staleness_weight: choice StalenessWeight),
    "How much shorter the step of a gradient is that has missed t updates: not at all, by 1/(1+t), \
     or by sync.staleness_decay to the power of t.",
)
.only_when("sync.mode", &["parameter-server"]);

pub(super) const STALENESS_DECAY: Key = Key::new(
    "sync.staleness_decay",
    float(Bound::Open(0.0), Bound::Open(1.0)),
    Fixed("0.9"),
    field!(sync.server.staleness_decay: f64),
    "What a step is multiplied by for every update that its gradient has missed.",
)
.only_when("sync.staleness_weight", &["exponential"]);

pub(super) const DELAY: Key = Key::new(
    "sync.read_delay",
    integer(0, 1_000_000),
    Fixed("0"),
    field!(sync.server.delay: integer u64),
    "How many versions behind the newest a reader is kept on purpose, to study staleness: with one \
     worker every gradient is exactly so stale.",
)
.only_when("sync.mode", &["parameter-server"]);

/// Three where there are so many others, and for a regular graph an even number of ends.
fn usual_degree(recipe: &Recipe) -> Value {
    // Where nobody asks, it must not depend on how many workers there are.
    if recipe.sync.mode != SyncMode::Gossip {
        return integer_value(2);
    }
    let workers = recipe.run.workers;
    let is_regular = recipe.sync.gossip.graph == GraphName::RandomRegular;
    let most = workers.saturating_sub(1).clamp(1, 3);
    let odd_ends = is_regular && workers % 2 == 1 && most == 3;
    integer_value(if odd_ends { 2 } else { most })
}

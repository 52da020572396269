//! Keys of gossip averaging and of Hogwild.

use super::{integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{GraphName, Recipe, SyncMode};
use crate::value::Value;
use crate::value_type::ValueType;

use Default::{Derived, Fixed};

pub(super) const GRAPH: Key = Key::new(
    "sync.graph",
    ValueType::Choice(GraphName::NAMES),
    Fixed("\"ring\""),
    field!(sync.gossip.graph: choice GraphName),
    "Communication graph: the neighbours with which a worker averages its weights after every \
     step. directed-ring, one-peer and random-directed send in one direction and use push-sum.",
)
.only_when("sync.mode", &["gossip"]);

pub(super) const DEGREE: Key = Key::new(
    "sync.degree",
    integer(1, super::MAX_WORKERS),
    Derived {
        text: "= 3, or 2 where a regular graph of degree 3 does not exist",
        from: default_degree,
    },
    field!(sync.gossip.degree: integer usize),
    "Number of neighbours of a worker on a random graph.",
)
.only_when("sync.graph", GraphName::WITH_DEGREE);

pub(super) const THREADS: Key = Key::new(
    "sync.threads",
    integer(1, super::MAX_WORKERS),
    Fixed("4"),
    field!(sync.threads: integer usize),
    "Threads of the worker that update the shared weights without locks.",
)
.only_when("sync.mode", &["hogwild"])
.inactive_count(1);

/// Three, or as many as there are other workers. A regular graph needs an even number of edge
/// ends, so three becomes two for an odd number of workers.
fn default_degree(recipe: &Recipe) -> Value {
    // Outside gossip the value must not depend on the number of workers.
    if recipe.sync.mode != SyncMode::Gossip {
        return integer_value(2);
    }
    let workers = recipe.run.workers;
    let is_regular = recipe.sync.gossip.graph == GraphName::RandomRegular;
    let most = workers.saturating_sub(1).clamp(1, 3);
    let odd_ends = is_regular && workers % 2 == 1 && most == 3;
    integer_value(if odd_ends { 2 } else { most })
}

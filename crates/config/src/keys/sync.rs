//! Keys of how often workers agree: after every step, or after rounds of steps of their own.

use super::loose::{
    CONSISTENCY, DEGREE, DELAY, GRAPH, SERVERS, STALENESS, STALENESS_DECAY, STALENESS_WEIGHT,
};
use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Averaged, Outer, Recipe, SyncMode};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

/// Where rounds mean anything.
const LOCAL: &[&str] = &["local-sgd"];

pub(super) const SYNC: &[Key] = &[
    Key::new(
        "sync.mode",
        Kind::Choice(SyncMode::NAMES),
        Fixed("\"all-reduce\""),
        field!(sync.mode: choice SyncMode),
        "When workers agree: all-reduce adds up gradients in every step; local-sgd lets each \
         worker take steps of its own and averages the weights at the end of a round; gossip \
         lets it average with a few neighbours after every step; parameter-server keeps weights \
         on servers that workers pull from and push gradients to (the bits then depend on the \
         workers).",
    )
    .counting_when(is_lazy),
    Key::new(
        "sync.local_steps",
        integer(1, 1_000_000),
        Fixed("8"),
        field!(sync.local_steps: integer u64),
        "Steps of a round, K. A round of one step is an all-reduce of gradients.",
    )
    .only_when("sync.mode", LOCAL)
    .else_count(1),
    Key::new(
        "sync.final_local_steps",
        integer(1, 1_000_000),
        Derived { text: "= sync.local_steps", from: same_at_the_end },
        field!(sync.final_local_steps: integer u64),
        "Steps of a round at the end of the run; in between the number changes evenly.",
    )
    .only_when("sync.mode", LOCAL)
    .else_count(1),
    Key::new(
        "sync.synchronous",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(sync.synchronous: f64),
        "The share of the run that adds up gradients in every step before rounds begin \
         (post-local SGD).",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.average",
        Kind::Choice(Averaged::NAMES),
        Fixed("\"weights\""),
        field!(sync.average: choice Averaged),
        "What is averaged at the end of a round: weights alone, each worker keeping its own \
         momentum, or the optimizer's state too.",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.outer",
        Kind::Choice(Outer::NAMES),
        Fixed("\"none\""),
        field!(sync.outer: choice Outer),
        "What becomes of the mean change of a round: none takes it as it is, nesterov gives it to \
         an optimizer with momentum, as if it were a gradient (DiLoCo).",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.outer_lr",
        float(Open(0.0), Closed(10.0)),
        Fixed("0.7"),
        field!(sync.outer_lr: f64),
        "Learning rate of the outer optimizer.",
    )
    .only_when("sync.outer", &["nesterov"]),
    Key::new(
        "sync.outer_momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(sync.outer_momentum: f64),
        "Momentum of the outer optimizer.",
    )
    .only_when("sync.outer", &["nesterov"]),
    GRAPH,
    DEGREE,
    SERVERS,
    CONSISTENCY,
    STALENESS,
    STALENESS_WEIGHT,
    STALENESS_DECAY,
    DELAY,
];

/// Recipes from before there was a choice keep their identity.
fn is_lazy(recipe: &Recipe) -> bool {
    recipe.sync.mode != SyncMode::AllReduce
}

fn same_at_the_end(recipe: &Recipe) -> Value {
    Value::Integer(i64::try_from(recipe.sync.local_steps).unwrap_or(i64::MAX))
}

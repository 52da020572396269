//! Keys of how often workers agree: after every step, or after rounds of steps of their own.

use super::{MAX_WORKERS, float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Averaged, Outer, Recipe, Stragglers, SyncMode};
use crate::units::Seconds;
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

/// Where gradients are added up in every step.
const SYNCHRONOUS: &[&str] = &["all-reduce"];

/// Where rounds mean anything.
const LOCAL: &[&str] = &["local-sgd"];

pub(super) const SYNC: &[Key] = &[
    Key::new(
        "sync.mode",
        Kind::Choice(SyncMode::NAMES),
        Fixed("\"all-reduce\""),
        field!(sync.mode: choice SyncMode),
        "When workers agree: all-reduce adds up gradients in every step; local-sgd lets each \
         worker take steps of its own and averages the weights at the end of a round (the bits \
         then depend on the workers).",
    )
    .counting_when(is_lazy),
    Key::new(
        "sync.stragglers",
        Kind::Choice(Stragglers::NAMES),
        Fixed("\"wait\""),
        field!(sync.uneven.stragglers: choice Stragglers),
        "What a step does about a worker that is late: wait; backup takes the gradients of the \
         fastest, timeout those that are there in time, drop-slowest all but those of workers that \
         take much longer than the middle one (the bits then depend on time); exclude lets a \
         worker that is slow for long pause until it is fast again; shares moves lanes to workers \
         that are faster, and changes no bit.",
    )
    .only_when("sync.mode", SYNCHRONOUS)
    .counting_when(|r| r.sync.uneven.stragglers.loses_lanes()),
    Key::new(
        "sync.backups",
        integer(1, MAX_WORKERS - 1),
        Fixed("1"),
        field!(sync.uneven.backups: integer usize),
        "Workers that a step can do without.",
    )
    .only_when("sync.stragglers", &["backup"]),
    Key::new(
        "sync.timeout_ms",
        float(Open(0.0), Closed(3_600_000.0)),
        Fixed("1000.0"),
        Field {
            get: |r| Some(Value::Float((r.sync.uneven.timeout.0 * 1e9).round() / 1e6)),
            set: |r, v| r.sync.uneven.timeout = Seconds(v.as_float() / 1e3),
        },
        "Milliseconds that a step gives its workers; it waits for one of them in any case.",
    )
    .only_when("sync.stragglers", &["timeout"]),
    Key::new(
        "sync.slack",
        float(Closed(1.0), Closed(1000.0)),
        Fixed("1.5"),
        field!(sync.uneven.slack: f64),
        "How many times as long as the middle one a worker may take before it counts as slow.",
    )
    .only_when("sync.stragglers", &["drop-slowest", "exclude"]),
    Key::new(
        "sync.patience",
        integer(1, 1_000_000),
        Fixed("5"),
        field!(sync.uneven.patience: integer u64),
        "Steps in a row that a worker is slow, or fast again, before it is left out, or taken in; \
         steps that lanes are timed for before they are divided anew.",
    )
    .only_when("sync.stragglers", &["exclude", "shares"])
    .counting_when(|r| r.sync.uneven.stragglers.loses_lanes()),
    Key::new(
        "sync.delay",
        integer(0, 1),
        Fixed("0"),
        field!(sync.uneven.delay: integer u64),
        "How many steps old the gradients are that a step goes by: with 1 they are added up while \
         the next ones are computed, and the first step changes nothing.",
    )
    .only_when("sync.mode", SYNCHRONOUS)
    .else_count(0)
    .counting_when(|r| r.sync.uneven.delay > 0),
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
];

/// Recipes from before there was a choice keep their identity.
fn is_lazy(recipe: &Recipe) -> bool {
    recipe.sync.mode != SyncMode::AllReduce
}

fn same_at_the_end(recipe: &Recipe) -> Value {
    Value::Integer(i64::try_from(recipe.sync.local_steps).unwrap_or(i64::MAX))
}

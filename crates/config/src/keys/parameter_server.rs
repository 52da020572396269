//! Keys of parameter servers: consistency, staleness, quorums and the switch to synchronous
//! updates.

use super::{float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{
    Consistency, LateGradients, Recipe, StaleGradients, StalenessRule, StalenessWeight,
};
use crate::units::Seconds;
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

const SERVER: &[&str] = &["parameter-server"];
const BOUNDED: &[&str] = &["bounded"];
const ELASTIC: &[&str] = &["elastic"];

pub(super) const SERVERS: Key = Key::new(
    "sync.servers",
    integer(1, super::MAX_WORKERS),
    Fixed("1"),
    field!(sync.server.count: integer usize),
    "Number of parameter servers, each with one shard of the weights. They are processes besides \
     run.workers, with the ranks after the workers'.",
)
.only_when("sync.mode", SERVER)
.inactive_count(0);

pub(super) const REPLICAS: Key = Key::new(
    "sync.replicas",
    integer(0, 1),
    Fixed("0"),
    field!(sync.server.replicas: integer usize),
    "Number of replicas of each server. With 1 a server acknowledges an update only after its \
     replica has it, and the run survives the loss of either.",
)
.only_when("sync.mode", SERVER)
.inactive_count(0);

pub(super) const CONSISTENCY: Key = Key::new(
    "sync.consistency",
    ValueType::Choice(Consistency::NAMES),
    Fixed("\"async\""),
    field!(sync.server.consistency: choice Consistency),
    "Consistency model: sync sums the gradients of all workers in every step; async applies each \
     on arrival; bounded blocks fast workers so that no gradient misses more than sync.staleness \
     updates (SSP); elastic closes an update with sync.quorum gradients or after \
     sync.quorum_timeout_ms.",
)
.only_when("sync.mode", SERVER);

pub(super) const STALENESS: Key = Key::new(
    "sync.staleness",
    integer(0, 1_000_000),
    Fixed("10"),
    field!(sync.server.staleness: integer u64),
    "Staleness bound: maximum number of updates between the pull of the weights and the update \
     with their gradient. Below run.workers - 1 not all workers can compute at once.",
)
.only_when("sync.consistency", BOUNDED);

pub(super) const STALENESS_WEIGHT: Key = Key::new(
    "sync.staleness_weight",
    ValueType::Choice(StalenessWeight::NAMES),
    Fixed("\"none\""),
    field!(sync.server.staleness_weight: choice StalenessWeight),
    "Weight of a gradient of staleness t: none is 1, inverse is 1/(1+t), exponential is \
     sync.staleness_decay to the power of t.",
)
.only_when("sync.mode", SERVER);

pub(super) const STALENESS_DECAY: Key = Key::new(
    "sync.staleness_decay",
    float(Open(0.0), Open(1.0)),
    Fixed("0.9"),
    field!(sync.server.staleness_decay: f64),
    "Factor of a gradient's weight per missed update.",
)
.only_when("sync.staleness_weight", &["exponential"]);

pub(super) const READ_DELAY: Key = Key::new(
    "sync.read_delay",
    integer(0, 1_000_000),
    Fixed("0"),
    field!(sync.server.read_delay: integer u64),
    "Number of versions by which pulls are delayed on purpose, to study staleness: with one worker \
     every gradient has exactly this staleness.",
)
.only_when("sync.mode", SERVER);

pub(super) const STALE_GRADIENTS: Key = Key::new(
    "sync.stale_gradients",
    ValueType::Choice(StaleGradients::NAMES),
    Fixed("\"block\""),
    field!(sync.server.stale_gradients: choice StaleGradients),
    "Treatment of a gradient that would exceed the staleness bound: block makes its worker wait \
     before the pull; discard lets no worker wait and drops the gradient.",
)
.only_when("sync.consistency", BOUNDED);

pub(super) const STALENESS_RULE: Key = Key::new(
    "sync.staleness_rule",
    ValueType::Choice(StalenessRule::NAMES),
    Fixed("\"fixed\""),
    field!(sync.server.staleness_rule: choice StalenessRule),
    "How the staleness bound changes: fixed is constant; linear reaches sync.final_staleness at \
     the end; curvature is sync.staleness_constant / (learning rate * sync.curvature), at most \
     sync.staleness; oscillation halves it when gradients oscillate and grow.",
)
.only_when("sync.consistency", BOUNDED);

pub(super) const FINAL_STALENESS: Key = Key::new(
    "sync.final_staleness",
    integer(0, 1_000_000),
    Fixed("0"),
    field!(sync.server.final_staleness: integer u64),
    "Staleness bound at the end of the run.",
)
.only_when("sync.staleness_rule", &["linear"]);

pub(super) const CURVATURE: Key = Key::new(
    "sync.curvature",
    float(Open(0.0), Closed(1e12)),
    Fixed("1.0"),
    field!(sync.server.curvature: f64),
    "Largest curvature of the loss, as `lockstep inspect --curvature` measures it.",
)
.only_when("sync.staleness_rule", &["curvature"]);

pub(super) const STALENESS_CONSTANT: Key = Key::new(
    "sync.staleness_constant",
    float(Open(0.0), Closed(1e6)),
    Fixed("1.0"),
    field!(sync.server.staleness_constant: f64),
    "Numerator of the curvature rule. Gradient descent is stable up to about 1.57.",
)
.only_when("sync.staleness_rule", &["curvature"]);

pub(super) const QUORUM: Key = Key::new(
    "sync.quorum",
    integer(1, super::MAX_WORKERS),
    Derived { text: "= run.workers - 1, or groups of them - 1, at least 1", from: default_quorum },
    field!(sync.server.quorum: integer usize),
    "Number of gradients that close an update; the sum is scaled up for missing workers.",
)
.only_when("sync.consistency", ELASTIC);

pub(super) const QUORUM_TIMEOUT: Key = Key::new(
    "sync.quorum_timeout_ms",
    float(Closed(0.0), Closed(3_600_000.0)),
    Fixed("0.0"),
    Field {
        get: |r| Some(Value::Float((r.sync.server.quorum_timeout.0 * 1e9).round() / 1e6)),
        set: |r, v| r.sync.server.quorum_timeout = Seconds(v.as_float() / 1e3),
    },
    "Milliseconds after its first gradient at which an update is closed without a quorum; 0 waits \
     for sync.quorum without limit.",
)
.only_when("sync.consistency", ELASTIC);

pub(super) const LATE_GRADIENTS: Key = Key::new(
    "sync.late_gradients",
    ValueType::Choice(LateGradients::NAMES),
    Fixed("\"discard\""),
    field!(sync.server.late_gradients: choice LateGradients),
    "Treatment of a gradient that arrives after its update was closed: discard drops it, next \
     counts it in the update that is open.",
)
.only_when("sync.consistency", ELASTIC);

pub(super) const SWITCH_TO_SYNC_AFTER: Key = Key::new(
    "sync.switch_to_sync_after",
    float(Closed(0.0), Closed(1.0)),
    Fixed("1.0"),
    field!(sync.server.switch_to_sync_after: f64),
    "Fraction of the run's steps after which updates are synchronous, as with sync.consistency = \
     \"sync\"; 1 never switches.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(|r| r.sync.server.switch_to_sync_after < 1.0);

pub(super) const SWITCH_ON_LOSS_SPIKE: Key = Key::new(
    "sync.switch_on_loss_spike",
    float(Closed(0.0), Closed(1e6)),
    Fixed("0.0"),
    field!(sync.server.switch_on_loss_spike: f64),
    "Ratio of a worker's loss to the mean of its last 20 at which updates become synchronous from \
     the next step on; 0 never switches.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(|r| r.sync.server.switch_on_loss_spike > 0.0);

pub(super) const RESET_MOMENTUM: Key = Key::new(
    "sync.reset_momentum",
    ValueType::Bool,
    Fixed("false"),
    field!(sync.server.resets_momentum: bool),
    "Whether servers reset the optimizer state when the run resumes from a checkpoint, since \
     momentum from before the interruption is stale.",
)
.only_when("sync.mode", SERVER);

/// All but one of the workers or groups that push.
fn default_quorum(recipe: &Recipe) -> Value {
    // Outside elastic consistency the value must not depend on the number of workers.
    if recipe.sync.server.consistency.name() != ELASTIC[0] {
        return integer_value(1);
    }
    integer_value(recipe.num_pushers().saturating_sub(1).max(1))
}

//! Keys of what servers do about gradients that are stale, late or lies.

use super::{float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Beyond, FederatedAttack, FederatedCombine, Late, Recipe, StalenessRule};
use crate::units::Seconds;
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

const SERVER: &[&str] = &["parameter-server"];
const BOUNDED: &[&str] = &["bounded"];
const ELASTIC: &[&str] = &["elastic"];
/// Where somebody hears what several workers say.
const HEARING: &[&str] = &["gossip", "parameter-server"];

pub(super) const BEYOND: Key = Key::new(
    "sync.beyond",
    Kind::Choice(Beyond::NAMES),
    Fixed("\"block\""),
    field!(sync.server.beyond: choice Beyond),
    "What becomes of a gradient that would miss too many updates: block lets its worker wait \
     before it reads; discard lets nobody wait and throws the gradient away.",
)
.only_when("sync.consistency", BOUNDED);

pub(super) const STALENESS_RULE: Key = Key::new(
    "sync.staleness_rule",
    Kind::Choice(StalenessRule::NAMES),
    Fixed("\"fixed\""),
    field!(sync.server.staleness_rule: choice StalenessRule),
    "What the bound follows: fixed stays; linear goes to sync.final_staleness over the run; \
     curvature is sync.staleness_constant / (rate * sync.curvature), never more than \
     sync.staleness; oscillation is halved when gradients cancel each other and grow.",
)
.only_when("sync.consistency", BOUNDED);

pub(super) const FINAL_STALENESS: Key = Key::new(
    "sync.final_staleness",
    integer(0, 1_000_000),
    Fixed("0"),
    field!(sync.server.final_staleness: integer u64),
    "The bound at the end of the run.",
)
.only_when("sync.staleness_rule", &["linear"]);

pub(super) const CURVATURE: Key = Key::new(
    "sync.curvature",
    float(Open(0.0), Closed(1e12)),
    Fixed("1.0"),
    field!(sync.server.curvature: f64),
    "The largest curvature of the loss, as `lockstep inspect --curvature` finds it.",
)
.only_when("sync.staleness_rule", &["curvature"]);

pub(super) const STALENESS_CONSTANT: Key = Key::new(
    "sync.staleness_constant",
    float(Open(0.0), Closed(1e6)),
    Fixed("1.0"),
    field!(sync.server.staleness_constant: f64),
    "What is divided by rate and curvature for the bound. Descent is stable up to about 1.57.",
)
.only_when("sync.staleness_rule", &["curvature"]);

pub(super) const QUORUM: Key = Key::new(
    "sync.quorum",
    integer(1, super::MAX_WORKERS),
    Derived { text: "= run.workers - 1, or groups of them - 1, at least 1", from: usual_quorum },
    field!(sync.server.quorum: integer usize),
    "How many gradients close an update; those of workers that are missing are made up for by \
     lengthening the sum.",
)
.only_when("sync.consistency", ELASTIC);

pub(super) const CLOSE_AFTER: Key = Key::new(
    "sync.close_after_ms",
    float(Closed(0.0), Closed(3_600_000.0)),
    Fixed("0.0"),
    Field {
        get: |r| Some(Value::Float((r.sync.server.close_after.0 * 1e9).round() / 1e6)),
        set: |r, v| r.sync.server.close_after = Seconds(v.as_float() / 1e3),
    },
    "Milliseconds after its first gradient at which an update is closed with those who have come; \
     0 waits for sync.quorum however long it takes.",
)
.only_when("sync.consistency", ELASTIC);

pub(super) const LATE: Key = Key::new(
    "sync.late",
    Kind::Choice(Late::NAMES),
    Fixed("\"discard\""),
    field!(sync.server.late: choice Late),
    "What becomes of a gradient that comes after its update was closed: discard throws it away, \
     next counts it in the update that is open.",
)
.only_when("sync.consistency", ELASTIC);

pub(super) const SWITCH_AFTER: Key = Key::new(
    "sync.switch_after",
    float(Closed(0.0), Closed(1.0)),
    Fixed("1.0"),
    field!(sync.server.switch_after: f64),
    "The share of the run's steps after which all workers wait for all, as with sync.consistency = \
     \"sync\"; 1 never.",
)
.only_when("sync.mode", SERVER)
.counting_when(|r| r.sync.server.switch_after < 1.0);

pub(super) const SPIKE: Key = Key::new(
    "sync.spike",
    float(Closed(0.0), Closed(1e6)),
    Fixed("0.0"),
    field!(sync.server.spike: f64),
    "When a worker's loss is so many times the mean of its last 20, all workers wait for all from \
     the next step on; 0 never.",
)
.only_when("sync.mode", SERVER)
.counting_when(|r| r.sync.server.spike > 0.0);

pub(super) const RESETS_MOMENTUM: Key = Key::new(
    "sync.reset_momentum",
    Kind::Bool,
    Fixed("false"),
    field!(sync.server.resets_momentum: bool),
    "Whether servers forget their optimizer's state when the run goes on from a checkpoint: stale \
     momentum points where the run went before it was interrupted.",
)
.only_when("sync.mode", SERVER);

pub(super) const COMBINE: Key = Key::new(
    "sync.combine",
    Kind::Choice(FederatedCombine::NAMES),
    Fixed("\"mean\""),
    field!(sync.server.combine: choice FederatedCombine),
    "How the gradients of an update become one, or of gossip a worker's weights and those of its \
     neighbours; all but the mean bear workers that lie.",
)
.only_when("sync.mode", HEARING)
.counting_when(is_guarded);

pub(super) const LIARS: Key = Key::new(
    "sync.liars",
    integer(0, super::MAX_WORKERS),
    Fixed("1"),
    field!(sync.server.liars: integer usize),
    "Workers, or neighbours, that may lie: the extremes that a trimmed mean leaves out on either \
     side, or what krum counts on.",
)
.only_when("sync.combine", &["trimmed-mean", "krum"]);

pub(super) const GRADIENT_CLIP: Key = Key::new(
    "sync.gradient_clip",
    float(Closed(0.0), Closed(1e9)),
    Fixed("0.0"),
    field!(sync.server.gradient_clip: f64),
    "The most that a worker's gradient may be long at a server, or a neighbour's weights differ \
     from a worker's own; longer ones are shortened before the mean. 0 does not limit.",
)
.only_when("sync.mode", HEARING)
.counting_when(is_guarded);

pub(super) const BYZANTINE: Key = Key::new(
    "sync.byzantine",
    integer(0, super::MAX_WORKERS),
    Fixed("0"),
    field!(sync.server.byzantine: integer usize),
    "How many workers lie, the last ones, to see what becomes of it.",
)
.only_when("sync.mode", HEARING)
.counting_when(is_guarded);

pub(super) const ATTACK: Key = Key::new(
    "sync.attack",
    Kind::Choice(FederatedAttack::NAMES),
    Fixed("\"sign-flip\""),
    field!(sync.server.attack: choice FederatedAttack),
    "How they lie: sign-flip sends the opposite ten times as long, noise nothing but noise, stale \
     the first gradient, or change of weights, again and again.",
)
.only_when("sync.mode", HEARING)
.counting_when(is_guarded);

/// Recipes from before there was a choice keep their identity.
fn is_guarded(recipe: &Recipe) -> bool {
    recipe.sync.is_guarded()
}

/// All but one, where there are others.
fn usual_quorum(recipe: &Recipe) -> Value {
    // Where nobody asks, it must not depend on how many workers there are.
    if recipe.sync.server.consistency.name() != ELASTIC[0] {
        return integer_value(1);
    }
    integer_value(recipe.num_pushers().saturating_sub(1).max(1))
}

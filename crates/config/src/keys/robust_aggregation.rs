//! Keys of Byzantine-robust aggregation: the rule, and the simulated attack.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{AggregationRule, ByzantineAttack, Recipe};
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::Closed;
use Default::Fixed;

/// Modes in which the vectors of several workers are aggregated at one place.
const AGGREGATING: &[&str] = &["gossip", "parameter-server"];

pub(super) const AGGREGATION: Key = Key::new(
    "sync.aggregation",
    ValueType::Choice(AggregationRule::NAMES),
    Fixed("\"mean\""),
    field!(sync.server.aggregation: choice AggregationRule),
    "Rule that aggregates the gradients of an update or, with gossip, the weights of a worker and \
     its neighbours; all but mean tolerate Byzantine workers.",
)
.only_when("sync.mode", AGGREGATING)
.in_identity_when(has_byzantine_settings);

pub(super) const ASSUMED_BYZANTINE: Key = Key::new(
    "sync.assumed_byzantine",
    integer(0, super::MAX_WORKERS),
    Fixed("1"),
    field!(sync.server.assumed_byzantine: integer usize),
    "Number of Byzantine workers or neighbours that the rule tolerates: values trimmed on either \
     side by trimmed-mean, f of krum.",
)
.only_when("sync.aggregation", &["trimmed-mean", "krum"]);

pub(super) const GRADIENT_CLIP: Key = Key::new(
    "sync.gradient_clip",
    float(Closed(0.0), Closed(1e9)),
    Fixed("0.0"),
    field!(sync.server.gradient_clip: f64),
    "Norm to which a server clips each worker's gradient or, with gossip, a worker clips the \
     difference of a neighbour's weights to its own, before the mean; 0 does not clip.",
)
.only_when("sync.mode", AGGREGATING)
.in_identity_when(has_byzantine_settings);

pub(super) const BYZANTINE: Key = Key::new(
    "sync.byzantine",
    integer(0, super::MAX_WORKERS),
    Fixed("0"),
    field!(sync.server.byzantine: integer usize),
    "Number of simulated Byzantine workers, the last ranks, for robustness tests.",
)
.only_when("sync.mode", AGGREGATING)
.in_identity_when(has_byzantine_settings);

pub(super) const ATTACK: Key = Key::new(
    "sync.attack",
    ValueType::Choice(ByzantineAttack::NAMES),
    Fixed("\"sign-flip\""),
    field!(sync.server.attack: choice ByzantineAttack),
    "Attack of the simulated Byzantine workers: sign-flip sends the negated vector times ten, \
     noise sends Gaussian noise, stale repeats the first gradient or weight difference.",
)
.only_when("sync.mode", AGGREGATING)
.in_identity_when(has_byzantine_settings);

/// Recipes without these settings keep the hash they had before the settings existed.
fn has_byzantine_settings(recipe: &Recipe) -> bool {
    recipe.sync.has_byzantine_settings()
}

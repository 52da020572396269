//! Keys of workers that may lie to each other or to servers; those of clients have the same names.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{FederatedAttack, FederatedCombine, Recipe};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::Fixed;

/// Where workers hear what others say, or servers do.
const LOOSE: &[&str] = &["gossip", "parameter-server"];

pub(super) const COMBINE: Key = Key::new(
    "sync.combine",
    Kind::Choice(FederatedCombine::NAMES),
    Fixed("\"mean\""),
    field!(sync.robust.combine: choice FederatedCombine),
    "How what a worker and its neighbours have becomes one, or a server the gradients of all \
     workers; all but the mean bear some that lie.",
)
.only_when("sync.mode", LOOSE)
.counting_when(is_guarded);

pub(super) const LIARS: Key = Key::new(
    "sync.liars",
    integer(0, 64),
    Fixed("1"),
    field!(sync.robust.liars: integer usize),
    "Neighbours of a worker, or workers of a server, that may lie: the extremes that a trimmed \
     mean leaves out on either side, or what krum counts on.",
)
.only_when("sync.combine", &["trimmed-mean", "krum"]);

pub(super) const CLIP: Key = Key::new(
    "sync.clip",
    float(Closed(0.0), Closed(1e9)),
    Fixed("0.0"),
    field!(sync.robust.clip: f64),
    "The most that a neighbour's weights may differ from a worker's own, or a gradient be long at \
     a server; what is longer is shortened. 0 does not limit; only with sync.combine = mean.",
)
.only_when("sync.mode", LOOSE)
.counting_when(is_guarded);

pub(super) const BYZANTINE: Key = Key::new(
    "sync.byzantine",
    float(Closed(0.0), Open(1.0)),
    Fixed("0.0"),
    field!(sync.robust.byzantine: f64),
    "The share of workers that lie, to see what becomes of it.",
)
.only_when("sync.mode", LOOSE)
.counting_when(is_guarded);

pub(super) const ATTACK: Key = Key::new(
    "sync.attack",
    Kind::Choice(FederatedAttack::NAMES),
    Fixed("\"sign-flip\""),
    field!(sync.robust.attack: choice FederatedAttack),
    "How they lie: sign-flip tells the opposite of a step or gradient ten times as long, noise \
     nothing but noise, stale the first one again and again.",
)
.only_when("sync.mode", LOOSE)
.counting_when(is_guarded);

/// Recipes from before there was a choice keep their identity.
fn is_guarded(recipe: &Recipe) -> bool {
    recipe.sync.is_guarded()
}

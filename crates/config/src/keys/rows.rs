//! Keys of rows of the embedding that travel one by one to and from servers.

use super::integer;
use crate::key::{Default, Field, Key, field};
use crate::kind::Kind;
use crate::recipe::{Recipe, RowsBy};
use crate::value::Value;

use Default::Fixed;

const SERVER: &[&str] = &["parameter-server"];

pub(super) const SPARSE_ROWS: Key = Key::new(
    "sync.sparse_rows",
    Kind::Bool,
    Fixed("false"),
    field!(sync.server.rows.sparse: bool),
    "Whether of the input embedding only those rows travel to and from servers that the tokens of \
     a step touch.",
)
.only_when("sync.mode", SERVER)
.counting_when(is_sparse);

pub(super) const ROWS_BY: Key = Key::new(
    "sync.rows_by",
    Kind::Choice(RowsBy::NAMES),
    Fixed("\"hash\""),
    field!(sync.server.rows.by: choice RowsBy),
    "Which server holds which rows, where they travel one by one: by a hash of their number, or in \
     ranges.",
)
.only_when("sync.mode", SERVER)
.counting_when(is_sparse);

pub(super) const HOT_ROWS: Key = Key::new(
    "sync.hot_rows",
    integer(0, 1 << 20),
    Fixed("0"),
    field!(sync.server.rows.hot: integer usize),
    "How many of the rows that it touches most a worker keeps for some steps instead of pulling \
     them in each; needs sync.sparse_rows.",
)
.only_when("sync.mode", SERVER)
.counting_when(is_sparse);

pub(super) const HOT_EVERY: Key = Key::new(
    "sync.hot_every",
    integer(1, 1_000_000),
    Fixed("8"),
    field!(sync.server.rows.hot_every: integer u64),
    "Steps after which a row that is kept is pulled again; or sooner, when it has missed more \
     updates than sync.staleness allows.",
)
.only_when("sync.mode", SERVER)
.counting_when(is_sparse);

pub(super) const SPREAD_ROWS: Key = Key::new(
    "sync.spread_rows",
    integer(0, 1 << 20),
    Fixed("0"),
    field!(sync.server.rows.spread: integer usize),
    "How many of the rows that it touches most a worker takes from copies that all servers keep of \
     each other's; needs sync.sparse_rows and several servers.",
)
.only_when("sync.mode", SERVER)
.counting_when(is_spread);

pub(super) const SPREAD_AGE: Key = Key::new(
    "sync.spread_age",
    integer(0, 1_000_000),
    Fixed("8"),
    field!(sync.server.rows.spread_age: integer u64),
    "The most updates that such a copy may have missed: no more than sync.staleness where that \
     bounds, and none where all wait for all.",
)
.only_when("sync.mode", SERVER)
.counting_when(is_spread);

fn is_spread(recipe: &Recipe) -> bool {
    recipe.sync.server.rows.spread > 0
}

/// Recipes from before there was a choice keep their identity.
fn is_sparse(recipe: &Recipe) -> bool {
    recipe.sync.server.rows.sparse
}

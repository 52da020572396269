//! Keys of sparse transfers of embedding rows to and from parameter servers.

use super::integer;
use crate::key::{Default, Field, Key, field};
use crate::recipe::{Recipe, RowSharding};
use crate::value::Value;
use crate::value_type::ValueType;

use Default::Fixed;

const SERVER: &[&str] = &["parameter-server"];

pub(super) const SPARSE_ROWS: Key = Key::new(
    "sync.sparse_rows",
    ValueType::Bool,
    Fixed("false"),
    field!(sync.server.rows.sparse: bool),
    "Whether pulls and pushes of the input embedding carry only the rows of the step's tokens.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(is_sparse);

pub(super) const ROW_SHARDING: Key = Key::new(
    "sync.row_sharding",
    ValueType::Choice(RowSharding::NAMES),
    Fixed("\"hash\""),
    field!(sync.server.rows.sharding: choice RowSharding),
    "How embedding rows are sharded over servers with sync.sparse_rows: by a hash of the row \
     index, or in contiguous ranges.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(is_sparse);

pub(super) const ROW_CACHE: Key = Key::new(
    "sync.row_cache",
    integer(0, 1 << 20),
    Fixed("0"),
    field!(sync.server.rows.cache: integer usize),
    "Number of its most frequent rows that a worker caches instead of pulling them in every step; \
     needs sync.sparse_rows.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(is_sparse);

pub(super) const ROW_CACHE_EVERY: Key = Key::new(
    "sync.row_cache_every",
    integer(1, 1_000_000),
    Fixed("8"),
    field!(sync.server.rows.cache_every: integer u64),
    "Steps between two refreshes of a cached row; a row that exceeds sync.staleness is refreshed \
     earlier.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(is_sparse);

pub(super) const REPLICATED_ROWS: Key = Key::new(
    "sync.replicated_rows",
    integer(0, 1 << 20),
    Fixed("0"),
    field!(sync.server.rows.replicated: integer usize),
    "Number of its most frequent rows that a worker pulls from replicas on all servers; needs \
     sync.sparse_rows and several servers.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(has_replicated_rows);

pub(super) const REPLICATED_ROWS_AGE: Key = Key::new(
    "sync.replicated_rows_age",
    integer(0, 1_000_000),
    Fixed("8"),
    field!(sync.server.rows.replicated_age: integer u64),
    "Maximum number of updates that a replicated row may have missed; at most sync.staleness with \
     bounded consistency, and 0 with sync.",
)
.only_when("sync.mode", SERVER)
.in_identity_when(has_replicated_rows);

fn has_replicated_rows(recipe: &Recipe) -> bool {
    recipe.sync.server.rows.replicated > 0
}

/// Recipes without sparse rows keep the hash they had before the setting existed.
fn is_sparse(recipe: &Recipe) -> bool {
    recipe.sync.server.rows.sparse
}

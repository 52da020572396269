//! Sparse transfers of embedding rows to and from parameter servers.

use super::Recipe;
use crate::topic::{choices, topic};

const SERVER: &[&str] = &["parameter-server"];

topic! {
    /// Transfer of embedding rows to and from the servers.
    #[derive(Copy, Eq)]
    pub struct EmbeddingRows at sync.server.rows, among "sync" {
        /// Whether pulls and pushes of the input embedding carry only the rows of the step's
        /// tokens.
        sparse as sparse_rows: bool = false, when("sync.mode", SERVER), in_identity_when(is_sparse);

        /// How embedding rows are sharded over servers with sync.sparse_rows: by a hash of the row
        /// index, or in contiguous ranges.
        sharding as row_sharding: RowSharding = "hash", when("sync.mode", SERVER),
            in_identity_when(is_sparse);

        /// Number of its most frequent rows that a worker caches instead of pulling them in every
        /// step; needs sync.sparse_rows.
        cache as row_cache: usize = 0, integer(0, 1 << 20), when("sync.mode", SERVER),
            in_identity_when(is_sparse);

        /// Steps between two refreshes of a cached row; a row that exceeds sync.staleness is
        /// refreshed earlier.
        cache_every as row_cache_every: u64 = 8, integer(1, 1_000_000), when("sync.mode", SERVER),
            in_identity_when(is_sparse);

        /// Number of its most frequent rows that a worker pulls from replicas on all servers; needs
        /// sync.sparse_rows and several servers.
        replicated as replicated_rows: usize = 0, integer(0, 1 << 20), when("sync.mode", SERVER),
            in_identity_when(has_replicated_rows);

        /// Maximum number of updates that a replicated row may have missed; at most sync.staleness
        /// with bounded consistency, and 0 with sync.
        replicated_age as replicated_rows_age: u64 = 8, integer(0, 1_000_000),
            when("sync.mode", SERVER), in_identity_when(has_replicated_rows);
    }
}

/// Recipes without sparse rows keep the hash they had before the setting existed.
fn is_sparse(recipe: &Recipe) -> bool {
    recipe.sync.server.rows.sparse
}

fn has_replicated_rows(recipe: &Recipe) -> bool {
    recipe.sync.server.rows.replicated > 0
}

choices! {
    /// How embedding rows are sharded over servers.
    RowSharding {
        /// By a hash of the row index.
        Hash = "hash",
        /// In contiguous ranges.
        Range = "range",
    }
}

impl EmbeddingRows {
    /// The row sharding, if transfers are sparse.
    pub fn sparse_sharding(&self) -> Option<RowSharding> {
        self.sparse.then_some(self.sharding)
    }
}

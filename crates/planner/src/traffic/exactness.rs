//! Recipes that decide their traffic alone.

use lockstep_config::{Consistency, Dtype, Recipe, SyncMode};

/// Whether the recipe alone decides the bytes, embedding rows of all-reduced gradients aside.
pub(super) fn is_exact(recipe: &Recipe) -> bool {
    let keys = &recipe.sync.server;
    match recipe.sync.mode {
        SyncMode::ParameterServer => !keys.rows.sparse && keys.consistency != Consistency::Elastic,
        SyncMode::LocalSgd => !recipe.sync.local_steps_is_auto,
        _ => true,
    }
}

/// Whether the loss scale decides which steps update: one that overflows sends no parameters.
pub(crate) fn may_skip_updates(recipe: &Recipe) -> bool {
    recipe.precision.compute == Dtype::F16
}

/// Whether the tokens of a step decide the embedding rows that ranks exchange: a rank that is left
/// out of a step has none.
pub(super) fn has_known_rows(recipe: &Recipe) -> bool {
    !recipe.sync.stragglers.policy.loses_microbatches()
}

//! Order of a worker's transfers: which of them overlap with its passes.

use super::compressed_push::PushCompression;
use lockstep_config::Recipe;

/// Order of a worker's transfers, known before the run.
#[expect(clippy::struct_excessive_bools, reason = "independent properties of an order")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOrder {
    /// Weights arrive part by part, in the order of the forward pass, which waits for the parts of
    /// a block only.
    pub pulls_parts: bool,
    /// Gradients leave part by part, the last layers first, to all servers at once.
    pub pushes_parts: bool,
    /// A part leaves as soon as the backward pass has filled it, since nothing needs all gradients
    /// before.
    pub pushes_early: bool,
    /// All pushes are confirmed before the first reply, so that servers update at once; a server
    /// that may be lost is waited for before the next one.
    pub confirms_at_once: bool,
}

impl TransferOrder {
    /// Order of a recipe's workers; `is_tied` where gradients of tied tensors are added after the
    /// backward pass.
    pub fn of(recipe: &Recipe, is_tied: bool) -> Self {
        let overlaps = recipe.parallel.overlap;
        // Host groups share weights and sum gradients before anything leaves.
        let is_grouped = recipe.num_pushers() < recipe.run.workers;
        // A compressed shard is one message.
        let pushes_parts = overlaps && PushCompression::of(recipe).is_none();
        let needs_all =
            recipe.optim.clip > 0.0 || recipe.sync.server.byzantine > 0 || is_tied || is_grouped;
        Self {
            pulls_parts: overlaps && !is_grouped,
            pushes_parts,
            pushes_early: pushes_parts && !needs_all,
            confirms_at_once: pushes_parts && recipe.sync.server.replicas == 0,
        }
    }
}

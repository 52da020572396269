//! Cross-entropy, whole and over a sharded vocabulary. Rows may be a part of the micro-batch, so
//! that logits never exist as a whole.

use super::error::Result;
use super::view::{View, ViewMut};
use crate::gemm::Write;

/// Targets of a cross-entropy and the scale of its gradients.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// Token id of each row, or [`crate::cross_entropy::IGNORE`].
    pub ids: View<'a>,
    /// Targets of the whole batch, over all micro-batches and workers.
    pub num_targets: u64,
    /// Factor on the gradients.
    pub loss_scale: f32,
}

/// Loss of the head.
pub trait Losses {
    /// Sets the loss of each row, and `total` (one `f64`) to their sum, or adds them to it: rows
    /// in several calls give the bits of one on a CPU.
    fn cross_entropy(
        &self,
        logits: View<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
        write: Write,
    ) -> Result<()>;

    /// As [`Self::cross_entropy`], and turns logits into gradients.
    fn cross_entropy_backward(
        &self,
        logits: ViewMut<'_>,
        targets: Targets<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
        write: Write,
    ) -> Result<()>;

    /// Raises each maximum to the largest logit of its row in a shard of the vocabulary.
    fn raise_maxima(&self, logits: View<'_>, max: ViewMut<'_>) -> Result<()>;

    /// Sets the sums of exponentials of a shard, given the maxima of all shards. With `trains`,
    /// only [`Self::shard_gradients`] may read the logits afterwards.
    fn exponential_sums(
        &self,
        logits: ViewMut<'_>,
        targets: View<'_>,
        max: View<'_>,
        sums: ViewMut<'_>,
        trains: bool,
    ) -> Result<()>;

    /// Sets the logits of the targets in the shard that starts at `first_column`.
    fn target_logits(
        &self,
        logits: View<'_>,
        first_column: usize,
        targets: View<'_>,
        target_logits: ViewMut<'_>,
    ) -> Result<()>;

    /// Turns the logits of a shard, after [`Self::exponential_sums`], into gradients; maxima and
    /// sums are those of all shards.
    fn shard_gradients(
        &self,
        logits: ViewMut<'_>,
        first_column: usize,
        targets: Targets<'_>,
        max: View<'_>,
        sums: View<'_>,
    ) -> Result<()>;

    /// Sets the loss of each row, and `total` to their sum, from the values of all shards.
    fn shard_losses(
        &self,
        targets: View<'_>,
        max: View<'_>,
        sums: View<'_>,
        target_logits: View<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
    ) -> Result<()>;
}

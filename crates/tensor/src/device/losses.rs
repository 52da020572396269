//! Cross-entropy, whole and over a sharded vocabulary, and the likeliest token. Rows may be a part
//! of the micro-batch, so that logits never exist as a whole.

use super::error::Result;
use super::view::{View, ViewMut};
use crate::distillation::Settings;
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

/// Reference model of a loss of preferences: sequences are pairs of a chosen and a rejected one.
#[derive(Clone, Copy, Debug)]
pub struct Preferences<'a> {
    /// Loss of each sequence under the reference model, the sum over its targets, an `f64`.
    pub references: View<'a>,
    /// Strength of the preference.
    pub beta: f64,
}

/// Teacher of a distillation.
#[derive(Clone, Copy, Debug)]
pub struct Teacher<'a> {
    /// Its logits, in the shape of the student's.
    pub logits: View<'a>,
    /// Settings of the loss.
    pub settings: Settings,
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

    /// Sets `total` to the loss of preferences ([`crate::preference`]), from the losses of rows,
    /// the factors of the sequences' gradients, and `pairs` (two `f64`, or none) to the number of
    /// pairs with a positive margin and to the sum of the margins.
    fn preference_loss(
        &self,
        losses: View<'_>,
        targets: View<'_>,
        preferences: Preferences<'_>,
        factors: ViewMut<'_>,
        total: ViewMut<'_>,
        pairs: ViewMut<'_>,
    ) -> Result<()>;

    /// As [`Self::cross_entropy_backward`], with the loss of a distillation
    /// ([`crate::distillation`]).
    fn distillation_backward(
        &self,
        logits: ViewMut<'_>,
        teacher: Teacher<'_>,
        targets: Targets<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
    ) -> Result<()>;

    /// Multiplies the gradients of each sequence's logits by its factor.
    fn scale_sequences(&self, gradients: ViewMut<'_>, factors: View<'_>) -> Result<()>;

    /// Sets `token` (one `u32`) to the index of the largest logit, the first of equals. Adds one to
    /// `num_invalid` (one `u32`) where a logit is not a number; `token` is then any valid index.
    fn greedy_token(
        &self,
        logits: View<'_>,
        token: ViewMut<'_>,
        num_invalid: ViewMut<'_>,
    ) -> Result<()>;
}

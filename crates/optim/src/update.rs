//! Quantities of one step: count, learning rate, clip factors, and norms of tensors.

use crate::clip::Clip;

/// Quantities of one step that all parameters share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Number of steps taken, this one included: 1 for the first. Skipped steps do not count.
    pub count: u64,
    /// The learning rate.
    pub lr: f64,
    /// Clip factors, applied to the gradients first.
    pub clip: Clip,
}

/// Euclidean norms by [`crate::Slot::tensor`].
#[derive(Clone, Debug, Default)]
pub struct TensorNorms {
    /// Of the parameters.
    pub params: Vec<f64>,
    /// Of the gradient buffers after [`crate::Optimizer::prepare_block`].
    pub steps: Vec<f64>,
}

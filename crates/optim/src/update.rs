//! Quantities of one step: count, learning rate, clip factors, and norms of tensors; and which of
//! them an update rule needs.

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

/// Inputs of an update besides the gradients and the state of the elements that it steps. The
/// caller provides them between the two halves of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateInputs {
    /// Directions in place of the gradients ([`crate::Optimizer::prepare_on`]).
    pub directions: bool,
    /// Norms of whole tensors ([`crate::Optimizer::norms_mut`]).
    pub norms: bool,
    /// Directions of whole tensors, in the gradient buffers.
    pub whole: WholeTensors,
}

/// Tensors that ranks gather whole, since their directions depend on all elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WholeTensors {
    /// None.
    #[default]
    None,
    /// Hidden matrices, to orthogonalise (Muon).
    HiddenMatrices,
    /// Every tensor, for factored second moments (Adafactor).
    All,
}

//! Gradient of the residual stream around a half of a layer.

use lockstep_tensor::device::{View, ViewMut};

/// Gradient of the stream that a half of a layer reads and writes.
#[derive(Debug)]
pub(crate) struct StreamGradient<'a> {
    /// Gradient of the output where it is apart from the sum: halves beside each other have one
    /// output.
    pub(crate) output: Option<View<'a>>,
    /// Gradient of the stream, to which that of the input is added. Where `output` is none, it
    /// begins as the gradient of the output.
    pub(crate) sum: ViewMut<'a>,
}

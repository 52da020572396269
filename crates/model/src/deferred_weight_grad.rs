//! What the first half of a backward pass leaves for the second, in one half of a layer.
//!
//! A pipeline may ask for the gradients of inputs first, which the stage before waits for, and for
//! those of weights when it has nothing better to do. The second half then needs no gradient to be
//! computed again: a product's weights need its input, which forward saved or which is cheap to
//! have again, and the gradient of its output, which is kept here.

use crate::norm_linear::NormLinear;
use crate::scratch::Frame;

/// See the module's text.
pub(crate) struct DeferredWeightGrad<'a> {
    /// The gradient of the second product's output, of all rows.
    pub(crate) dz_tc: &'a mut [f32],
    /// That of the first product's.
    pub(crate) dy: &'a mut [f32],
    /// What the micro-batch adds to the gradients of the normalisation.
    pub(crate) sums: &'a mut [f32],
}

impl<'a> DeferredWeightGrad<'a> {
    /// Elements of it for a micro-batch of `num_rows`.
    pub(crate) fn planned_len(norm_linear: &NormLinear, num_rows: usize) -> usize {
        num_rows * norm_linear.width()
            + norm_linear.outputs_len(num_rows)
            + norm_linear.norm.at.len()
    }

    /// Its parts, from memory of this length.
    pub(crate) fn split(norm_linear: &NormLinear, num_rows: usize, memory: &mut Frame<'a>) -> Self {
        Self {
            dz_tc: memory.take(num_rows * norm_linear.width()),
            dy: memory.take(norm_linear.outputs_len(num_rows)),
            sums: memory.take(norm_linear.norm.at.len()),
        }
    }
}

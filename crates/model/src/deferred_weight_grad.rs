//! Deferred weight gradients: state between the two halves of a split backward pass (zero-bubble
//! pipelines, Qi et al. 2023).
//!
//! A zero-bubble pipeline computes input gradients first, because the previous stage waits for
//! them, and weight gradients in its idle time. The weight gradient of a product needs its input,
//! which forward saved or which is cheap to recompute, and the gradient of its output, which is
//! stored here, so no gradient is computed twice.

use crate::head_norms::HeadNorms;
use crate::norm_linear::NormLinear;
use crate::row_parallel::RowParallel;
use crate::scratch::Frame;
use lockstep_tensor::device::ViewMut;

/// Stored gradients of one half of a layer.
pub(crate) struct DeferredWeightGrad<'a> {
    /// Gradient of the second product's output, all rows.
    pub(crate) dz_tc: ViewMut<'a>,
    /// Gradient of the first product's output.
    pub(crate) dy: ViewMut<'a>,
    /// Contribution of the micro-batch to the gradients of the normalisation.
    pub(crate) sums: ViewMut<'a>,
    /// Contribution of the micro-batch to the gradients of the normalised heads; empty without.
    pub(crate) head_sums: ViewMut<'a>,
    /// Contribution of the micro-batch to the gradients of the output's norm; empty without.
    pub(crate) post_sums: ViewMut<'a>,
}

impl<'a> DeferredWeightGrad<'a> {
    /// Elements for a micro-batch of `num_rows`.
    pub(crate) fn planned_len(
        norm_linear: &NormLinear,
        (head_norms, out): (Option<&HeadNorms>, &RowParallel),
        num_rows: usize,
    ) -> usize {
        norm_linear.formats().floats(num_rows * norm_linear.width())
            + norm_linear.outputs_len(num_rows)
            + norm_linear.norm.at.len()
            + head_norms.map_or(0, |norms| norms.at().len())
            + out.post_norm.as_ref().map_or(0, |norm| norm.at.len())
    }

    /// Splits memory of that length.
    pub(crate) fn split(
        norm_linear: &NormLinear,
        (head_norms, out): (Option<&HeadNorms>, &RowParallel),
        num_rows: usize,
        memory: &mut Frame<'a>,
    ) -> Self {
        let dtype = norm_linear.formats().activations;
        Self {
            dz_tc: memory.take_as(dtype, num_rows * norm_linear.width()),
            dy: memory.take_as(dtype, norm_linear.num_outputs(num_rows)),
            sums: memory.take(norm_linear.norm.at.len()),
            head_sums: memory.take(head_norms.map_or(0, |norms| norms.at().len())),
            post_sums: memory.take(out.post_norm.as_ref().map_or(0, |norm| norm.at.len())),
        }
    }
}

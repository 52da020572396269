//! Normalisation before or after each half of a layer, and before the head.
//!
//! RMSNorm saves one number per row, LayerNorm two; the normalised rows themselves are not saved,
//! because recomputing them from the input costs one pass over memory.

use crate::collectives::TensorCollectives;
use crate::grads::Grads;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::{self, Device, Dtype, Result, View, ViewMut};
use std::ops::Range;

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// None: rows stay as they are.
    Identity,
    /// RMSNorm, with a weight.
    Rms,
    /// RMSNorm that scales by one plus its weight.
    OffsetRms,
    /// LayerNorm, with a weight and a bias.
    Layer,
}

/// A normalisation with parameters at a fixed range of the block's flat buffer.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) width: usize,
    pub(crate) eps: f32,
    /// Weight, then bias where there is one.
    pub(crate) at: Range<usize>,
}

impl Norm {
    /// Elements saved for `num_rows` rows.
    pub(crate) const fn stats_len(&self, num_rows: usize) -> usize {
        match self.kind {
            NormKind::Identity => 0,
            NormKind::Rms | NormKind::OffsetRms => num_rows,
            NormKind::Layer => 2 * num_rows,
        }
    }

    /// No normalisation of rows of this width.
    pub(crate) const fn identity(width: usize) -> Self {
        Self { kind: NormKind::Identity, width, eps: 0.0, at: 0..0 }
    }

    /// Ranges of the weight and the bias.
    pub(crate) fn params(&self) -> Vec<Range<usize>> {
        let middle = (self.at.start + self.width).min(self.at.end);
        let all = [self.at.start..middle, middle..self.at.end];
        all.into_iter().filter(|param| !param.is_empty()).collect()
    }

    /// Operand of a device's operations, for a norm with a weight.
    pub(crate) fn operand<'a>(&self, params: View<'a>) -> device::Norm<'a> {
        let (weight, bias) = params.range(self.at.clone()).split_at(self.width);
        let bias = (self.kind == NormKind::Layer).then_some(bias);
        let adds_one = self.kind == NormKind::OffsetRms;
        device::Norm { weight, bias, eps: self.eps, adds_one }
    }

    /// Normalises `x_tc` into `y_tc` and fills `stats`.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x_tc: View<'_>,
        y_tc: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()> {
        if self.kind == NormKind::Identity {
            return device.copy(x_tc, y_tc);
        }
        device.norm_forward(self.operand(params), x_tc, y_tc, stats)
    }

    /// Recomputes `y_tc` from the saved statistics.
    pub(crate) fn normalize(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x_tc: View<'_>,
        stats: View<'_>,
        y_tc: ViewMut<'_>,
    ) -> Result<()> {
        if self.kind == NormKind::Identity {
            return device.copy(x_tc, y_tc);
        }
        device.normalize(self.operand(params), x_tc, stats, y_tc)
    }

    /// Adds the input gradient to `dx_tc` and the gradients of trained parameters to `grads`. All
    /// buffers have the local rows of the stream, of `sums.num_rows` in the micro-batch.
    pub(crate) fn backward(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x_tc: View<'_>,
        stats: View<'_>,
        dy_tc: View<'_>,
        dx_tc: ViewMut<'_>,
        mut grads: Grads<'_>,
        sums: &RowSums<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        if self.kind == NormKind::Identity {
            return device.add_assign(dx_tc, dy_tc);
        }
        let norm = self.operand(params);
        let middle = self.at.start + self.width;
        let targets = grads.of_two([&(self.at.start..middle), &(middle..self.at.end)]);
        let is_trained = targets.iter().map(ViewMut::len).sum::<usize>() == self.at.len();
        // One pass where sums over rows need no tree; the CPU has its own bits.
        if is_trained && sums.is_whole() && x_tc.dtype() != Dtype::F32 {
            let [dweight, dbias] = targets;
            return device
                .norm_and_weight_backward(norm, x_tc, stats, dy_tc, dx_tc, dweight, dbias);
        }
        device.norm_backward(norm, x_tc, stats, dy_tc, dx_tc)?;
        if targets.iter().all(ViewMut::is_empty) {
            return Ok(());
        }
        let first = sums.tp_shards.rows(sums.num_rows).start;
        let before_factors = stats.len() - x_tc.len() / self.width;
        sums.add_to(device, collectives, targets, frame, &mut |rows, [dweight, dbias]| {
            let rows = rows.start - first..rows.end - first;
            let elements = rows.start * self.width..rows.end * self.width;
            let (x_tc, dy_tc) = (x_tc.range(elements.clone()), dy_tc.range(elements));
            // From the mean of the first row to the factor of the last.
            let stats = stats.range(rows.start..before_factors + rows.end);
            device.norm_weight_backward(norm, x_tc, stats, dy_tc, dweight, dbias)
        })
    }

    /// Adds the sums of a micro-batch, weight then bias, to the gradients of trained parameters.
    pub(crate) fn add_sums(
        &self,
        device: &dyn Device,
        sums: View<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        if self.kind == NormKind::Identity {
            return Ok(());
        }
        let (weight, bias) = sums.split_at(self.width);
        let middle = self.at.start + self.width;
        let targets = grads.of_two([&(self.at.start..middle), &(middle..self.at.end)]);
        for (target, sums) in targets.into_iter().zip([weight, bias]) {
            if !target.is_empty() {
                device.add_assign(target, sums)?;
            }
        }
        Ok(())
    }

    /// Temporary elements of [`Self::backward`].
    pub(crate) fn scratch_len(&self, tp_shards: &TensorShards) -> usize {
        RowSums::scratch_len(tp_shards, self.at.len())
    }
}

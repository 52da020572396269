//! Normalisation before each half of a layer and before the head.
//!
//! RMSNorm saves one number per row, LayerNorm two; the normalised rows themselves are not saved,
//! because recomputing them from the input costs one pass over memory.

use crate::collectives::TensorCollectives;
use crate::grads::Grads;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::{Cpu, norm_layer, norm_rms, reduce};
use std::ops::Range;

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// RMSNorm, with a weight.
    Rms,
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
            NormKind::Rms => num_rows,
            NormKind::Layer => 2 * num_rows,
        }
    }

    /// Ranges of the weight and the bias.
    pub(crate) fn params(&self) -> Vec<Range<usize>> {
        let middle = self.at.start + self.width;
        let all = [self.at.start..middle, middle..self.at.end];
        all.into_iter().filter(|param| !param.is_empty()).collect()
    }

    /// Normalises `x_tc` into `y_tc` and fills `stats`.
    pub(crate) fn forward(
        &self,
        cpu: &Cpu,
        params: &[f32],
        x_tc: &[f32],
        y_tc: &mut [f32],
        stats: &mut [f32],
    ) {
        let (weight, bias) = params[self.at.clone()].split_at(self.width);
        match self.kind {
            NormKind::Rms => norm_rms::forward(cpu, x_tc, weight, self.eps, y_tc, stats),
            NormKind::Layer => {
                let (mean, rstd) = stats.split_at_mut(stats.len() / 2);
                norm_layer::forward(cpu, x_tc, weight, bias, self.eps, y_tc, mean, rstd);
            }
        }
    }

    /// Recomputes `y_tc` from the saved statistics.
    pub(crate) fn normalize(
        &self,
        cpu: &Cpu,
        params: &[f32],
        x_tc: &[f32],
        stats: &[f32],
        y_tc: &mut [f32],
    ) {
        let (weight, bias) = params[self.at.clone()].split_at(self.width);
        match self.kind {
            NormKind::Rms => norm_rms::normalize(cpu, x_tc, weight, stats, y_tc),
            NormKind::Layer => {
                let (mean, rstd) = stats.split_at(stats.len() / 2);
                norm_layer::normalize(cpu, x_tc, weight, bias, mean, rstd, y_tc);
            }
        }
    }

    /// Adds the input gradient to `dx_tc` and the gradients of trained parameters to `grads`. All
    /// buffers have the local rows of the stream, of `sums.num_rows` in the micro-batch.
    pub(crate) fn backward(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        params: &[f32],
        x_tc: &[f32],
        stats: &[f32],
        dy_tc: &[f32],
        dx_tc: &mut [f32],
        mut grads: Grads<'_>,
        sums: &RowSums<'_>,
        frame: Frame<'_>,
    ) {
        let (weight, _) = params[self.at.clone()].split_at(self.width);
        let middle = self.at.start + self.width;
        let targets = grads.of_two([&(self.at.start..middle), &(middle..self.at.end)]);
        let (mean, rstd) = stats.split_at(stats.len() - x_tc.len() / self.width);
        match self.kind {
            NormKind::Rms => norm_rms::backward(cpu, x_tc, weight, rstd, dy_tc, dx_tc, &mut []),
            NormKind::Layer => {
                norm_layer::backward(cpu, x_tc, weight, mean, rstd, dy_tc, dx_tc, &mut [], &mut []);
            }
        }
        if targets.iter().all(|target| target.is_empty()) {
            return;
        }
        let first = sums.tp_shards.rows(sums.num_rows).start;
        sums.add_to(cpu, collectives, targets, frame, &mut |rows, [dweight, dbias]| {
            let rows = rows.start - first..rows.end - first;
            let elements = rows.start * self.width..rows.end * self.width;
            let (x_tc, dy_tc) = (&x_tc[elements.clone()], &dy_tc[elements]);
            let rstd = &rstd[rows.clone()];
            match self.kind {
                NormKind::Rms => norm_rms::weight_backward(cpu, x_tc, rstd, dy_tc, dweight),
                NormKind::Layer => {
                    let mean = &mean[rows];
                    norm_layer::weight_backward(cpu, x_tc, mean, rstd, dy_tc, dweight, dbias);
                }
            }
        });
    }

    /// Adds the sums of a micro-batch, weight then bias, to the gradients of trained parameters.
    pub(crate) fn add_sums(&self, cpu: &Cpu, sums: &[f32], mut grads: Grads<'_>) {
        let (weight, bias) = sums.split_at(self.width);
        let middle = self.at.start + self.width;
        let targets = grads.of_two([&(self.at.start..middle), &(middle..self.at.end)]);
        for (target, sums) in targets.into_iter().zip([weight, bias]) {
            if !target.is_empty() {
                reduce::add_assign(cpu, target, sums);
            }
        }
    }

    /// Temporary elements of [`Self::backward`].
    pub(crate) fn scratch_len(&self, tp_shards: &TensorShards) -> usize {
        RowSums::scratch_len(tp_shards, self.at.len())
    }
}

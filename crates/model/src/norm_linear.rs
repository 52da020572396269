//! Pre-norm and column-parallel product, with which each half of a layer and the head begin.
//!
//! With sequence parallelism, an all-gather of the rows is in between. Backward ends here: the
//! gradient of the product's input is a sum over shards, passes the normalisation and is added to
//! the stream. The normalised rows are recomputed for the weight gradient rather than saved, except
//! on accelerators, whose memory is large and slow beside their products. Adapters read the same
//! normalised rows.

use crate::block::{Context, ProductPlan};
use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::column_parallel::ColumnParallel;
use crate::dropout::AdapterMasks;
use crate::formats::Formats;
use crate::grads::Grads;
use crate::linear::larger_operands;
use crate::lora::ColumnAdapters;
use crate::norm::{Norm, NormKind};
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::{
    Device, Dtype, OutputGradient, Result, RowEpilogue, View, ViewMut, copy_rounded,
};
use std::ops::Range;
use std::slice;

/// A normalisation and the product after it.
pub(crate) struct NormLinear {
    pub(crate) norm: Norm,
    pub(crate) product: ColumnParallel,
    pub(crate) adapters: ColumnAdapters,
    pub(crate) tp_shards: TensorShards,
}

/// Input and saved statistics of forward, for backward.
#[derive(Clone, Copy)]
pub(crate) struct NormLinearSaved<'a> {
    /// Rows of the stream.
    pub(crate) x_tc: View<'a>,
    /// Statistics of the normalisation.
    pub(crate) stats: View<'a>,
    /// Normalised rows; empty where they are not saved.
    pub(crate) normed_tc: View<'a>,
    /// Rows of the micro-batch.
    pub(crate) num_rows: usize,
    /// Masks of the adapters' inputs.
    pub(crate) masks: AdapterMasks,
}

impl NormLinear {
    /// Width of the stream.
    pub(crate) const fn width(&self) -> usize {
        self.norm.width
    }

    /// Number formats.
    pub(crate) fn formats(&self) -> Formats {
        self.product.formats()
    }

    /// Number of the product's outputs for a micro-batch of `num_rows`.
    pub(crate) fn num_outputs(&self, num_rows: usize) -> usize {
        num_rows * self.product.num_local_outputs()
    }

    /// Memory of these outputs.
    pub(crate) fn outputs_len(&self, num_rows: usize) -> usize {
        self.formats().floats(self.num_outputs(num_rows))
    }

    /// Whether the input gradient is a sum over shards in `f32`, which is then rounded.
    fn has_wide_sums(&self) -> bool {
        self.formats().has_wide_sums(self.tp_shards.num)
    }

    /// Elements of the normalised rows that are saved, of a micro-batch of `num_rows`.
    pub(crate) fn num_normed(&self, num_rows: usize) -> usize {
        let is_saved = self.formats().activations != Dtype::F32 && !self.tp_shards.sequence;
        if is_saved { num_rows * self.width() } else { 0 }
    }

    /// Memory of these rows.
    pub(crate) fn normed_len(&self, num_rows: usize) -> usize {
        self.formats().floats(self.num_normed(num_rows))
    }

    /// Elements of the saved statistics.
    pub(crate) fn stats_len(&self, num_rows: usize) -> usize {
        self.norm.stats_len(self.tp_shards.rows(num_rows).len())
    }

    /// Temporary elements of any of the calls below.
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let spare = self.product.spare_len(num_rows).max(self.norm.scratch_len(&self.tp_shards));
        let sums = if self.has_wide_sums() { num_rows * self.width() } else { 0 };
        let adapters = self.adapters.scratch_len(num_rows);
        self.formats().floats(num_rows * self.width()) + sums + spare + adapters
    }

    /// Bytes of the largest operands that an accelerator rounds or quantises first.
    pub(crate) fn operand_bytes(&self, num_rows: usize, products: ProductPlan) -> [usize; 2] {
        let has_both = self.num_normed(num_rows) > 0 && !products.splits_backward;
        let products = ProductPlan { splits_backward: !has_both, ..products };
        let adapters = self.adapters.operand_bytes(num_rows, products);
        larger_operands(self.product.shards[0].operand_bytes(num_rows, products), adapters)
    }

    /// Overwrites `y` and fills `stats`, and `normed_tc`, unless it is empty.
    pub(crate) fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
        normed_tc: ViewMut<'_>,
        masks: AdapterMasks,
    ) -> Result<()> {
        let Context { device, collectives, microbatch, scratch, .. } = ctx;
        let (num_rows, mut frame) = (microbatch.shape.rows(), scratch.frame());
        let normed_tc = self.normed(
            *device,
            *collectives,
            num_rows,
            params,
            x_tc,
            stats,
            normed_tc,
            &mut frame,
        )?;
        self.project(*device, params, normed_tc, y, masks, frame)
    }

    /// Overwrites `y` with the product of all normalised rows and the outputs of adapters.
    pub(crate) fn project(
        &self,
        device: &dyn Device,
        params: View<'_>,
        normed_tc: View<'_>,
        mut y: ViewMut<'_>,
        masks: AdapterMasks,
        frame: Frame<'_>,
    ) -> Result<()> {
        self.product.forward(device, params, normed_tc, y.reborrow())?;
        self.adapters.forward(device, params, normed_tc, y, masks, frame)
    }

    /// Overwrites `y` for one row in one operation; `false` where the device has none for it.
    pub(crate) fn forward_row(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x_c: View<'_>,
        epilogue: RowEpilogue<'_>,
        y: ViewMut<'_>,
    ) -> Result<bool> {
        if !self.adapters.is_empty() {
            return Ok(false);
        }
        let has_norm = self.norm.kind != NormKind::Identity;
        let norm = has_norm.then(|| self.norm.operand(params));
        self.product.forward_row(device, params, norm, x_c, epilogue, y)
    }

    /// All normalised rows, of which there are `num_rows`, in the given place, unless it is empty;
    /// fills `stats`.
    pub(crate) fn normed<'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        num_rows: usize,
        params: View<'_>,
        x_tc: View<'_>,
        stats: ViewMut<'_>,
        place: ViewMut<'a>,
        frame: &mut Frame<'a>,
    ) -> Result<View<'a>> {
        let mut normed_tc = if place.is_empty() { self.take_rows(num_rows, frame) } else { place };
        let own = normed_tc.reborrow().range(self.own(num_rows));
        self.norm.forward(device, params, x_tc, own, stats)?;
        self.tp_shards.gather_rows(collectives, normed_tc.reborrow());
        Ok(normed_tc.into_view())
    }

    /// Recomputes the normalised rows from the statistics, where they are saved.
    pub(crate) fn renormalize(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x_tc: View<'_>,
        stats: View<'_>,
        normed_tc: ViewMut<'_>,
    ) -> Result<()> {
        if normed_tc.is_empty() {
            return Ok(());
        }
        self.norm.normalize(device, params, x_tc, stats, normed_tc)
    }

    /// Adds the gradients of the trained parts of the matrix, and of adapters, to `grads`.
    pub(crate) fn backward_weight(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        saved: NormLinearSaved<'_>,
        dy: View<'_>,
        grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let num_rows = saved.num_rows;
        let (adapters, rest) = (&self.adapters, &mut frame);
        let d_hidden =
            adapters.hidden_gradients(device, collectives, params, dy, num_rows, rest)?;
        let dy = (dy, d_hidden);
        self.weight_gradients(device, collectives, params, saved, dy, grads, frame)
    }

    /// Adds the gradients of the trained parts of the matrix, and of adapters, whose hidden
    /// gradients are known.
    fn weight_gradients(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        NormLinearSaved { x_tc, stats, normed_tc, num_rows, masks }: NormLinearSaved<'_>,
        dy: (View<'_>, View<'_>),
        mut grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let normed_tc = if normed_tc.is_empty() {
            let mut normed_tc = self.take_rows(num_rows, &mut frame);
            let own = normed_tc.reborrow().range(self.own(num_rows));
            self.norm.normalize(device, params, x_tc, stats, own)?;
            self.tp_shards.gather_rows(collectives, normed_tc.reborrow());
            normed_tc.into_view()
        } else {
            normed_tc
        };
        self.product.backward_weight(device, normed_tc, dy.0, grads.reborrow())?;
        self.adapters.backward_weight(device, params, normed_tc, dy, masks, grads, frame)
    }

    /// Adds the input gradient to `d_stream_tc`, and the gradients of all trained parameters to
    /// `grads`.
    pub(crate) fn backward(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        saved: NormLinearSaved<'_>,
        mut dy: OutputGradient<'_>,
        d_stream_tc: ViewMut<'_>,
        mut grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let NormLinearSaved { normed_tc, num_rows, .. } = saved;
        if normed_tc.is_empty() || !self.adapters.is_empty() {
            let (dy, adapters, rest) = (dy.compute(device)?, &self.adapters, &mut frame);
            let d_hidden =
                adapters.hidden_gradients(device, collectives, params, dy, num_rows, rest)?;
            // The rows' memory is released before the input gradient takes its own.
            let (dy, own, spare) = ((dy, d_hidden), grads.reborrow(), frame.nested());
            self.weight_gradients(device, collectives, params, saved, dy, own, spare)?;
            return self.input_gradient(
                device,
                collectives,
                params,
                saved,
                dy,
                d_stream_tc,
                grads,
                frame,
            );
        }
        let product = &mut |dx: ViewMut<'_>, spare: ViewMut<'_>| {
            let (dy, own) = (dy.range(0..dy.len()), grads.reborrow());
            self.product.backward(device, params, normed_tc, dy, dx, spare, own)
        };
        let d_normed = self.normed_gradient(device, collectives, num_rows, product, &mut frame)?;
        let d_normed = d_normed.into_view();
        self.backward_norm(device, collectives, params, saved, d_normed, d_stream_tc, grads, frame)
    }

    /// Adds the input gradient to `d_stream_tc`, and the gradients of the trained parameters of the
    /// normalisation to `grads`.
    pub(crate) fn backward_input(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        saved: NormLinearSaved<'_>,
        dy: View<'_>,
        d_stream_tc: ViewMut<'_>,
        grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let num_rows = saved.num_rows;
        let (adapters, rest) = (&self.adapters, &mut frame);
        let d_hidden =
            adapters.hidden_gradients(device, collectives, params, dy, num_rows, rest)?;
        let dy = (dy, d_hidden);
        self.input_gradient(device, collectives, params, saved, dy, d_stream_tc, grads, frame)
    }

    /// As [`Self::backward_input`], where the hidden gradients of adapters are known.
    fn input_gradient(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        saved: NormLinearSaved<'_>,
        (dy, d_hidden): (View<'_>, View<'_>),
        d_stream_tc: ViewMut<'_>,
        grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let product = &mut |dx: ViewMut<'_>, spare: ViewMut<'_>| {
            self.product.backward_input(device, params, dy, dx, spare)
        };
        let NormLinearSaved { num_rows, masks, .. } = saved;
        let mut d_normed =
            self.normed_gradient(device, collectives, num_rows, product, &mut frame)?;
        let (d_hidden, own) = ((d_hidden, num_rows), self.tp_shards.rows(num_rows));
        let (dx, spare) = (d_normed.reborrow(), frame.nested());
        self.adapters.backward_input(device, params, d_hidden, &own, masks, dx, spare)?;
        let d_normed = d_normed.into_view();
        self.backward_norm(device, collectives, params, saved, d_normed, d_stream_tc, grads, frame)
    }

    /// Gradient of the local normalised rows; `product` sets the partial sum of the local shards,
    /// of all rows.
    fn normed_gradient<'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        num_rows: usize,
        product: &mut dyn FnMut(ViewMut<'_>, ViewMut<'_>) -> Result<()>,
        frame: &mut Frame<'a>,
    ) -> Result<ViewMut<'a>> {
        let mut d_normed_tc = self.take_rows(num_rows, frame);
        if self.has_wide_sums() {
            let mut sums_tc = frame.take(num_rows * self.width());
            let spare = frame.nested().take(self.product.spare_len(num_rows));
            product(sums_tc.reborrow(), spare)?;
            self.tp_shards.sum_rows(collectives, sums_tc.reborrow());
            let (sums, own) = (sums_tc.as_view().range(self.own(num_rows)), self.own(num_rows));
            copy_rounded(device, sums, d_normed_tc.reborrow().range(own))?;
        } else {
            let spare = frame.nested().take(self.product.spare_len(num_rows));
            product(d_normed_tc.reborrow(), spare)?;
            self.tp_shards.sum_rows(collectives, d_normed_tc.reborrow());
        }
        Ok(d_normed_tc.range(self.own(num_rows)))
    }

    /// Passes the gradient of the normalised rows through the normalisation.
    fn backward_norm(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        NormLinearSaved { x_tc, stats, num_rows, .. }: NormLinearSaved<'_>,
        d_normed: View<'_>,
        d_stream_tc: ViewMut<'_>,
        grads: Grads<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        let sums = RowSums { tp_shards: &self.tp_shards, num_rows };
        self.norm.backward(
            device,
            collectives,
            params,
            x_tc,
            stats,
            d_normed,
            d_stream_tc,
            grads,
            &sums,
            frame,
        )
    }

    /// Adds the input gradient only, for deferred weight gradients: `sums` becomes the contribution
    /// of the micro-batch to the gradients of the normalisation.
    pub(crate) fn backward_input_only(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        saved: NormLinearSaved<'_>,
        dy: View<'_>,
        d_stream_tc: ViewMut<'_>,
        mut sums: ViewMut<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        // Adding to minus zero changes no bit, not even the sign of a zero.
        device.fill(sums.reborrow(), -0.0)?;
        let sums = Grads::new(sums, slice::from_ref(&self.norm.at));
        self.backward_input(device, collectives, params, saved, dy, d_stream_tc, sums, frame)
    }

    /// Collective calls of the input gradient and of the gradients of the normalisation; `trained`
    /// are the trained ranges of the block.
    pub(crate) fn input_calls(
        &self,
        num_rows: usize,
        trained: &[Range<usize>],
    ) -> impl Iterator<Item = CollectiveCall> {
        let sum = self.tp_shards.sum_call(num_rows * self.width());
        [sum].into_iter().chain(self.tp_shards.row_blocks_call(&self.norm.params(), trained))
    }

    /// Collective call of the adapters' hidden gradients.
    pub(crate) fn adapters_call(&self, num_rows: usize) -> Option<CollectiveCall> {
        self.adapters.gradients_call(num_rows)
    }

    /// Collective call before the product.
    pub(crate) fn gather_call(&self, num_rows: usize) -> Option<CollectiveCall> {
        self.tp_shards.gather_call(self.formats().floats(num_rows * self.width()))
    }

    /// Rows of the stream's width.
    fn take_rows<'a>(&self, num_rows: usize, frame: &mut Frame<'a>) -> ViewMut<'a> {
        frame.take_as(self.formats().activations, num_rows * self.width())
    }

    /// Elements of the local rows among those of the micro-batch.
    pub(crate) fn own(&self, num_rows: usize) -> Range<usize> {
        let own = self.tp_shards.rows(num_rows);
        own.start * self.width()..own.end * self.width()
    }
}

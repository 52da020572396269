//! Feed-forward half of a layer: `y = x + down(activation(up(norm(x))))`.
//!
//! Shards of hidden units are stored one after another, each with all rows. In Llama, `up` computes
//! gate and up, two vectors of f elements, in one product, and SwiGLU combines them. GPT-2 computes
//! one vector and applies GELU. The output of the first product is kept: on a CPU, backward
//! recomputes the activation together with its derivative, which costs less than reading it from
//! memory. Accelerators save the activation as well: GELU is a part of the products there, and
//! SwiGLU's pass over its output costs a write less.

use crate::block::{Context, Flops, MicrobatchShape, SavedLen};
use crate::collectives::{SingleRank, TensorCollectives};
use crate::deferred_weight_grad::DeferredWeightGrad;
use crate::dropout::{AdapterMasks, Dropout, RowMask, Site};
use crate::grads::Grads;
use crate::lora::RowAdapter;
use crate::norm_linear::{NormLinear, NormLinearSaved};
use crate::row_parallel::{PostNormSaved, RowParallel};
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::stream_gradient::StreamGradient;
use lockstep_tensor::device::{
    self, Device, Dtype, OutputGradient, Result, RowEpilogue, View, ViewMut,
};
use lockstep_tensor::gemm::Precision;

/// The function between the two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// `silu(gate) * up` of a row that is gate, then up.
    SwiGlu,
    /// `gelu(gate) * up`, with the tanh form of GELU.
    GeGlu,
    /// The tanh form of GELU.
    Gelu,
    /// GELU by the error function.
    GeluErf,
}

/// Feed-forward network with its normalisation.
pub(crate) struct FeedForward {
    /// Normalisation and first product.
    pub(crate) norm_linear: NormLinear,
    pub(crate) activation: Activation,
    pub(crate) down: RowParallel,
    pub(crate) dropout: Dropout,
}

/// Saved values of forward; all of them are kept, but normalised rows.
pub(crate) struct FeedForwardSaved<'a> {
    hidden: ViewMut<'a>,
    stats: ViewMut<'a>,
    /// Output of the activation, on accelerators; else empty.
    active_tf: ViewMut<'a>,
    normed_tc: ViewMut<'a>,
    post_norm: PostNormSaved<'a>,
}

impl FeedForwardSaved<'_> {
    fn norm_linear<'b>(
        &'b self,
        x_tc: View<'b>,
        num_rows: usize,
        masks: AdapterMasks,
    ) -> NormLinearSaved<'b> {
        let (stats, normed_tc) = (self.stats.as_view(), self.normed_tc.as_view());
        NormLinearSaved { x_tc, stats, normed_tc, num_rows, masks }
    }
}

impl FeedForward {
    pub(crate) fn saved_len(&self, num_rows: usize) -> SavedLen {
        let active = self.norm_linear.formats().floats(self.active_elements(num_rows));
        let outputs = self.norm_linear.outputs_len(num_rows);
        let kept = outputs + self.norm_linear.stats_len(num_rows) + self.down.saved_len(num_rows);
        let rebuilt = self.norm_linear.normed_len(num_rows);
        if self.fuses_gelu() {
            return SavedLen { kept: kept + active, rebuilt };
        }
        SavedLen { kept, rebuilt: rebuilt + active }
    }

    pub(crate) fn split<'a>(
        &self,
        num_rows: usize,
        kept: &mut Frame<'a>,
        rebuilt: &mut Frame<'a>,
    ) -> FeedForwardSaved<'a> {
        let (num_normed, dtype) = (self.norm_linear.num_normed(num_rows), self.activations());
        let hidden = kept.take_as(dtype, self.norm_linear.num_outputs(num_rows));
        let stats = kept.take(self.norm_linear.stats_len(num_rows));
        let post_norm = self.down.split(num_rows, kept);
        // Products have computed GELU's output: nothing else does, to the same bits.
        let active = if self.fuses_gelu() { kept } else { &mut *rebuilt };
        let active_tf = active.take_as(dtype, self.active_elements(num_rows));
        let normed_tc = rebuilt.take_as(dtype, num_normed);
        FeedForwardSaved { hidden, stats, active_tf, normed_tc, post_norm }
    }

    pub(crate) fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let (t, c, tp_shards) =
            (shape.rows(), self.norm_linear.width(), &self.norm_linear.tp_shards);
        let formats = self.norm_linear.formats();
        let (f, rows) = (formats.floats(t * self.down.num_local_inputs()), formats.floats(t * c));
        let own = if self.dropout.is_on() || self.down.copies_gradient() { rows } else { 0 };
        let ends = self.norm_linear.scratch_len(t).max(RowSums::scratch_len(tp_shards, c));
        let d_active = f + self.down.adapter_scratch_len(t);
        let (computed, behind) = match (self.saves_active(), self.activation) {
            (false, _) => (f, d_active.max(ends)),
            (true, Activation::SwiGlu) if self.quantises_swiglu() => (0, d_active.max(f + ends)),
            (true, Activation::Gelu) => (0, ends),
            (true, _) => (0, d_active.max(ends)),
        };
        let inner = computed + self.norm_linear.outputs_len(t) + behind;
        let backward = own + inner.max(self.down.gradient_scratch_len(t));
        // Recomputation has no place for the output of a norm.
        let output = if self.down.post_norm.is_some() { rows } else { 0 };
        backward.max(output + computed + self.down.scratch_len(t)).max(rows)
    }

    pub(crate) fn flops_per_token(&self, is_frozen: bool) -> Flops {
        let products = self.norm_linear.product.flops() + self.down.flops();
        let adapter = self.down.adapter.as_ref().map_or(0, RowAdapter::flops);
        Flops::of_half(products, self.norm_linear.adapters.flops() + adapter, is_frozen)
    }

    /// Overwrites `y_tc` with `residual_tc`, the stream to which the half is added, and the network
    /// of `x_tc`.
    pub(crate) fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        (x_tc, residual_tc): (View<'_>, View<'_>),
        mut y_tc: ViewMut<'_>,
        saved: &mut FeedForwardSaved<'_>,
    ) -> Result<()> {
        let (mask, masks) = (self.mask(ctx), self.dropout.adapter_masks(ctx));
        let residual = mask.is_none().then_some(residual_tc);
        self.expand(ctx, params, x_tc, saved)?;
        if self.saves_active() {
            let (x, y, frame) = (saved.active_tf.as_view(), y_tc.reborrow(), ctx.scratch.frame());
            let (post_norm, device) = (saved.post_norm.reborrow(), ctx.device);
            let (down, all) = (&self.down, &mut *ctx.collectives);
            down.forward(device, all, params, x, residual, y, post_norm, masks, frame)?;
        } else {
            let (device, hidden, frame) = (ctx.device, saved.hidden.as_view(), ctx.scratch.frame());
            let (y, post_norm, all) =
                (y_tc.reborrow(), saved.post_norm.reborrow(), &mut *ctx.collectives);
            self.contract(device, all, params, hidden, residual, post_norm, masks, frame, y)?;
        }
        match mask {
            Some(mask) => mask.add_masked(ctx.device, y_tc, residual_tc),
            None => Ok(()),
        }
    }

    /// Whether GELU and its gradient are parts of products. The CPU has them apart, to its own
    /// bits.
    fn fuses_gelu(&self) -> bool {
        self.activation == Activation::Gelu && self.saves_active()
    }

    /// Whether forward saves the output of the activation.
    fn saves_active(&self) -> bool {
        self.activations() != Dtype::F32
    }

    /// Elements of the activation's output that are saved.
    fn active_elements(&self, num_rows: usize) -> usize {
        if self.saves_active() { num_rows * self.down.num_local_inputs() } else { 0 }
    }

    /// The first product, which computes everything that forward saves.
    pub(crate) fn expand(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &mut FeedForwardSaved<'_>,
    ) -> Result<()> {
        if self.fuses_gelu() {
            let Context { device, collectives, microbatch, scratch, .. } = ctx;
            let (t, mut frame) = (microbatch.shape.rows(), scratch.frame());
            let (stats, norm_linear) = (saved.stats.reborrow(), &self.norm_linear);
            let place = saved.normed_tc.reborrow();
            let normed_tc = norm_linear.normed(
                *device,
                *collectives,
                t,
                params,
                x_tc,
                stats,
                place,
                &mut frame,
            )?;
            let (hidden, y) = (saved.hidden.reborrow(), saved.active_tf.reborrow());
            return norm_linear.product.forward_gelu(*device, params, normed_tc, hidden, y);
        }
        let (hidden, stats) = (saved.hidden.reborrow(), saved.stats.reborrow());
        let (normed_tc, masks) = (saved.normed_tc.reborrow(), self.dropout.adapter_masks(ctx));
        self.norm_linear.forward(ctx, params, x_tc, hidden, stats, normed_tc, masks)?;
        self.activate_saved(ctx.device, saved)
    }

    /// Sets the saved output of the activation, unless products have computed it.
    fn activate_saved(&self, device: &dyn Device, saved: &mut FeedForwardSaved<'_>) -> Result<()> {
        if !self.saves_active() || self.fuses_gelu() {
            return Ok(());
        }
        self.activate(device, saved.hidden.as_view(), saved.active_tf.reborrow())
    }

    /// Recomputes everything that forward saves: the second product only where a normalisation of
    /// its output is among it.
    pub(crate) fn recompute(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &mut FeedForwardSaved<'_>,
    ) -> Result<()> {
        self.expand(ctx, params, x_tc, saved)?;
        if self.down.post_norm.is_none() {
            return Ok(());
        }
        let masks = self.dropout.adapter_masks(ctx);
        let (device, collectives, mut frame) =
            (ctx.device, &mut *ctx.collectives, ctx.scratch.frame());
        let mut y_tc = frame.take_as(x_tc.dtype(), x_tc.len());
        let (hidden, post_norm, y) =
            (saved.hidden.as_view(), saved.post_norm.reborrow(), y_tc.reborrow());
        self.contract(device, collectives, params, hidden, None, post_norm, masks, frame, y)
    }

    /// Recomputes from the kept values what [`SavedLen::rebuilt`] counts.
    pub(crate) fn rebuild(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &mut FeedForwardSaved<'_>,
    ) -> Result<()> {
        let (stats, normed_tc) = (saved.stats.as_view(), saved.normed_tc.reborrow());
        self.norm_linear.renormalize(device, params, x_tc, stats, normed_tc)?;
        self.activate_saved(device, saved)
    }

    /// `d_stream`: in, the gradient of `y_tc`; out, that of `x_tc`.
    pub(crate) fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &FeedForwardSaved<'_>,
        StreamGradient { output: d_y_tc, sum: d_stream_tc }: StreamGradient<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (device, t, mask) = (ctx.device, ctx.microbatch.shape.rows(), self.mask(ctx));
        let masks = self.dropout.adapter_masks(ctx);
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let d_y = d_y_tc.unwrap_or(d_stream_tc.as_view());
        let (of_stream, post_norm, own) = ((d_y, mask), &saved.post_norm, grads.reborrow());
        let rest = &mut frame;
        let dz_tc = self.down.output_gradient(
            device,
            collectives,
            params,
            of_stream,
            t,
            post_norm,
            own,
            rest,
        )?;
        let mut computed_tf = self.take_computed(t, &mut frame);
        let mut d_hidden = frame.take_as(self.activations(), self.norm_linear.num_outputs(t));
        let (read, norm_linear) = (saved.norm_linear(x_tc, t, masks), &self.norm_linear);
        let hidden = saved.hidden.as_view();
        if self.saves_active() {
            let (own, spare) = (grads.reborrow(), frame.nested());
            self.down.backward_bias(device, collectives, dz_tc, own, spare)?;
            let active_tf = saved.active_tf.as_view();
            let (both, own, spare) = ((active_tf, dz_tc), grads.reborrow(), frame.nested());
            self.down.backward_adapter(device, collectives, params, both, masks, own, spare)?;
            let own = grads.reborrow();
            if self.fuses_gelu() {
                let (x, dx) = ((active_tf, Some(hidden)), d_hidden.reborrow());
                self.down.backward(device, params, x, dz_tc, dx, own)?;
            } else {
                let mut inner = frame.nested();
                let mut d_active_tf = self.take_hidden(t, &mut inner);
                let (x, dx) = ((active_tf, None), d_active_tf.reborrow());
                self.down.backward(device, params, x, dz_tc, dx, own)?;
                let (dx, spare) = (d_active_tf.reborrow(), inner.nested());
                self.down.backward_adapter_input(device, params, dz_tc, dx, masks, spare)?;
                let dy = OutputGradient::SwiGlu {
                    gate_up: hidden,
                    ffn: self.down.num_inputs(),
                    d_act: d_active_tf.as_view(),
                    place: d_hidden.reborrow(),
                };
                if self.quantises_swiglu() {
                    let dx = d_stream_tc;
                    return norm_linear.backward(
                        device,
                        collectives,
                        params,
                        read,
                        dy,
                        dx,
                        grads,
                        inner,
                    );
                }
                dy.compute(device)?;
            }
        } else {
            let (dy, x) = (d_hidden.reborrow(), computed_tf.reborrow());
            self.hidden_gradient(device, params, saved, dz_tc, dy, x, masks, frame.nested())?;
            let (x, own, spare) = (computed_tf.as_view(), grads.reborrow(), frame.nested());
            self.down.backward_weight(device, collectives, x, dz_tc, own, spare)?;
            let (both, own, spare) = ((x, dz_tc), grads.reborrow(), frame.nested());
            self.down.backward_adapter(device, collectives, params, both, masks, own, spare)?;
        }
        let dy = OutputGradient::Stored(d_hidden.into_view());
        norm_linear.backward(device, collectives, params, read, dy, d_stream_tc, grads, frame)
    }

    /// Whether the gradient of SwiGLU is computed where it is quantised.
    fn quantises_swiglu(&self) -> bool {
        let precision = self.norm_linear.product.shards[0].precision();
        let is_fused = self.activation == Activation::SwiGlu && self.saves_active();
        // Adapters read the gradient from memory.
        is_fused && precision == Precision::Fp8 && self.norm_linear.adapters.is_empty()
    }

    /// Computes the gradient of `x_tc` only, and stores the state for the weight gradients.
    pub(crate) fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &FeedForwardSaved<'_>,
        StreamGradient { output: d_y_tc, sum: d_stream_tc }: StreamGradient<'_>,
        DeferredWeightGrad { dz_tc, dy: d_hidden, sums, post_sums, .. }: &mut DeferredWeightGrad<
            '_,
        >,
    ) -> Result<()> {
        let (device, t, mask) = (ctx.device, ctx.microbatch.shape.rows(), self.mask(ctx));
        let masks = self.dropout.adapter_masks(ctx);
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let d_y = d_y_tc.unwrap_or(d_stream_tc.as_view());
        let (of_stream, dz) = ((d_y, mask), dz_tc.reborrow());
        let (post_norm, sums_of_post) = (&saved.post_norm, post_sums.reborrow());
        self.down.fill_output_gradient_only(
            device,
            collectives,
            params,
            of_stream,
            post_norm,
            sums_of_post,
            dz,
            frame.nested(),
        )?;
        let active_tf = self.take_computed(t, &mut frame);
        let (dz_tc, dy, spare) = (dz_tc.as_view(), d_hidden.reborrow(), frame.nested());
        self.hidden_gradient(device, params, saved, dz_tc, dy, active_tf, masks, spare)?;
        let (read, norm_linear) = (saved.norm_linear(x_tc, t, masks), &self.norm_linear);
        norm_linear.backward_input_only(
            device,
            collectives,
            params,
            read,
            d_hidden.as_view(),
            d_stream_tc,
            sums.reborrow(),
            frame,
        )
    }

    /// Adds the gradients of parameters, from the stored state.
    pub(crate) fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &FeedForwardSaved<'_>,
        DeferredWeightGrad { dz_tc, dy: d_hidden, sums, post_sums, .. }: &DeferredWeightGrad<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (device, t) = (ctx.device, ctx.microbatch.shape.rows());
        let masks = self.dropout.adapter_masks(ctx);
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let mut inner = frame.nested();
        let mut computed_tf = self.take_computed(t, &mut inner);
        let x = if self.saves_active() {
            saved.active_tf.as_view()
        } else {
            self.activate(device, saved.hidden.as_view(), computed_tf.reborrow())?;
            computed_tf.into_view()
        };
        let (dz_tc, own) = (dz_tc.as_view(), grads.reborrow());
        self.down.backward_weight(device, collectives, x, dz_tc, own, inner.nested())?;
        let (both, own) = ((x, dz_tc), grads.reborrow());
        self.down.backward_adapter(device, collectives, params, both, masks, own, inner)?;
        let read = saved.norm_linear(x_tc, t, masks);
        let (dy, own) = (d_hidden.as_view(), grads.reborrow());
        self.norm_linear.backward_weight(device, collectives, params, read, dy, own, frame)?;
        if let Some(norm) = &self.down.post_norm {
            norm.add_sums(device, post_sums.as_view(), grads.reborrow())?;
        }
        self.norm_linear.norm.add_sums(device, sums.as_view(), grads)
    }

    /// Computes the gradient of the hidden units from that of the output, and recomputes the input
    /// of the second product, unless it is saved.
    fn hidden_gradient(
        &self,
        device: &dyn Device,
        params: View<'_>,
        saved: &FeedForwardSaved<'_>,
        dz_tc: View<'_>,
        d_hidden: ViewMut<'_>,
        active_tf: ViewMut<'_>,
        masks: AdapterMasks,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        if self.fuses_gelu() {
            let hidden = saved.hidden.as_view();
            return self.down.backward_input_gelu(device, params, dz_tc, hidden, d_hidden);
        }
        let num_rows = saved.hidden.len() / self.norm_linear.product.num_local_outputs();
        let mut d_active_tf = self.take_hidden(num_rows, &mut frame);
        self.down.backward_input(device, params, dz_tc, d_active_tf.reborrow())?;
        let (dx, spare) = (d_active_tf.reborrow(), frame.nested());
        self.down.backward_adapter_input(device, params, dz_tc, dx, masks, spare)?;
        let (hidden, d_active_tf) = (saved.hidden.as_view(), d_active_tf.as_view());
        match self.activation {
            Activation::SwiGlu => {
                let f = self.down.num_inputs();
                device.swiglu_backward(hidden, f, d_active_tf, d_hidden, active_tf)
            }
            Activation::GeGlu => {
                let f = self.down.num_inputs();
                device.geglu_backward(hidden, f, d_active_tf, d_hidden, active_tf)
            }
            Activation::Gelu | Activation::GeluErf => {
                let gelu = self.gelu();
                device.activate_and_backward(gelu, hidden, d_active_tf, active_tf, d_hidden)
            }
        }
    }

    /// The function of an activation of one vector.
    fn gelu(&self) -> device::Activation {
        match self.activation {
            Activation::GeluErf => device::Activation::GeluErf,
            _ => device::Activation::Gelu,
        }
    }

    /// Dropout mask of the output.
    fn mask(&self, ctx: &Context<'_>) -> Option<RowMask> {
        let first_row = self.norm_linear.tp_shards.rows(ctx.microbatch.shape.rows()).start;
        self.dropout.mask(ctx, Site::FeedForwardOutput, first_row, self.norm_linear.width())
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let formats = self.norm_linear.formats();
        let hidden = formats.floats(num_tokens * self.down.num_local_inputs());
        let contract = hidden + self.down.scratch_len(num_tokens);
        let normed = formats.floats(num_tokens * self.norm_linear.width())
            + self.norm_linear.adapters.scratch_len(num_tokens);
        let SavedLen { kept, rebuilt } = self.saved_len(num_tokens);
        kept + rebuilt + contract.max(normed)
    }

    /// Forward for the new tokens of one sequence.
    pub(crate) fn decode(
        &self,
        device: &dyn Device,
        params: View<'_>,
        (x_tc, residual_tc): (View<'_>, View<'_>),
        y_tc: ViewMut<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let num_tokens = x_tc.len() / self.norm_linear.width();
        let (residual, masks) = (Some(residual_tc), AdapterMasks::NONE);
        if self.activation == Activation::SwiGlu && self.down.post_norm.is_none() {
            // First in the frame: a product of one row reads 16 bytes at a time.
            let (mut inner, epilogue) = (frame.nested(), RowEpilogue::SwiGlu);
            let mut active_tf = self.take_hidden(num_tokens, &mut inner);
            let active = active_tf.reborrow();
            if self.norm_linear.forward_row(device, params, x_tc, epilogue, active)? {
                let (x, alone) = (active_tf.as_view(), &mut SingleRank);
                let none = self.down.split(num_tokens, &mut inner);
                let down = &self.down;
                return down.forward(device, alone, params, x, residual, y_tc, none, masks, inner);
            }
        }
        let mut rebuilt = Frame::over(frame.take(self.saved_len(num_tokens).rebuilt));
        let FeedForwardSaved { mut hidden, stats, post_norm, .. } =
            self.split(num_tokens, &mut frame, &mut rebuilt);
        let mut inner = frame.nested();
        let mut normed_tc = inner.take_as(x_tc.dtype(), x_tc.len());
        self.norm_linear.norm.forward(device, params, x_tc, normed_tc.reborrow(), stats)?;
        let (normed_tc, out) = (normed_tc.as_view(), hidden.reborrow());
        self.norm_linear.project(device, params, normed_tc, out, masks, inner)?;
        let hidden = hidden.into_view();
        let alone = &mut SingleRank;
        self.contract(device, alone, params, hidden, residual, post_norm, masks, frame, y_tc)
    }

    /// The activation, the second product and the residual.
    fn contract(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        hidden: View<'_>,
        residual: Option<View<'_>>,
        post_norm: PostNormSaved<'_>,
        masks: AdapterMasks,
        mut frame: Frame<'_>,
        y_tc: ViewMut<'_>,
    ) -> Result<()> {
        let num_rows = hidden.len() / self.norm_linear.product.num_local_outputs();
        let mut active_tf = self.take_hidden(num_rows, &mut frame);
        self.activate(device, hidden, active_tf.reborrow())?;
        let (x, down) = (active_tf.into_view(), &self.down);
        down.forward(device, collectives, params, x, residual, y_tc, post_norm, masks, frame)
    }

    /// Hidden units after the activation.
    fn take_hidden<'a>(&self, num_rows: usize, frame: &mut Frame<'a>) -> ViewMut<'a> {
        frame.take_as(self.activations(), num_rows * self.down.num_local_inputs())
    }

    /// As [`Self::take_hidden`], where these units are not saved; else nothing.
    fn take_computed<'a>(&self, num_rows: usize, frame: &mut Frame<'a>) -> ViewMut<'a> {
        self.take_hidden(if self.saves_active() { 0 } else { num_rows }, frame)
    }

    fn activations(&self) -> Dtype {
        self.norm_linear.formats().activations
    }

    fn activate(
        &self,
        device: &dyn Device,
        hidden: View<'_>,
        active_tf: ViewMut<'_>,
    ) -> Result<()> {
        match self.activation {
            Activation::SwiGlu => device.swiglu_forward(hidden, self.down.num_inputs(), active_tf),
            Activation::GeGlu => device.geglu_forward(hidden, self.down.num_inputs(), active_tf),
            Activation::Gelu | Activation::GeluErf => {
                device.activate(self.gelu(), hidden, active_tf)
            }
        }
    }
}

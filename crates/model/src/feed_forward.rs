//! Feed-forward half of a layer: `y = x + down(activation(up(norm(x))))`.
//!
//! Shards of hidden units are stored one after another, each with all rows. In Llama, `up` computes
//! gate and up, two vectors of f elements, in one product, and SwiGLU combines them. GPT-2 computes
//! one vector and applies GELU. The output of the first product is kept: backward recomputes the
//! activation together with its derivative, which costs less than reading it from memory.

use crate::block::{Context, Flops, MicrobatchShape};
use crate::collectives::{SingleRank, TensorCollectives};
use crate::deferred_weight_grad::DeferredWeightGrad;
use crate::dropout::{Dropout, RowMask, Site};
use crate::grads::Grads;
use crate::norm_linear::{NormLinear, NormLinearSaved};
use crate::row_parallel::RowParallel;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use lockstep_tensor::{Cpu, gelu, reduce, swiglu};

/// The function between the two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// `silu(gate) * up` of a row that is gate, then up.
    SwiGlu,
    /// The tanh form of GELU.
    Gelu,
}

/// Feed-forward network with its normalisation.
pub(crate) struct FeedForward {
    /// Normalisation and first product.
    pub(crate) norm_linear: NormLinear,
    pub(crate) activation: Activation,
    pub(crate) down: RowParallel,
    pub(crate) dropout: Dropout,
}

/// Saved values of forward; all of them are kept.
pub(crate) struct FeedForwardSaved<'a> {
    hidden: &'a mut [f32],
    stats: &'a mut [f32],
}

impl FeedForwardSaved<'_> {
    fn norm_linear<'b>(&'b self, x_tc: &'b [f32], num_rows: usize) -> NormLinearSaved<'b> {
        NormLinearSaved { x_tc, stats: self.stats, num_rows }
    }
}

impl FeedForward {
    pub(crate) fn kept_len(&self, num_rows: usize) -> usize {
        self.norm_linear.outputs_len(num_rows) + self.norm_linear.stats_len(num_rows)
    }

    pub(crate) fn split<'a>(&self, num_rows: usize, kept: &mut Frame<'a>) -> FeedForwardSaved<'a> {
        FeedForwardSaved {
            hidden: kept.take(self.norm_linear.outputs_len(num_rows)),
            stats: kept.take(self.norm_linear.stats_len(num_rows)),
        }
    }

    pub(crate) fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let (t, c, tp_shards) =
            (shape.rows(), self.norm_linear.width(), &self.norm_linear.tp_shards);
        let f = t * self.down.num_local_inputs();
        let own = if self.dropout.is_on() || tp_shards.sequence { t * c } else { 0 };
        let ends = self.norm_linear.scratch_len(t).max(RowSums::scratch_len(tp_shards, c));
        let backward = own + f + self.norm_linear.outputs_len(t) + f.max(ends);
        backward.max(f + self.down.scratch_len(t)).max(t * c)
    }

    pub(crate) fn flops_per_token(&self) -> Flops {
        let forward = self.norm_linear.product.flops() + self.down.flops();
        Flops { forward, backward: 2 * forward }
    }

    pub(crate) fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        y_tc: &mut [f32],
        saved: &mut FeedForwardSaved<'_>,
    ) {
        self.expand(ctx, params, x_tc, saved);
        let frame = ctx.scratch.frame();
        self.contract(ctx.cpu, ctx.collectives, params, saved.hidden, frame, y_tc);
        if let Some(mask) = self.mask(ctx) {
            mask.apply(ctx.cpu, y_tc);
        }
        reduce::add_assign(ctx.cpu, y_tc, x_tc);
    }

    /// The first product, which computes everything that forward saves.
    pub(crate) fn expand(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        saved: &mut FeedForwardSaved<'_>,
    ) {
        self.norm_linear.forward(ctx, params, x_tc, saved.hidden, saved.stats);
    }

    /// `d_stream_tc`: in, the gradient of `y_tc`; out, that of `x_tc`.
    pub(crate) fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        saved: &FeedForwardSaved<'_>,
        d_stream_tc: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let (cpu, t, mask) = (ctx.cpu, ctx.microbatch.shape.rows(), self.mask(ctx));
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let dz_tc = self.down.output_gradient(cpu, collectives, d_stream_tc, mask, t, &mut frame);
        let active_tf = frame.take(t * self.down.num_local_inputs());
        let d_hidden = frame.take(self.norm_linear.outputs_len(t));
        self.hidden_gradient(cpu, params, saved, dz_tc, d_hidden, active_tf, frame.nested());
        let spare = frame.nested();
        self.down.backward_weight(cpu, collectives, active_tf, dz_tc, grads.reborrow(), spare);
        let (read, norm_linear) = (saved.norm_linear(x_tc, t), &self.norm_linear);
        let (own, spare) = (grads.reborrow(), frame.nested());
        norm_linear.backward_weight(cpu, collectives, params, read, d_hidden, own, spare);
        norm_linear.backward_input(
            cpu,
            collectives,
            params,
            read,
            d_hidden,
            d_stream_tc,
            grads,
            frame,
        );
    }

    /// Computes the gradient of `x_tc` only, and stores the state for the weight gradients.
    pub(crate) fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        saved: &FeedForwardSaved<'_>,
        d_stream_tc: &mut [f32],
        DeferredWeightGrad { dz_tc, dy: d_hidden, sums }: &mut DeferredWeightGrad<'_>,
    ) {
        let (cpu, t, mask) = (ctx.cpu, ctx.microbatch.shape.rows(), self.mask(ctx));
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        self.down.fill_output_gradient(cpu, collectives, d_stream_tc, mask, dz_tc);
        let active_tf = frame.take(t * self.down.num_local_inputs());
        self.hidden_gradient(cpu, params, saved, dz_tc, d_hidden, active_tf, frame.nested());
        let (read, norm_linear) = (saved.norm_linear(x_tc, t), &self.norm_linear);
        norm_linear.backward_input_only(
            cpu,
            collectives,
            params,
            read,
            d_hidden,
            d_stream_tc,
            sums,
            frame,
        );
    }

    /// Adds the gradients of parameters, from the stored state.
    pub(crate) fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        saved: &FeedForwardSaved<'_>,
        DeferredWeightGrad { dz_tc, dy: d_hidden, sums }: &DeferredWeightGrad<'_>,
        mut grads: Grads<'_>,
    ) {
        let (cpu, t) = (ctx.cpu, ctx.microbatch.shape.rows());
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let mut inner = frame.nested();
        let active_tf = inner.take(t * self.down.num_local_inputs());
        self.activate(cpu, saved.hidden, active_tf);
        self.down.backward_weight(cpu, collectives, active_tf, dz_tc, grads.reborrow(), inner);
        let (read, own) = (saved.norm_linear(x_tc, t), grads.reborrow());
        self.norm_linear.backward_weight(cpu, collectives, params, read, d_hidden, own, frame);
        self.norm_linear.norm.add_sums(cpu, sums, grads);
    }

    /// Computes the gradient of the hidden units from that of the output, and recomputes the input
    /// of the second product.
    fn hidden_gradient(
        &self,
        cpu: &Cpu,
        params: &[f32],
        saved: &FeedForwardSaved<'_>,
        dz_tc: &[f32],
        d_hidden: &mut [f32],
        active_tf: &mut [f32],
        mut frame: Frame<'_>,
    ) {
        let d_active_tf = frame.take(active_tf.len());
        self.down.backward_input(cpu, params, dz_tc, d_active_tf);
        match self.activation {
            Activation::SwiGlu => {
                let f = self.down.num_inputs();
                swiglu::backward(cpu, saved.hidden, f, d_active_tf, d_hidden, active_tf);
            }
            Activation::Gelu => {
                gelu::forward(cpu, saved.hidden, active_tf);
                gelu::backward(cpu, saved.hidden, d_active_tf, d_hidden);
            }
        }
    }

    /// Dropout mask of the output.
    fn mask(&self, ctx: &Context<'_>) -> Option<RowMask> {
        let first_row = self.norm_linear.tp_shards.rows(ctx.microbatch.shape.rows()).start;
        self.dropout.mask(ctx, Site::FeedForwardOutput, first_row, self.norm_linear.width())
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let contract =
            num_tokens * self.down.num_local_inputs() + self.down.scratch_len(num_tokens);
        self.kept_len(num_tokens) + contract.max(num_tokens * self.norm_linear.width())
    }

    /// Forward for the new tokens of one sequence.
    pub(crate) fn decode(
        &self,
        cpu: &Cpu,
        params: &[f32],
        x_tc: &[f32],
        y_tc: &mut [f32],
        mut frame: Frame<'_>,
    ) {
        let num_tokens = x_tc.len() / self.norm_linear.width();
        let FeedForwardSaved { hidden, stats } = self.split(num_tokens, &mut frame);
        let normed_tc = frame.nested().take(x_tc.len());
        self.norm_linear.norm.forward(cpu, params, x_tc, normed_tc, stats);
        self.norm_linear.product.forward(cpu, params, normed_tc, hidden);
        self.contract(cpu, &mut SingleRank, params, hidden, frame, y_tc);
        reduce::add_assign(cpu, y_tc, x_tc);
    }

    /// The activation and the second product.
    fn contract(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        params: &[f32],
        hidden: &[f32],
        mut frame: Frame<'_>,
        y_tc: &mut [f32],
    ) {
        let num_rows = hidden.len() / self.norm_linear.product.num_local_outputs();
        let active_tf = frame.take(num_rows * self.down.num_local_inputs());
        self.activate(cpu, hidden, active_tf);
        self.down.forward(cpu, collectives, params, active_tf, y_tc, frame);
    }

    fn activate(&self, cpu: &Cpu, hidden: &[f32], active_tf: &mut [f32]) {
        match self.activation {
            Activation::SwiGlu => swiglu::forward(cpu, hidden, self.down.num_inputs(), active_tf),
            Activation::Gelu => gelu::forward(cpu, hidden, active_tf),
        }
    }
}

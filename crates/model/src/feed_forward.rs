//! The second half of a layer: `y = x + down(activation(up(norm(x))))`.
//!
//! Llama gates: `up` makes two vectors of f numbers in one product, and SwiGLU turns them into one.
//! GPT-2 makes one vector and applies GELU. What is kept is the output of the first product, before
//! the activation: backward computes the activation again on its way to the derivative, which
//! costs less than reading it from memory would.

use crate::block::{Context, Flops, LaneShape};
use crate::dropout::{Dropout, Site};
use crate::grads::Grads;
use crate::linear::Linear;
use crate::norm::Norm;
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

/// See the module's text.
pub(crate) struct FeedForward {
    pub(crate) norm: Norm,
    pub(crate) up: Linear,
    pub(crate) activation: Activation,
    pub(crate) down: Linear,
    pub(crate) dropout: Dropout,
}

/// What forward saves; all of it is kept.
pub(crate) struct FeedForwardSaved<'a> {
    hidden: &'a mut [f32],
    stats: &'a mut [f32],
}

impl FeedForward {
    pub(crate) fn kept_len(&self, num_rows: usize) -> usize {
        num_rows * self.up.num_outputs + self.norm.stats_len(num_rows)
    }

    pub(crate) fn split<'a>(&self, num_rows: usize, kept: &mut Frame<'a>) -> FeedForwardSaved<'a> {
        FeedForwardSaved {
            hidden: kept.take(num_rows * self.up.num_outputs),
            stats: kept.take(self.norm.stats_len(num_rows)),
        }
    }

    pub(crate) fn scratch_len(&self, shape: LaneShape) -> usize {
        let t = shape.rows();
        let (c, hidden, f) = (self.norm.width, self.up.num_outputs, self.down.num_inputs);
        let masked = if self.dropout.is_on() { t * c } else { 0 };
        t * (2 * f + hidden + 2 * c) + masked
    }

    pub(crate) fn flops_per_token(&self) -> Flops {
        let forward = self.up.flops() + self.down.flops();
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
        self.contract(ctx.cpu, params, saved.hidden, &mut ctx.scratch.frame(), y_tc);
        if let Some(mask) = self.dropout.mask(ctx, Site::FeedForwardOutput, self.norm.width) {
            mask.apply(ctx.cpu, y_tc);
        }
        reduce::add_assign(ctx.cpu, y_tc, x_tc);
    }

    /// The first product: everything that forward saves.
    pub(crate) fn expand(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        saved: &mut FeedForwardSaved<'_>,
    ) {
        let normed_tc = ctx.scratch.frame().take(x_tc.len());
        self.norm.forward(ctx.cpu, params, x_tc, normed_tc, saved.stats);
        self.up.forward(ctx.cpu, params, normed_tc, saved.hidden);
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
        let cpu = ctx.cpu;
        let t = ctx.lane.shape.rows();
        let mask = self.dropout.mask(ctx, Site::FeedForwardOutput, self.norm.width);
        let mut frame = ctx.scratch.frame();

        let masked;
        let dz_tc: &[f32] = if let Some(mask) = mask {
            masked = frame.take(d_stream_tc.len());
            masked.copy_from_slice(d_stream_tc);
            mask.apply(cpu, masked);
            masked
        } else {
            d_stream_tc
        };
        let d_active_tf = frame.take(t * self.down.num_inputs);
        self.down.backward_input(cpu, params, dz_tc, d_active_tf);
        let active_tf = frame.take(t * self.down.num_inputs);
        let d_hidden = frame.take(t * self.up.num_outputs);
        match self.activation {
            Activation::SwiGlu => {
                let f = self.down.num_inputs;
                swiglu::backward(cpu, saved.hidden, f, d_active_tf, d_hidden, active_tf);
            }
            Activation::Gelu => {
                gelu::forward(cpu, saved.hidden, active_tf);
                gelu::backward(cpu, saved.hidden, d_active_tf, d_hidden);
            }
        }
        self.down.backward_weight(cpu, active_tf, dz_tc, grads.reborrow());

        let normed_tc = frame.take(x_tc.len());
        self.norm.normalize(cpu, params, x_tc, saved.stats, normed_tc);
        self.up.backward_weight(cpu, normed_tc, d_hidden, grads.reborrow());
        let d_normed_tc = frame.take(x_tc.len());
        self.up.backward_input(cpu, params, d_hidden, d_normed_tc);
        self.norm.backward(cpu, params, x_tc, saved.stats, d_normed_tc, d_stream_tc, grads);
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let working = self.norm.width.max(self.down.num_inputs);
        self.kept_len(num_tokens) + num_tokens * working
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
        let num_tokens = x_tc.len() / self.norm.width;
        let FeedForwardSaved { hidden, stats } = self.split(num_tokens, &mut frame);
        let normed_tc = frame.nested().take(x_tc.len());
        self.norm.forward(cpu, params, x_tc, normed_tc, stats);
        self.up.forward(cpu, params, normed_tc, hidden);
        self.contract(cpu, params, hidden, &mut frame, y_tc);
        reduce::add_assign(cpu, y_tc, x_tc);
    }

    /// The activation and the second product.
    fn contract(
        &self,
        cpu: &Cpu,
        params: &[f32],
        hidden: &[f32],
        frame: &mut Frame<'_>,
        y_tc: &mut [f32],
    ) {
        let f = self.down.num_inputs;
        let active_tf = frame.take(hidden.len() / self.up.num_outputs * f);
        match self.activation {
            Activation::SwiGlu => swiglu::forward(cpu, hidden, f, active_tf),
            Activation::Gelu => gelu::forward(cpu, hidden, active_tf),
        }
        self.down.forward(cpu, params, active_tf, y_tc);
    }
}

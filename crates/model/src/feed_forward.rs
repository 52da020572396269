//! The second half of a layer: `y = x + down(activation(up(norm(x))))`.
//!
//! Slices of hidden numbers follow each other, each with all rows.
//! Llama gates: `up` makes two vectors of f numbers in one product, and SwiGLU turns them into one.
//! GPT-2 makes one vector and applies GELU. What is kept is the output of the first product, before
//! the activation: backward computes the activation again on its way to the derivative, which
//! costs less than reading it from memory would.

use crate::block::{Context, Flops, LaneShape};
use crate::column::Column;
use crate::dropout::{Dropout, Site};
use crate::exchange::{AllHere, Exchange};
use crate::grads::Grads;
use crate::norm::Norm;
use crate::row::Row;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::slices::Slices;
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
    pub(crate) up: Column,
    pub(crate) activation: Activation,
    pub(crate) down: Row,
    pub(crate) dropout: Dropout,
    pub(crate) cut: Slices,
}

/// What forward saves; all of it is kept.
pub(crate) struct FeedForwardSaved<'a> {
    hidden: &'a mut [f32],
    stats: &'a mut [f32],
}

impl FeedForward {
    pub(crate) fn kept_len(&self, num_rows: usize) -> usize {
        let own = self.cut.rows(num_rows).len();
        num_rows * self.up.num_held_outputs() + self.norm.stats_len(own)
    }

    pub(crate) fn split<'a>(&self, num_rows: usize, kept: &mut Frame<'a>) -> FeedForwardSaved<'a> {
        FeedForwardSaved {
            hidden: kept.take(num_rows * self.up.num_held_outputs()),
            stats: kept.take(self.norm.stats_len(self.cut.rows(num_rows).len())),
        }
    }

    pub(crate) fn scratch_len(&self, shape: LaneShape) -> usize {
        let (t, c) = (shape.rows(), self.norm.width);
        let (hidden, f) = (self.up.num_held_outputs(), self.down.num_held_inputs());
        let own = if self.dropout.is_on() || self.cut.sequence { t * c } else { 0 };
        let sums = self.norm.scratch_len(&self.cut).max(RowSums::scratch_len(&self.cut, c));
        let backward = own + t * (2 * f + hidden + 2 * c) + self.up.spare_len(t).max(sums);
        backward.max(t * f + self.down.scratch_len(t))
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
        let frame = ctx.scratch.frame();
        self.contract(ctx.cpu, ctx.exchange, params, saved.hidden, frame, y_tc);
        let first_row = self.cut.rows(ctx.lane.shape.rows()).start;
        let mask = self.dropout.mask(ctx, Site::FeedForwardOutput, first_row, self.norm.width);
        if let Some(mask) = mask {
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
        let (t, c) = (ctx.lane.shape.rows(), self.norm.width);
        let own = self.cut.rows(t);
        let normed_tc = ctx.scratch.frame().take(t * c);
        let normed_own = &mut normed_tc[own.start * c..own.end * c];
        self.norm.forward(ctx.cpu, params, x_tc, normed_own, saved.stats);
        self.cut.gather_rows(ctx.exchange, normed_tc);
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
        let (t, c) = (ctx.lane.shape.rows(), self.norm.width);
        let own = self.cut.rows(t);
        let own = own.start * c..own.end * c;
        let mask = self.dropout.mask(ctx, Site::FeedForwardOutput, own.start / c, c);
        let mut frame = ctx.scratch.frame();

        let dz_tc = self.down.output_gradient(cpu, ctx.exchange, d_stream_tc, mask, t, &mut frame);
        let d_active_tf = frame.take(t * self.down.num_held_inputs());
        self.down.backward_input(cpu, params, dz_tc, d_active_tf);
        let active_tf = frame.take(t * self.down.num_held_inputs());
        let d_hidden = frame.take(t * self.up.num_held_outputs());
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
        let spare = frame.nested();
        self.down.backward_weight(cpu, ctx.exchange, active_tf, dz_tc, grads.reborrow(), spare);

        let normed_tc = frame.take(t * c);
        self.norm.normalize(cpu, params, x_tc, saved.stats, &mut normed_tc[own.clone()]);
        self.cut.gather_rows(ctx.exchange, normed_tc);
        self.up.backward_weight(cpu, normed_tc, d_hidden, grads.reborrow());
        let d_normed_tc = frame.take(t * c);
        let spare = frame.nested().take(self.up.spare_len(t));
        self.up.backward_input(cpu, params, d_hidden, d_normed_tc, spare);
        self.cut.sum_rows(ctx.exchange, d_normed_tc);
        let (d_normed, sums) = (&d_normed_tc[own], RowSums { cut: &self.cut, num_rows: t });
        self.norm.backward(
            cpu,
            ctx.exchange,
            params,
            x_tc,
            saved.stats,
            d_normed,
            d_stream_tc,
            grads,
            &sums,
            frame,
        );
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let contract = num_tokens * self.down.num_held_inputs() + self.down.scratch_len(num_tokens);
        self.kept_len(num_tokens) + contract.max(num_tokens * self.norm.width)
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
        self.contract(cpu, &mut AllHere, params, hidden, frame, y_tc);
        reduce::add_assign(cpu, y_tc, x_tc);
    }

    /// The activation and the second product.
    fn contract(
        &self,
        cpu: &Cpu,
        exchange: &mut dyn Exchange,
        params: &[f32],
        hidden: &[f32],
        mut frame: Frame<'_>,
        y_tc: &mut [f32],
    ) {
        let f = self.down.num_inputs();
        let active_tf = frame.take(hidden.len() / self.up.num_outputs() * f);
        match self.activation {
            Activation::SwiGlu => swiglu::forward(cpu, hidden, f, active_tf),
            Activation::Gelu => gelu::forward(cpu, hidden, active_tf),
        }
        self.down.forward(cpu, exchange, params, active_tf, y_tc, frame);
    }
}

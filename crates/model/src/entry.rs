//! How each half of a layer and the head begin: normalise the stream, multiply with the first
//! matrix.
//!
//! Where the stream's rows are divided, all of them are gathered in between. Backward ends here:
//! the gradient of the product's input is a sum over slices, passes the normalisation and is added
//! to the stream. The normalised rows are computed again for the gradient of the matrix rather than
//! saved.

use crate::block::Context;
use crate::column::Column;
use crate::exchange::{Exchange, ExchangeCall};
use crate::grads::Grads;
use crate::norm::Norm;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::slices::Slices;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::slice;

/// See the module's text.
pub(crate) struct Entry {
    pub(crate) norm: Norm,
    pub(crate) product: Column,
    pub(crate) cut: Slices,
}

/// What forward read and saved, for backward.
#[derive(Clone, Copy)]
pub(crate) struct EntrySaved<'a> {
    /// The stream's rows.
    pub(crate) x_tc: &'a [f32],
    /// The statistics of the normalisation.
    pub(crate) stats: &'a [f32],
    /// Rows of the micro-batch.
    pub(crate) num_rows: usize,
}

impl Entry {
    /// Width of the stream.
    pub(crate) const fn width(&self) -> usize {
        self.norm.width
    }

    /// Elements of the product's outputs for a micro-batch of `num_rows`.
    pub(crate) fn outputs_len(&self, num_rows: usize) -> usize {
        num_rows * self.product.num_held_outputs()
    }

    /// Elements of the statistics that are saved.
    pub(crate) fn stats_len(&self, num_rows: usize) -> usize {
        self.norm.stats_len(self.cut.rows(num_rows).len())
    }

    /// Memory that any of the calls below needs.
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let spare = self.product.spare_len(num_rows).max(self.norm.scratch_len(&self.cut));
        num_rows * self.width() + spare
    }

    /// Overwrites `y` and fills `stats`.
    pub(crate) fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        y: &mut [f32],
        stats: &mut [f32],
    ) {
        let num_rows = ctx.microbatch.shape.rows();
        let normed_tc = ctx.scratch.frame().take(num_rows * self.width());
        self.norm.forward(ctx.cpu, params, x_tc, &mut normed_tc[self.own(num_rows)], stats);
        self.cut.gather_rows(ctx.exchange, normed_tc);
        self.product.forward(ctx.cpu, params, normed_tc, y);
    }

    /// Adds the gradients of what is trained of the matrix to `grads`.
    pub(crate) fn backward_weight(
        &self,
        cpu: &Cpu,
        exchange: &mut dyn Exchange,
        params: &[f32],
        EntrySaved { x_tc, stats, num_rows }: EntrySaved<'_>,
        dy: &[f32],
        grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) {
        let normed_tc = frame.take(num_rows * self.width());
        self.norm.normalize(cpu, params, x_tc, stats, &mut normed_tc[self.own(num_rows)]);
        self.cut.gather_rows(exchange, normed_tc);
        self.product.backward_weight(cpu, normed_tc, dy, grads);
    }

    /// Adds the gradient of the input to `d_stream_tc`, and the gradients of what is trained of the
    /// normalisation to `grads`.
    pub(crate) fn backward_input(
        &self,
        cpu: &Cpu,
        exchange: &mut dyn Exchange,
        params: &[f32],
        EntrySaved { x_tc, stats, num_rows }: EntrySaved<'_>,
        dy: &[f32],
        d_stream_tc: &mut [f32],
        grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) {
        let d_normed_tc = frame.take(num_rows * self.width());
        let spare = frame.nested().take(self.product.spare_len(num_rows));
        self.product.backward_input(cpu, params, dy, d_normed_tc, spare);
        self.cut.sum_rows(exchange, d_normed_tc);
        let (d_normed, sums) =
            (&d_normed_tc[self.own(num_rows)], RowSums { cut: &self.cut, num_rows });
        self.norm.backward(
            cpu,
            exchange,
            params,
            x_tc,
            stats,
            d_normed,
            d_stream_tc,
            grads,
            &sums,
            frame,
        );
    }

    /// The same where gradients of parameters come later: `sums` becomes what the micro-batch adds to
    /// those of the normalisation.
    pub(crate) fn backward_input_alone(
        &self,
        cpu: &Cpu,
        exchange: &mut dyn Exchange,
        params: &[f32],
        saved: EntrySaved<'_>,
        dy: &[f32],
        d_stream_tc: &mut [f32],
        sums: &mut [f32],
        frame: Frame<'_>,
    ) {
        // What is added to minus zero stays what it is, a zero of either sign too.
        sums.fill(-0.0);
        let sums = Grads::new(sums, slice::from_ref(&self.norm.at));
        self.backward_input(cpu, exchange, params, saved, dy, d_stream_tc, sums, frame);
    }

    /// The calls of a micro-batch's gradients of the input and of the normalisation; `trained` is what is
    /// trained of the block.
    pub(crate) fn input_calls(
        &self,
        num_rows: usize,
        trained: &[Range<usize>],
    ) -> impl Iterator<Item = ExchangeCall> {
        let sum = self.cut.sum_call(num_rows * self.width());
        [sum].into_iter().chain(self.cut.row_blocks_call(&self.norm.params(), trained))
    }

    /// The call in front of the product.
    pub(crate) fn gather_call(&self, num_rows: usize) -> Option<ExchangeCall> {
        self.cut.gather_call(num_rows * self.width())
    }

    /// Where the stream's rows lie among those of the micro-batch.
    pub(crate) fn own(&self, num_rows: usize) -> Range<usize> {
        let own = self.cut.rows(num_rows);
        own.start * self.width()..own.end * self.width()
    }
}

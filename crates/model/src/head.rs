//! The last block: a normalisation, the projection to the vocabulary, and the loss.
//!
//! The loss and its derivative by the logits come out of one pass over them: while training,
//! forward already turns the logits it saved into their gradients (divided by the number of targets
//! of the *global* batch, which is known before the first lane runs), so the largest activation of
//! the model exists once. Evaluation leaves the logits as they are; they are the first values of
//! what is kept.
//!
//! The vocabulary is cut into slices, which follow each other, each with all rows. Where there is
//! more than one, nobody looks at a whole row of logits ([`cross_entropy::slices`]).

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, LaneShape, Mode, Pass, Saved, SavedLen,
};
use crate::column::Column;
use crate::exchange::{ExchangeCall, ExchangeKind};
use crate::grads::Grads;
use crate::norm::Norm;
use crate::param::Param;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::slices::Slices;
use crate::tree;
use lockstep_tensor::cross_entropy::{self, slices};
use lockstep_tensor::gemm::Write;

/// See the module's text.
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) norm: Norm,
    pub(crate) project: Column,
    pub(crate) cut: Slices,
}

/// What forward saves.
struct HeadSaved<'a> {
    /// Logits; after a training forward, their gradients.
    logits_tv: &'a mut [f32],
    stats: &'a mut [f32],
    losses_t: &'a mut [f32],
}

impl Head {
    fn split<'a>(&self, num_rows: usize, Saved { kept, .. }: Saved<'a>) -> HeadSaved<'a> {
        let mut kept = Frame::over(kept);
        let saved = HeadSaved {
            logits_tv: kept.take(num_rows * self.project.num_held_outputs()),
            stats: kept.take(self.norm.stats_len(self.cut.rows(num_rows).len())),
            losses_t: kept.take(num_rows),
        };
        kept.finish();
        saved
    }

    /// The loss over a vocabulary in slices; turns logits into gradients while training.
    fn sliced_loss(
        &self,
        ctx: &mut Context<'_>,
        logits_tv: &mut [f32],
        losses_t: &mut [f32],
    ) -> f64 {
        let (cpu, lane, exchange) = (ctx.cpu, ctx.lane, &mut *ctx.exchange);
        let (t, vocab, targets) = (lane.shape.rows(), self.project.num_outputs(), lane.targets);
        let held = self.cut.held.clone();
        let columns = |slice: usize| slice * vocab..(slice + 1) * vocab;
        let mut frame = ctx.scratch.frame();
        let max_t = frame.take(t);
        max_t.fill(f32::NEG_INFINITY);
        for logits_tv in logits_tv.chunks_exact(t * vocab) {
            slices::raise_maxima(cpu, logits_tv, max_t);
        }
        exchange.max(max_t);

        // The sums of exponentials and the logits of targets, to be added in one call.
        let known = frame.take(2 * t);
        let (sums_t, target_logits_t) = known.split_at_mut(t);
        target_logits_t.fill(-0.0);
        for (slice, logits_tv) in held.clone().zip(logits_tv.chunks_exact(t * vocab)) {
            slices::target_logits(logits_tv, columns(slice), targets, target_logits_t);
        }
        let spare = frame.take(t * tree::num_spare(held.len(), false));
        let trains = ctx.mode != Mode::Evaluate;
        tree::sum(cpu, 0..held.len(), false, sums_t, spare, &mut |slice, sums_t, write| {
            debug_assert_eq!(write, Write::Set, "sums are not fused");
            let logits_tv = &mut logits_tv[slice * t * vocab..][..t * vocab];
            if trains {
                slices::exponentials(cpu, logits_tv, targets, max_t, sums_t);
            } else {
                slices::exponential_sums(cpu, logits_tv, targets, max_t, sums_t);
            }
        });
        exchange.sum(known);

        let (sums_t, target_logits_t) = known.split_at(t);
        if trains {
            for (slice, logits_tv) in held.zip(logits_tv.chunks_exact_mut(t * vocab)) {
                let (columns, num_targets) = (columns(slice), lane.num_targets);
                slices::gradients(cpu, logits_tv, columns, targets, num_targets, sums_t);
            }
        }
        slices::losses(targets, max_t, sums_t, target_logits_t, losses_t)
    }
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        BlockIo::StreamToLoss { input: self.norm.width }
    }

    fn saved_len(&self, shape: LaneShape) -> SavedLen {
        let t = shape.rows();
        let stats = self.norm.stats_len(self.cut.rows(t).len());
        let kept = t * self.project.num_held_outputs() + stats + t;
        SavedLen { kept, rebuilt: 0 }
    }

    fn scratch_len(&self, shape: LaneShape) -> usize {
        let t = shape.rows();
        let loss = t * (3 + tree::num_spare(self.cut.num_held(), false));
        let spare = self.project.spare_len(t).max(self.norm.scratch_len(&self.cut));
        (2 * t * self.norm.width + spare).max(loss)
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        let forward = self.project.flops();
        Flops { forward, backward: 2 * forward }
    }

    fn exchanges(&self, shape: LaneShape, pass: Pass<'_>) -> Vec<ExchangeCall> {
        let (t, rows) = (shape.rows(), shape.rows() * self.norm.width);
        let gather = self.cut.gather_call(rows);
        let loss =
            [ExchangeCall::new(ExchangeKind::Max, t), ExchangeCall::new(ExchangeKind::Sum, 2 * t)];
        match pass {
            Pass::Forward if self.cut.num == 1 => gather.into_iter().collect(),
            Pass::Forward => gather.into_iter().chain(loss).collect(),
            Pass::Recompute(_) => Vec::new(),
            Pass::Backward(trained) => {
                let norm = self.cut.row_blocks_call(&self.norm.params(), trained);
                gather.into_iter().chain([self.cut.sum_call(rows)]).chain(norm).collect()
            }
        }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        _output: &mut [f32],
        saved: Saved<'_>,
    ) -> f64 {
        let (cpu, lane) = (ctx.cpu, ctx.lane);
        let HeadSaved { logits_tv, stats, losses_t } = self.split(lane.shape.rows(), saved);
        let (t, c) = (lane.shape.rows(), self.norm.width);
        let own = self.cut.rows(t);
        let normed_tc = ctx.scratch.frame().take(t * c);
        let normed_own = &mut normed_tc[own.start * c..own.end * c];
        self.norm.forward(cpu, params, input_tc, normed_own, stats);
        self.cut.gather_rows(ctx.exchange, normed_tc);
        self.project.forward(cpu, params, normed_tc, logits_tv);
        let (vocab, targets) = (self.project.num_outputs(), lane.targets);
        match ctx.mode {
            _ if self.cut.num > 1 => self.sliced_loss(ctx, logits_tv, losses_t),
            Mode::Train { .. } => cross_entropy::forward_backward(
                cpu,
                logits_tv,
                vocab,
                targets,
                lane.num_targets,
                losses_t,
            ),
            Mode::Evaluate => cross_entropy::forward(cpu, logits_tv, vocab, targets, losses_t),
        }
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let cpu = ctx.cpu;
        let (t, c) = (ctx.lane.shape.rows(), self.norm.width);
        let own = self.cut.rows(t);
        let own = own.start * c..own.end * c;
        let HeadSaved { logits_tv, stats, .. } = self.split(t, saved);
        let mut frame = ctx.scratch.frame();
        let normed_tc = frame.take(t * c);
        self.norm.normalize(cpu, params, input_tc, stats, &mut normed_tc[own.clone()]);
        self.cut.gather_rows(ctx.exchange, normed_tc);
        self.project.backward_weight(cpu, normed_tc, logits_tv, grads.reborrow());
        let d_normed_tc = frame.take(t * c);
        let spare = frame.nested().take(self.project.spare_len(t));
        self.project.backward_input(cpu, params, logits_tv, d_normed_tc, spare);
        self.cut.sum_rows(ctx.exchange, d_normed_tc);
        d_stream_tc.fill(0.0);
        let (d_normed, sums) = (&d_normed_tc[own], RowSums { cut: &self.cut, num_rows: t });
        self.norm.backward(
            cpu,
            ctx.exchange,
            params,
            input_tc,
            stats,
            d_normed,
            d_stream_tc,
            grads,
            &sums,
            frame,
        );
    }

    fn decode_scratch_len(&self, _num_tokens: usize) -> usize {
        self.norm.width + self.norm.stats_len(1)
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: &[f32],
        input_tc: &[f32],
        output: &mut [f32],
        _cache: &mut [f32],
    ) {
        let last_c = &input_tc[input_tc.len() - self.norm.width..];
        let mut frame = ctx.scratch.frame();
        let normed_c = frame.take(self.norm.width);
        let stats = frame.take(self.norm.stats_len(1));
        self.norm.forward(ctx.cpu, params, last_c, normed_c, stats);
        self.project.forward(ctx.cpu, params, normed_c, output);
    }
}

//! Head: the last block of a transformer, with a normalisation, the projection to the vocabulary,
//! and the loss.
//!
//! One pass over the logits computes the loss and its gradient: in training, forward overwrites the
//! saved logits with their gradients (divided by the number of targets of the *global* batch, which
//! is known before the first micro-batch), so the largest activation of the model exists once.
//! Evaluation keeps the logits, as the first of the kept values.
//!
//! The vocabulary is sharded; shards are stored one after another, each with all rows. With several
//! shards, no rank needs a whole row of logits ([`cross_entropy::vocab_parallel`]).

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, MicrobatchShape, Mode, Pass, Saved, SavedLen,
};
use crate::collectives::{CollectiveCall, CollectiveKind};
use crate::grads::Grads;
use crate::norm_linear::{NormLinear, NormLinearSaved};
use crate::param::Param;
use crate::reduction_tree;
use crate::scratch::Frame;
use lockstep_config::LossScale;
use lockstep_tensor::convert;
use lockstep_tensor::cross_entropy::{self, vocab_parallel};
use lockstep_tensor::gemm::{Precision, Write};
use std::slice;

/// Final normalisation, projection and loss.
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    /// Normalisation and projection to logits.
    pub(crate) norm_linear: NormLinear,
}

/// Saved values of forward.
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
            logits_tv: kept.take(self.norm_linear.outputs_len(num_rows)),
            stats: kept.take(self.norm_linear.stats_len(num_rows)),
            losses_t: kept.take(num_rows),
        };
        kept.finish();
        saved
    }

    /// Vocab-parallel loss; turns logits into gradients while training.
    fn vocab_parallel_loss(
        &self,
        ctx: &mut Context<'_>,
        logits_tv: &mut [f32],
        losses_t: &mut [f32],
    ) -> f64 {
        let (cpu, microbatch, collectives) = (ctx.cpu, ctx.microbatch, &mut *ctx.collectives);
        let (t, targets) = (microbatch.shape.rows(), microbatch.targets);
        let (vocab, local) =
            (self.norm_linear.product.num_outputs(), self.norm_linear.tp_shards.local.clone());
        let columns = |shard: usize| shard * vocab..(shard + 1) * vocab;
        let mut frame = ctx.scratch.frame();
        let max_t = frame.take(t);
        max_t.fill(f32::NEG_INFINITY);
        for logits_tv in logits_tv.chunks_exact(t * vocab) {
            vocab_parallel::raise_maxima(cpu, logits_tv, max_t);
        }
        collectives.all_reduce_max(max_t);

        // The sums of exponentials and the target logits, reduced in one call.
        let reduced = frame.take(2 * t);
        let (sums_t, target_logits_t) = reduced.split_at_mut(t);
        target_logits_t.fill(-0.0);
        for (shard, logits_tv) in local.clone().zip(logits_tv.chunks_exact(t * vocab)) {
            vocab_parallel::target_logits(logits_tv, columns(shard), targets, target_logits_t);
        }
        let spare = frame.take(t * reduction_tree::num_spare(local.len(), false));
        let trains = ctx.mode != Mode::Evaluate;
        reduction_tree::sum(
            cpu,
            0..local.len(),
            false,
            sums_t,
            spare,
            &mut |shard, sums_t, write| {
                debug_assert_eq!(write, Write::Set, "sums are not fused");
                let logits_tv = &mut logits_tv[shard * t * vocab..][..t * vocab];
                if trains {
                    vocab_parallel::exponentials(cpu, logits_tv, targets, max_t, sums_t);
                } else {
                    vocab_parallel::exponential_sums(cpu, logits_tv, targets, max_t, sums_t);
                }
            },
        );
        collectives.all_reduce(reduced);

        let (sums_t, target_logits_t) = reduced.split_at(t);
        if trains {
            for (shard, logits_tv) in local.zip(logits_tv.chunks_exact_mut(t * vocab)) {
                let (columns, num_targets) = (columns(shard), microbatch.num_targets);
                vocab_parallel::gradients(cpu, logits_tv, columns, targets, num_targets, sums_t);
            }
        }
        vocab_parallel::losses(targets, max_t, sums_t, target_logits_t, losses_t)
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
        BlockIo::StreamToLoss { input: self.norm_linear.width() }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let t = shape.rows();
        let kept = self.norm_linear.outputs_len(t) + self.norm_linear.stats_len(t) + t;
        SavedLen { kept, rebuilt: 0 }
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let t = shape.rows();
        let loss =
            t * (3 + reduction_tree::num_spare(self.norm_linear.tp_shards.num_local(), false));
        self.norm_linear.scratch_len(t).max(loss)
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        let forward = self.norm_linear.product.flops();
        Flops { forward, backward: 2 * forward }
    }

    fn collective_calls(&self, shape: MicrobatchShape, pass: Pass<'_>) -> Vec<CollectiveCall> {
        let t = shape.rows();
        let gather = self.norm_linear.gather_call(t).into_iter();
        let loss = [
            CollectiveCall::new(CollectiveKind::AllReduceMax, t),
            CollectiveCall::new(CollectiveKind::AllReduce, 2 * t),
        ];
        match pass {
            Pass::Forward if self.norm_linear.tp_shards.num == 1 => gather.collect(),
            Pass::Forward => gather.chain(loss).collect(),
            Pass::Recompute(_) => Vec::new(),
            Pass::Backward(trained) => {
                gather.chain(self.norm_linear.input_calls(t, trained)).collect()
            }
            Pass::BackwardInputs => self
                .norm_linear
                .input_calls(t, slice::from_ref(&self.norm_linear.norm.at))
                .collect(),
            Pass::BackwardWeights(_) => gather.collect(),
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
        let (cpu, microbatch) = (ctx.cpu, ctx.microbatch);
        let HeadSaved { logits_tv, stats, losses_t } = self.split(microbatch.shape.rows(), saved);
        self.norm_linear.forward(ctx, params, input_tc, logits_tv, stats);
        let (vocab, targets) = (self.norm_linear.product.num_outputs(), microbatch.targets);
        let loss = match ctx.mode {
            _ if self.norm_linear.tp_shards.num > 1 => {
                self.vocab_parallel_loss(ctx, logits_tv, losses_t)
            }
            Mode::Train { .. } => cross_entropy::forward_backward(
                cpu,
                logits_tv,
                vocab,
                targets,
                microbatch.num_targets,
                losses_t,
            ),
            Mode::Evaluate => cross_entropy::forward(cpu, logits_tv, vocab, targets, losses_t),
        };
        if let Mode::Train { loss_scale, .. } = ctx.mode
            && loss_scale != LossScale::ONE
        {
            convert::scale(cpu, logits_tv, loss_scale.factor(), Precision::F32);
        }
        loss
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
        let (cpu, num_rows) = (ctx.cpu, ctx.microbatch.shape.rows());
        let HeadSaved { logits_tv, stats, .. } = self.split(num_rows, saved);
        let read = NormLinearSaved { x_tc: input_tc, stats, num_rows };
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let (own, spare) = (grads.reborrow(), frame.nested());
        self.norm_linear.backward_weight(cpu, collectives, params, read, logits_tv, own, spare);
        d_stream_tc.fill(0.0);
        let norm_linear = &self.norm_linear;
        norm_linear.backward_input(
            cpu,
            collectives,
            params,
            read,
            logits_tv,
            d_stream_tc,
            grads,
            frame,
        );
    }

    /// The gradients of logits are saved; only the terms of the norm's gradients remain.
    fn deferred_len(&self, _shape: MicrobatchShape) -> usize {
        self.norm_linear.norm.at.len()
    }

    fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        deferred: &mut [f32],
    ) {
        let (cpu, num_rows) = (ctx.cpu, ctx.microbatch.shape.rows());
        let HeadSaved { logits_tv, stats, .. } = self.split(num_rows, saved);
        let read = NormLinearSaved { x_tc: input_tc, stats, num_rows };
        d_stream_tc.fill(0.0);
        let (norm_linear, collectives, frame) =
            (&self.norm_linear, &mut *ctx.collectives, ctx.scratch.frame());
        let (dy, dx) = (logits_tv, d_stream_tc);
        norm_linear.backward_input_only(cpu, collectives, params, read, dy, dx, deferred, frame);
    }

    fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        deferred: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let (cpu, num_rows) = (ctx.cpu, ctx.microbatch.shape.rows());
        let HeadSaved { logits_tv, stats, .. } = self.split(num_rows, saved);
        let read = NormLinearSaved { x_tc: input_tc, stats, num_rows };
        let (norm_linear, collectives, frame) =
            (&self.norm_linear, &mut *ctx.collectives, ctx.scratch.frame());
        let own = grads.reborrow();
        norm_linear.backward_weight(cpu, collectives, params, read, logits_tv, own, frame);
        norm_linear.norm.add_sums(cpu, deferred, grads);
    }

    fn decode_scratch_len(&self, _num_tokens: usize) -> usize {
        self.norm_linear.width() + self.norm_linear.norm.stats_len(1)
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: &[f32],
        input_tc: &[f32],
        output: &mut [f32],
        _cache: &mut [f32],
    ) {
        let NormLinear { norm, product, .. } = &self.norm_linear;
        let last_c = &input_tc[input_tc.len() - norm.width..];
        let mut frame = ctx.scratch.frame();
        let normed_c = frame.take(norm.width);
        let stats = frame.take(norm.stats_len(1));
        norm.forward(ctx.cpu, params, last_c, normed_c, stats);
        product.forward(ctx.cpu, params, normed_c, output);
    }
}

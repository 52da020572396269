//! Attention half of a layer: `y = x + attention(norm(x))`.
//!
//! The query, key and value projections of a shard of heads are contiguous in memory, so one
//! product computes all three; a row of `qkv` is h query heads, g key heads and g value heads of d
//! elements each (g < h is grouped-query attention). Shards of heads are stored one after another,
//! each with all rows: rotation and attention treat them as further sequences. RoPE rotates queries
//! and keys in place. The residual is added after the output product, not inside it: the product is
//! a sum over heads that other layouts split, and `x` must enter it once.
//!
//! Saved: `qkv` after rotation and the norm's statistics are kept; the output of attention and its
//! log-sum-exp can be recomputed from them.

use crate::block::{Context, Flops, MicrobatchShape, SavedLen};
use crate::collectives::SingleRank;
use crate::deferred_weight_grad::DeferredWeightGrad;
use crate::dropout::{Dropout, RowMask, Site};
use crate::grads::Grads;
use crate::norm_linear::{NormLinear, NormLinearSaved};
use crate::row_parallel::RowParallel;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::attention::{self, Heads, Rows, Shape};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::rope::{self, Rotation};
use lockstep_tensor::{Cpu, reduce};
use std::sync::Arc;

/// Attention with its normalisation and projections.
pub(crate) struct Attention {
    /// Query heads of one shard.
    pub(crate) heads: usize,
    /// Key and value heads of one shard.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Normalisation and projection to queries, keys and values.
    pub(crate) norm_linear: NormLinear,
    /// RoPE table, where the family has one.
    pub(crate) rope: Option<Arc<rope::Table>>,
    pub(crate) out: RowParallel,
    pub(crate) dropout: Dropout,
}

/// Saved values of forward.
pub(crate) struct AttentionSaved<'a> {
    qkv: &'a mut [f32],
    stats: &'a mut [f32],
    out_thd: &'a mut [f32],
    lse_bht: &'a mut [f32],
}

impl AttentionSaved<'_> {
    fn norm_linear<'b>(&'b self, x_tc: &'b [f32], num_rows: usize) -> NormLinearSaved<'b> {
        NormLinearSaved { x_tc, stats: self.stats, num_rows }
    }
}

impl Attention {
    pub(crate) fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let t = shape.rows();
        SavedLen {
            kept: self.norm_linear.outputs_len(t) + self.norm_linear.stats_len(t),
            rebuilt: t * self.out.num_local_inputs()
                + t * self.heads * self.tp_shards().num_local(),
        }
    }

    pub(crate) fn split<'a>(
        &self,
        shape: MicrobatchShape,
        kept: &mut Frame<'a>,
        rebuilt: &mut Frame<'a>,
    ) -> AttentionSaved<'a> {
        let t = shape.rows();
        AttentionSaved {
            qkv: kept.take(self.norm_linear.outputs_len(t)),
            stats: kept.take(self.norm_linear.stats_len(t)),
            out_thd: rebuilt.take(t * self.out.num_local_inputs()),
            lse_bht: rebuilt.take(t * self.heads * self.tp_shards().num_local()),
        }
    }

    pub(crate) fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let (t, c) = (shape.rows(), self.norm_linear.width());
        let own = if self.dropout.is_on() || self.tp_shards().sequence { t * c } else { 0 };
        let attention_gradient =
            t * self.out.num_local_inputs() + self.attend_scratch_len(self.shape(shape));
        let ends = self.norm_linear.scratch_len(t).max(RowSums::scratch_len(self.tp_shards(), c));
        let backward = own + self.norm_linear.outputs_len(t) + attention_gradient.max(ends);
        backward.max(self.out.scratch_len(t)).max(t * c)
    }

    pub(crate) fn flops_per_token(&self, num_tokens: usize) -> Flops {
        // A token attends to half of the sequence on average, itself included; a pair of tokens
        // costs one multiply-add per element for its score and one for its term of the output.
        let width = self.heads * self.head_dim * self.tp_shards().num;
        let pairs = 2 * (num_tokens as u64 + 1) * width as u64;
        let forward = self.norm_linear.product.flops() + self.out.flops() + pairs;
        Flops { forward, backward: 2 * forward }
    }

    pub(crate) fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        y_tc: &mut [f32],
        saved: &mut AttentionSaved<'_>,
    ) {
        let (cpu, tokens) = (ctx.cpu, ctx.microbatch.shape.tokens);
        self.norm_linear.forward(ctx, params, x_tc, saved.qkv, saved.stats);
        self.rotate(cpu, saved.qkv, (tokens, 0), false);
        self.attend(ctx, saved);
        let frame = ctx.scratch.frame();
        self.out.forward(cpu, ctx.collectives, params, saved.out_thd, y_tc, frame);
        if let Some(mask) = self.mask(ctx) {
            mask.apply(cpu, y_tc);
        }
        reduce::add_assign(cpu, y_tc, x_tc);
    }

    /// Computes attention from the kept values.
    pub(crate) fn attend(&self, ctx: &mut Context<'_>, saved: &mut AttentionSaved<'_>) {
        let shape = self.shape(ctx.microbatch.shape);
        let mask = self.attention_mask(ctx);
        let scratch = ctx.scratch.frame().take(self.attend_scratch_len(shape));
        let (q, k, v) = self.rows(saved.qkv);
        attention::forward_in(
            ctx.cpu,
            self.precision(),
            shape,
            q,
            k,
            v,
            0,
            mask.as_ref(),
            saved.out_thd,
            saved.lse_bht,
            scratch,
        );
    }

    /// `d_stream_tc`: in, the gradient of `y_tc`; out, that of `x_tc`.
    pub(crate) fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        x_tc: &[f32],
        saved: &AttentionSaved<'_>,
        d_stream_tc: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let (cpu, t) = (ctx.cpu, ctx.microbatch.shape.rows());
        let masks = (self.mask(ctx), self.attention_mask(ctx));
        let (microbatch, collectives, mut frame) =
            (ctx.microbatch.shape, &mut *ctx.collectives, ctx.scratch.frame());
        let dz_tc = self.out.output_gradient(cpu, collectives, d_stream_tc, masks.0, t, &mut frame);
        let (x, spare) = (&saved.out_thd, frame.nested());
        self.out.backward_weight(cpu, collectives, x, dz_tc, grads.reborrow(), spare);
        let d_qkv = frame.take(self.norm_linear.outputs_len(t));
        self.attention_gradient(
            cpu,
            params,
            microbatch,
            saved,
            masks.1,
            dz_tc,
            d_qkv,
            frame.nested(),
        );
        let (read, norm_linear) = (saved.norm_linear(x_tc, t), &self.norm_linear);
        let (own, spare) = (grads.reborrow(), frame.nested());
        norm_linear.backward_weight(cpu, collectives, params, read, d_qkv, own, spare);
        norm_linear.backward_input(
            cpu,
            collectives,
            params,
            read,
            d_qkv,
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
        saved: &AttentionSaved<'_>,
        d_stream_tc: &mut [f32],
        DeferredWeightGrad { dz_tc, dy: d_qkv, sums }: &mut DeferredWeightGrad<'_>,
    ) {
        let (cpu, t) = (ctx.cpu, ctx.microbatch.shape.rows());
        let masks = (self.mask(ctx), self.attention_mask(ctx));
        let (microbatch, collectives, mut frame) =
            (ctx.microbatch.shape, &mut *ctx.collectives, ctx.scratch.frame());
        self.out.fill_output_gradient(cpu, collectives, d_stream_tc, masks.0, dz_tc);
        self.attention_gradient(
            cpu,
            params,
            microbatch,
            saved,
            masks.1,
            dz_tc,
            d_qkv,
            frame.nested(),
        );
        let (read, norm_linear) = (saved.norm_linear(x_tc, t), &self.norm_linear);
        norm_linear.backward_input_only(
            cpu,
            collectives,
            params,
            read,
            d_qkv,
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
        saved: &AttentionSaved<'_>,
        DeferredWeightGrad { dz_tc, dy: d_qkv, sums }: &DeferredWeightGrad<'_>,
        mut grads: Grads<'_>,
    ) {
        let (cpu, t) = (ctx.cpu, ctx.microbatch.shape.rows());
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let (x, spare) = (&saved.out_thd, frame.nested());
        self.out.backward_weight(cpu, collectives, x, dz_tc, grads.reborrow(), spare);
        let (read, own) = (saved.norm_linear(x_tc, t), grads.reborrow());
        self.norm_linear.backward_weight(cpu, collectives, params, read, d_qkv, own, frame);
        self.norm_linear.norm.add_sums(cpu, sums, grads);
    }

    /// Computes the gradient of queries, keys and values from that of the output.
    fn attention_gradient(
        &self,
        cpu: &Cpu,
        params: &[f32],
        microbatch: MicrobatchShape,
        saved: &AttentionSaved<'_>,
        mask: Option<attention::Dropout>,
        dz_tc: &[f32],
        d_qkv: &mut [f32],
        mut frame: Frame<'_>,
    ) {
        let d_out_thd = frame.take(microbatch.rows() * self.out.num_local_inputs());
        self.out.backward_input(cpu, params, dz_tc, d_out_thd);
        let shape = self.shape(microbatch);
        let scratch = frame.take(self.attend_scratch_len(shape));
        let (q, k, v) = self.rows(saved.qkv);
        attention::backward_in(
            cpu,
            self.precision(),
            shape,
            q,
            k,
            v,
            saved.out_thd,
            saved.lse_bht,
            d_out_thd,
            mask.as_ref(),
            d_qkv,
            scratch,
        );
        self.rotate(cpu, d_qkv, (microbatch.tokens, 0), true);
    }

    /// Dropout mask of the output.
    fn mask(&self, ctx: &Context<'_>) -> Option<RowMask> {
        let first_row = self.tp_shards().rows(ctx.microbatch.shape.rows()).start;
        self.dropout.mask(ctx, Site::AttentionOutput, first_row, self.norm_linear.width())
    }

    /// Dropout of the attention probabilities.
    fn attention_mask(&self, ctx: &Context<'_>) -> Option<attention::Dropout> {
        self.dropout.attention_mask(ctx, self.all_heads(ctx.microbatch.shape))
    }

    /// Precision of products, also inside attention.
    fn precision(&self) -> Precision {
        self.out.precision()
    }

    /// Scratch memory of attention itself.
    fn attend_scratch_len(&self, shape: Shape) -> usize {
        attention::scratch_len_in(self.precision(), shape)
    }

    /// Shards of the model.
    pub(crate) const fn tp_shards(&self) -> &TensorShards {
        &self.norm_linear.tp_shards
    }

    /// One key row and one value row per position.
    pub(crate) fn cache_len(&self, num_positions: usize) -> usize {
        num_positions * 2 * self.kv_heads * self.head_dim * self.tp_shards().num_local()
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let microbatch = MicrobatchShape { sequences: 1, tokens: num_tokens };
        let SavedLen { kept, rebuilt } = self.saved_len(microbatch);
        let normed = num_tokens * self.norm_linear.width();
        let spare = self.out.scratch_len(num_tokens);
        kept + rebuilt + normed.max(spare).max(self.attend_scratch_len(self.shape(microbatch)))
    }

    /// Forward for `num_tokens` new tokens of one sequence, the first of them at position `first`,
    /// over the cached past.
    pub(crate) fn decode(
        &self,
        cpu: &Cpu,
        params: &[f32],
        (num_tokens, first): (usize, usize),
        x_tc: &[f32],
        y_tc: &mut [f32],
        cache: &mut [f32],
        mut frame: Frame<'_>,
    ) {
        let microbatch = MicrobatchShape { sequences: 1, tokens: num_tokens };
        let mut rebuilt = Frame::over(frame.take(self.saved_len(microbatch).rebuilt));
        let AttentionSaved { qkv, stats, out_thd, lse_bht } =
            self.split(microbatch, &mut frame, &mut rebuilt);
        let normed_tc = frame.nested().take(x_tc.len());
        self.norm_linear.norm.forward(cpu, params, x_tc, normed_tc, stats);
        self.norm_linear.product.forward(cpu, params, normed_tc, qkv);
        self.rotate(cpu, qkv, (num_tokens, first), false);

        let num_shards = self.tp_shards().num_local();
        let shape = Shape { sequences: 1, ..self.shape(microbatch) };
        let (width, kv_len) =
            (self.norm_linear.product.num_outputs(), 2 * self.kv_heads * self.head_dim);
        let qkv = qkv.chunks_exact(num_tokens * width);
        let outs = out_thd.chunks_exact_mut(out_thd.len() / num_shards);
        let lses = lse_bht.chunks_exact_mut(lse_bht.len() / num_shards);
        let caches = cache.chunks_exact_mut(cache.len() / num_shards);
        for (((qkv, out), lse), cache) in qkv.zip(outs).zip(lses).zip(caches) {
            let new = cache[first * kv_len..].chunks_exact_mut(kv_len);
            for (row, cached) in qkv.chunks_exact(width).zip(new) {
                cached.copy_from_slice(&row[self.heads * self.head_dim..]);
            }
            let q = Rows { data: qkv, stride: width };
            let k = Rows { data: cache, stride: kv_len };
            let v = Rows { data: &cache[kv_len / 2..], stride: kv_len };
            let scratch = frame.nested().take(self.attend_scratch_len(shape));
            let precision = self.precision();
            attention::forward_in(cpu, precision, shape, q, k, v, first, None, out, lse, scratch);
        }
        self.out.forward(cpu, &mut SingleRank, params, out_thd, y_tc, frame);
        reduce::add_assign(cpu, y_tc, x_tc);
    }

    /// Rotates queries and keys. `positions` is (tokens per sequence, position of each sequence's
    /// first token).
    fn rotate(&self, cpu: &Cpu, qkv: &mut [f32], positions: (usize, usize), inverse: bool) {
        let Some(table) = &self.rope else { return };
        let rotation = Rotation {
            row_stride: self.norm_linear.product.num_outputs(),
            num_heads: self.heads + self.kv_heads,
            tokens_per_sequence: positions.0,
            first_position: positions.1,
            inverse,
        };
        rope::rotate(cpu, table, qkv, &rotation);
    }

    /// Queries, keys and values inside the rows of `qkv`.
    fn rows<'a>(&self, qkv: &'a [f32]) -> (Rows<'a>, Rows<'a>, Rows<'a>) {
        let (q_len, kv_len) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let at = |start: usize| Rows {
            data: &qkv[start..],
            stride: self.norm_linear.product.num_outputs(),
        };
        (at(0), at(q_len), at(q_len + kv_len))
    }

    /// Shape of the attention call: every local shard adds sequences.
    fn shape(&self, microbatch: MicrobatchShape) -> Shape {
        Shape {
            sequences: microbatch.sequences * self.tp_shards().num_local(),
            tokens: microbatch.tokens,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    /// Heads of the model in that call.
    fn all_heads(&self, microbatch: MicrobatchShape) -> Heads {
        Heads {
            num: self.heads * self.tp_shards().num,
            first: self.heads * self.tp_shards().local.start,
            sequences: microbatch.sequences,
        }
    }
}

//! The first half of a layer: `y = x + attention(norm(x))`.
//!
//! Query, key and value projections lie one after the other in memory, so one product makes all
//! three; a row of `qkv` is h query heads, g key heads, g value heads of d numbers each (g < h is
//! grouped-query attention). Rotary positions turn queries and keys in place. The residual is
//! added after the output product, not inside it: the product is a sum over heads that other
//! layouts split, and `x` must enter it once.
//!
//! Saved: `qkv` after rotation and the norm's statistics are kept; the output of attention and the
//! logarithms of its denominators can be rebuilt from them.

use crate::block::{Context, Flops, LaneShape, SavedLen};
use crate::dropout::{Dropout, Site};
use crate::grads::Grads;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::scratch::Frame;
use lockstep_tensor::attention::{self, Rows, Shape};
use lockstep_tensor::rope::{self, Rotation};
use lockstep_tensor::{Cpu, reduce};
use std::sync::Arc;

/// See the module's text.
pub(crate) struct Attention {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) norm: Norm,
    pub(crate) qkv: Linear,
    /// Rotary positions, where the family has them.
    pub(crate) rope: Option<Arc<rope::Table>>,
    pub(crate) out: Linear,
    pub(crate) dropout: Dropout,
}

/// What forward saves.
pub(crate) struct AttentionSaved<'a> {
    qkv: &'a mut [f32],
    stats: &'a mut [f32],
    out_thd: &'a mut [f32],
    lse_bht: &'a mut [f32],
}

impl Attention {
    pub(crate) fn saved_len(&self, shape: LaneShape) -> SavedLen {
        let t = shape.rows();
        SavedLen {
            kept: t * self.qkv.num_outputs + self.norm.stats_len(t),
            rebuilt: t * self.out.num_inputs + t * self.heads,
        }
    }

    pub(crate) fn split<'a>(
        &self,
        shape: LaneShape,
        kept: &mut Frame<'a>,
        rebuilt: &mut Frame<'a>,
    ) -> AttentionSaved<'a> {
        let t = shape.rows();
        AttentionSaved {
            qkv: kept.take(t * self.qkv.num_outputs),
            stats: kept.take(self.norm.stats_len(t)),
            out_thd: rebuilt.take(t * self.out.num_inputs),
            lse_bht: rebuilt.take(t * self.heads),
        }
    }

    pub(crate) fn scratch_len(&self, shape: LaneShape) -> usize {
        let t = shape.rows();
        let (c, qkv) = (self.norm.width, self.qkv.num_outputs);
        let masked = if self.dropout.is_on() { t * c } else { 0 };
        let backward = t * (self.out.num_inputs + qkv + 2 * c) + masked;
        backward + attention::scratch_len(self.shape(shape))
    }

    pub(crate) fn flops_per_token(&self, num_tokens: usize) -> Flops {
        // A token looks at half of the sequence on average, itself included; a pair of tokens costs
        // one multiply-add per element for its score and one for its share of the output.
        let pairs = 2 * (num_tokens as u64 + 1) * (self.heads * self.head_dim) as u64;
        let forward = self.qkv.flops() + self.out.flops() + pairs;
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
        let mut frame = ctx.scratch.frame();
        let tokens = ctx.lane.shape.tokens;
        self.project(ctx.cpu, params, x_tc, (tokens, 0), &mut frame, saved.qkv, saved.stats);
        self.attend(ctx, saved);
        self.out.forward(ctx.cpu, params, saved.out_thd, y_tc);
        if let Some(mask) = self.dropout.mask(ctx, Site::AttentionOutput, self.norm.width) {
            mask.apply(ctx.cpu, y_tc);
        }
        reduce::add_assign(ctx.cpu, y_tc, x_tc);
    }

    /// Rebuilds what depends on the kept values only.
    pub(crate) fn attend(&self, ctx: &mut Context<'_>, saved: &mut AttentionSaved<'_>) {
        let shape = self.shape(ctx.lane.shape);
        let mask = self.dropout.attention_mask(ctx);
        let scratch = ctx.scratch.frame().take(attention::scratch_len(shape));
        let (q, k, v) = self.rows(saved.qkv);
        attention::forward(
            ctx.cpu,
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
        let (cpu, lane) = (ctx.cpu, ctx.lane.shape);
        let t = lane.rows();
        let mask = self.dropout.mask(ctx, Site::AttentionOutput, self.norm.width);
        let attention_mask = self.dropout.attention_mask(ctx);
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
        self.out.backward_weight(cpu, saved.out_thd, dz_tc, grads.reborrow());
        let d_out_thd = frame.take(t * self.out.num_inputs);
        self.out.backward_input(cpu, params, dz_tc, d_out_thd);

        let d_qkv = frame.take(t * self.qkv.num_outputs);
        let shape = self.shape(lane);
        let kernel_scratch = frame.take(attention::scratch_len(shape));
        let (q, k, v) = self.rows(saved.qkv);
        attention::backward(
            cpu,
            shape,
            q,
            k,
            v,
            saved.out_thd,
            saved.lse_bht,
            d_out_thd,
            attention_mask.as_ref(),
            d_qkv,
            kernel_scratch,
        );
        self.rotate(cpu, d_qkv, (lane.tokens, 0), true);

        let normed_tc = frame.take(x_tc.len());
        self.norm.normalize(cpu, params, x_tc, saved.stats, normed_tc);
        self.qkv.backward_weight(cpu, normed_tc, d_qkv, grads.reborrow());
        let d_normed_tc = frame.take(x_tc.len());
        self.qkv.backward_input(cpu, params, d_qkv, d_normed_tc);
        self.norm.backward(cpu, params, x_tc, saved.stats, d_normed_tc, d_stream_tc, grads);
    }

    /// A key and a value row per position.
    pub(crate) const fn cache_len(&self, num_positions: usize) -> usize {
        num_positions * 2 * self.kv_heads * self.head_dim
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let lane = LaneShape { sequences: 1, tokens: num_tokens };
        let SavedLen { kept, rebuilt } = self.saved_len(lane);
        let normed = num_tokens * self.norm.width;
        kept + rebuilt + normed.max(attention::scratch_len(self.shape(lane)))
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
        let qkv = frame.take(num_tokens * self.qkv.num_outputs);
        let stats = frame.take(self.norm.stats_len(num_tokens));
        let out_thd = frame.take(num_tokens * self.out.num_inputs);
        let lse_ht = frame.take(num_tokens * self.heads);

        self.project(cpu, params, x_tc, (num_tokens, first), &mut frame.nested(), qkv, stats);
        let kv_len = 2 * self.kv_heads * self.head_dim;
        let rows = qkv.chunks_exact(self.qkv.num_outputs);
        for (row, cached) in rows.zip(cache[first * kv_len..].chunks_exact_mut(kv_len)) {
            cached.copy_from_slice(&row[self.heads * self.head_dim..]);
        }
        let shape = self.shape(LaneShape { sequences: 1, tokens: num_tokens });
        let q = Rows { data: qkv, stride: self.qkv.num_outputs };
        let k = Rows { data: cache, stride: kv_len };
        let v = Rows { data: &cache[kv_len / 2..], stride: kv_len };
        let scratch = frame.take(attention::scratch_len(shape));
        attention::forward(cpu, shape, q, k, v, first, None, out_thd, lse_ht, scratch);
        self.out.forward(cpu, params, out_thd, y_tc);
        reduce::add_assign(cpu, y_tc, x_tc);
    }

    /// Normalises, projects to queries, keys and values, and turns the first two.
    /// `positions` is (tokens per sequence, position of each sequence's first token).
    fn project(
        &self,
        cpu: &Cpu,
        params: &[f32],
        x_tc: &[f32],
        positions: (usize, usize),
        frame: &mut Frame<'_>,
        qkv: &mut [f32],
        stats: &mut [f32],
    ) {
        let normed_tc = frame.take(x_tc.len());
        self.norm.forward(cpu, params, x_tc, normed_tc, stats);
        self.qkv.forward(cpu, params, normed_tc, qkv);
        self.rotate(cpu, qkv, positions, false);
    }

    fn rotate(&self, cpu: &Cpu, qkv: &mut [f32], positions: (usize, usize), inverse: bool) {
        let Some(table) = &self.rope else { return };
        let rotation = Rotation {
            row_stride: self.qkv.num_outputs,
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
        let at = |start: usize| Rows { data: &qkv[start..], stride: self.qkv.num_outputs };
        (at(0), at(q_len), at(q_len + kv_len))
    }

    const fn shape(&self, lane: LaneShape) -> Shape {
        Shape {
            sequences: lane.sequences,
            tokens: lane.tokens,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }
}

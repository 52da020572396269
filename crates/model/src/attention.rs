//! Attention half of a layer: `y = x + attention(norm(x))`.
//!
//! The query, key and value projections of a shard of heads are contiguous in memory, so one
//! product computes all three; a row of `qkv` is h query heads, g key heads and g value heads of d
//! elements each (g < h is grouped-query attention). A model may normalise queries and keys
//! ([`crate::head_norms`]). Shards of heads are stored one after another,
//! each with all rows: rotation and attention treat them as further sequences. RoPE rotates queries
//! and keys in place, by their positions in the sequence: scores depend on distances alone, so
//! packed documents need no positions of their own. The residual is added to the whole sum of the
//! output product: over several shards of heads, which other layouts split, `x` must enter it once.
//!
//! Saved: `qkv` after rotation and the norm's statistics are kept; the output of attention and its
//! log-sum-exp, and normalised rows, can be recomputed from them.

use crate::block::{Context, Flops, Microbatch, MicrobatchShape, SavedLen};
use crate::collectives::TensorCollectives;
use crate::deferred_weight_grad::DeferredWeightGrad;
use crate::dropout::{AdapterMasks, Dropout, RowMask, Site};
use crate::formats::Formats;
use crate::grads::Grads;
use crate::head_norms::HeadNorms;
use crate::lora::RowAdapter;
use crate::norm_linear::{NormLinear, NormLinearSaved};
use crate::rope::RopeAngles;
use crate::row_parallel::{PostNormSaved, RowParallel};
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::stream_gradient::StreamGradient;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::attention::{self, Heads, Options, Shape};
use lockstep_tensor::device::open::{accelerator_attention_bytes, accelerator_attention_len};
use lockstep_tensor::device::{Device, Dtype, HeadRows, OutputGradient, Result, View, ViewMut};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::rope::Rotation;
use std::sync::Arc;

mod decode;

/// Attention with its normalisation and projections.
pub(crate) struct Attention {
    /// Query heads of one shard.
    pub(crate) heads: usize,
    /// Key and value heads of one shard.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Normalisation and projection to queries, keys and values.
    pub(crate) norm_linear: NormLinear,
    /// Normalisation of queries and keys, where the model has it.
    pub(crate) head_norms: Option<HeadNorms>,
    /// RoPE angles, where the family has them.
    pub(crate) rope: Option<Arc<RopeAngles>>,
    pub(crate) scores: Scores,
    pub(crate) out: RowParallel,
    pub(crate) dropout: Dropout,
}

/// Changes of a family's scores and the keys that it lets a query see, as
/// [`lockstep_tensor::attention::Options`] describes them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scores {
    pub(crate) scale: Option<f32>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Option<usize>,
    pub(crate) has_alibi: bool,
}

/// Saved values of forward.
pub(crate) struct AttentionSaved<'a> {
    qkv: ViewMut<'a>,
    stats: ViewMut<'a>,
    /// Queries and keys before their normalisation; empty without one.
    raw_heads: ViewMut<'a>,
    head_stats: ViewMut<'a>,
    out_thd: ViewMut<'a>,
    lse_bht: ViewMut<'a>,
    normed_tc: ViewMut<'a>,
    post_norm: PostNormSaved<'a>,
}

impl AttentionSaved<'_> {
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

impl Attention {
    pub(crate) fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let t = shape.rows();
        SavedLen {
            kept: self.norm_linear.outputs_len(t)
                + self.norm_linear.stats_len(t)
                + self.formats().floats(self.num_raw_heads(t).0)
                + self.num_raw_heads(t).1
                + self.out.saved_len(t),
            rebuilt: self.formats().floats(t * self.out.num_local_inputs())
                + t * self.heads * self.tp_shards().num_local()
                + self.norm_linear.normed_len(t),
        }
    }

    pub(crate) fn split<'a>(
        &self,
        shape: MicrobatchShape,
        kept: &mut Frame<'a>,
        rebuilt: &mut Frame<'a>,
    ) -> AttentionSaved<'a> {
        let (t, dtype) = (shape.rows(), self.formats().activations);
        AttentionSaved {
            qkv: kept.take_as(dtype, self.norm_linear.num_outputs(t)),
            stats: kept.take(self.norm_linear.stats_len(t)),
            raw_heads: kept.take_as(dtype, self.num_raw_heads(t).0),
            head_stats: kept.take(self.num_raw_heads(t).1),
            post_norm: self.out.split(t, kept),
            out_thd: rebuilt.take_as(dtype, t * self.out.num_local_inputs()),
            lse_bht: rebuilt.take(t * self.heads * self.tp_shards().num_local()),
            normed_tc: rebuilt.take_as(dtype, self.norm_linear.num_normed(t)),
        }
    }

    pub(crate) fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let (t, c, formats) = (shape.rows(), self.norm_linear.width(), self.formats());
        let rows = formats.floats(t * c);
        let own = if self.dropout.is_on() || self.out.copies_gradient() { rows } else { 0 };
        let attention_gradient = formats.floats(t * self.out.num_local_inputs())
            + self.attend_scratch_len(self.shape(shape)).max(self.out.adapter_scratch_len(t));
        let ends = self.norm_linear.scratch_len(t).max(RowSums::scratch_len(self.tp_shards(), c));
        let num_rows = t * self.tp_shards().num_local();
        let heads = self.head_norms.as_ref().map_or(0, |norms| {
            norms.scratch_len(num_rows, |len| formats.floats(len), self.tp_shards())
        });
        let inner = attention_gradient.max(ends).max(heads);
        let inner = self.norm_linear.outputs_len(t) + inner;
        let backward = own + inner.max(self.out.gradient_scratch_len(t));
        backward.max(self.out.scratch_len(t)).max(rows)
    }

    pub(crate) fn flops_per_token(&self, num_tokens: usize, is_frozen: bool) -> Flops {
        // A token attends to half of the sequence on average, itself included; a pair of tokens
        // costs one multiply-add per element for its score and one for its term of the output.
        let width = (self.heads * self.head_dim * self.tp_shards().num) as u64;
        let (tokens, window) = (num_tokens as u64, self.scores.window.unwrap_or(num_tokens) as u64);
        let pairs = match tokens.saturating_sub(window) {
            0 => 2 * (tokens + 1) * width,
            later => 4 * width * (window * (window + 1) / 2 + later * window) / tokens,
        };
        let products = self.norm_linear.product.flops() + self.out.flops();
        let adapter = self.out.adapter.as_ref().map_or(0, RowAdapter::flops);
        let adapters = self.norm_linear.adapters.flops() + adapter;
        Flops::of_half(products, pairs + adapters, is_frozen)
    }

    pub(crate) fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        mut y_tc: ViewMut<'_>,
        saved: &mut AttentionSaved<'_>,
    ) -> Result<()> {
        let (device, tokens) = (ctx.device, ctx.microbatch.shape.tokens);
        let masks = self.dropout.adapter_masks(ctx);
        let (qkv, stats) = (saved.qkv.reborrow(), saved.stats.reborrow());
        let normed_tc = saved.normed_tc.reborrow();
        self.norm_linear.forward(ctx, params, x_tc, qkv, stats, normed_tc, masks)?;
        self.normalize_heads(device, params, saved)?;
        self.rotate(device, saved.qkv.reborrow(), (tokens, 0), false)?;
        self.attend(ctx, saved)?;
        let (out_thd, y) = (saved.out_thd.as_view(), y_tc.reborrow());
        let mask = self.mask(ctx);
        let (residual, frame) = (mask.is_none().then_some(x_tc), ctx.scratch.frame());
        let (saved, collectives) = (saved.post_norm.reborrow(), &mut *ctx.collectives);
        let out = &self.out;
        out.forward(device, collectives, params, out_thd, residual, y, saved, masks, frame)?;
        match mask {
            Some(mask) => mask.add_masked(device, y_tc, x_tc),
            None => Ok(()),
        }
    }

    /// Recomputes from the kept values what [`SavedLen::rebuilt`] counts.
    pub(crate) fn rebuild(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &mut AttentionSaved<'_>,
    ) -> Result<()> {
        let (stats, normed_tc) = (saved.stats.as_view(), saved.normed_tc.reborrow());
        self.norm_linear.renormalize(ctx.device, params, x_tc, stats, normed_tc)?;
        self.attend(ctx, saved)
    }

    /// Computes attention from the kept values.
    fn attend(&self, ctx: &mut Context<'_>, saved: &mut AttentionSaved<'_>) -> Result<()> {
        let shape = self.shape(ctx.microbatch.shape);
        let mask = self.attention_mask(ctx);
        let scratch = ctx.scratch.frame().take(self.attend_scratch_len(shape));
        ctx.device.attention_forward(
            self.precision(),
            shape,
            self.rows(saved.qkv.as_view()),
            0,
            &self.options_of(ctx.microbatch, mask.as_ref()),
            saved.out_thd.reborrow(),
            saved.lse_bht.reborrow(),
            scratch,
        )
    }

    /// `d_stream`: in, the gradient of `y_tc`; out, that of `x_tc`.
    pub(crate) fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &AttentionSaved<'_>,
        StreamGradient { output: d_y_tc, sum: d_stream_tc }: StreamGradient<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (device, t) = (ctx.device, ctx.microbatch.shape.rows());
        let masks = (self.mask(ctx), self.attention_mask(ctx));
        let adapter_masks = self.dropout.adapter_masks(ctx);
        let (microbatch, collectives, mut frame) =
            (ctx.microbatch, &mut *ctx.collectives, ctx.scratch.frame());
        let d_y = d_y_tc.unwrap_or(d_stream_tc.as_view());
        let (of_stream, post_norm, own) = ((d_y, masks.0), &saved.post_norm, grads.reborrow());
        let rest = &mut frame;
        let dz_tc = self.out.output_gradient(
            device,
            collectives,
            params,
            of_stream,
            t,
            post_norm,
            own,
            rest,
        )?;
        let (x, spare) = ((saved.out_thd.as_view(), None), frame.nested());
        self.out.backward_bias(device, collectives, dz_tc, grads.reborrow(), spare)?;
        let (both, own, spare) = ((x.0, dz_tc), grads.reborrow(), frame.nested());
        self.out.backward_adapter(device, collectives, params, both, adapter_masks, own, spare)?;
        let dtype = self.formats().activations;
        let mut d_qkv = frame.take_as(dtype, self.norm_linear.num_outputs(t));
        let product = &mut |mut d_out_thd: ViewMut<'_>, spare: Frame<'_>| {
            let (dx, own) = (d_out_thd.reborrow(), grads.reborrow());
            self.out.backward(device, params, x, dz_tc, dx, own)?;
            let dx = d_out_thd;
            self.out.backward_adapter_input(device, params, dz_tc, dx, adapter_masks, spare)
        };
        let (dy, spare) = (d_qkv.reborrow(), frame.nested());
        self.attention_gradient(device, product, microbatch, saved, masks.1, dy, spare)?;
        let (dy, own, spare) = (d_qkv.reborrow(), grads.reborrow(), frame.nested());
        self.heads_gradient(device, collectives, params, saved, dy, own, spare)?;
        self.norm_linear.backward(
            device,
            collectives,
            params,
            saved.norm_linear(x_tc, t, adapter_masks),
            OutputGradient::Stored(d_qkv.into_view()),
            d_stream_tc,
            grads,
            frame,
        )
    }

    /// Computes the gradient of `x_tc` only, and stores the state for the weight gradients.
    pub(crate) fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        x_tc: View<'_>,
        saved: &AttentionSaved<'_>,
        StreamGradient { output: d_y_tc, sum: d_stream_tc }: StreamGradient<'_>,
        deferred: &mut DeferredWeightGrad<'_>,
    ) -> Result<()> {
        let DeferredWeightGrad { dz_tc, dy: d_qkv, sums, head_sums, post_sums } = deferred;
        let (device, t) = (ctx.device, ctx.microbatch.shape.rows());
        let masks = (self.mask(ctx), self.attention_mask(ctx));
        let adapter_masks = self.dropout.adapter_masks(ctx);
        let (microbatch, collectives, mut frame) =
            (ctx.microbatch, &mut *ctx.collectives, ctx.scratch.frame());
        let d_y = d_y_tc.unwrap_or(d_stream_tc.as_view());
        let (of_stream, dz) = ((d_y, masks.0), dz_tc.reborrow());
        let (post_norm, sums_of_post) = (&saved.post_norm, post_sums.reborrow());
        self.out.fill_output_gradient_only(
            device,
            collectives,
            params,
            of_stream,
            post_norm,
            sums_of_post,
            dz,
            frame.nested(),
        )?;
        let dz_tc = dz_tc.as_view();
        let product = &mut |mut d_out_thd: ViewMut<'_>, spare: Frame<'_>| {
            self.out.backward_input(device, params, dz_tc, d_out_thd.reborrow())?;
            let dx = d_out_thd;
            self.out.backward_adapter_input(device, params, dz_tc, dx, adapter_masks, spare)
        };
        let (dy, spare) = (d_qkv.reborrow(), frame.nested());
        self.attention_gradient(device, product, microbatch, saved, masks.1, dy, spare)?;
        if let Some(norms) = &self.head_norms {
            // Adding to minus zero changes no bit, not even the sign of a zero.
            device.fill(head_sums.reborrow(), -0.0)?;
            let (dy, own, spare) = (d_qkv.reborrow(), [norms.at()], frame.nested());
            let own = Grads::new(head_sums.reborrow(), &own);
            self.heads_gradient(device, collectives, params, saved, dy, own, spare)?;
        }
        let read = saved.norm_linear(x_tc, t, adapter_masks);
        let norm_linear = &self.norm_linear;
        norm_linear.backward_input_only(
            device,
            collectives,
            params,
            read,
            d_qkv.as_view(),
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
        saved: &AttentionSaved<'_>,
        DeferredWeightGrad { dz_tc, dy: d_qkv, sums, head_sums, post_sums }: &DeferredWeightGrad<
            '_,
        >,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (device, t) = (ctx.device, ctx.microbatch.shape.rows());
        let masks = self.dropout.adapter_masks(ctx);
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let (x, dz_tc, spare) = (saved.out_thd.as_view(), dz_tc.as_view(), frame.nested());
        self.out.backward_weight(device, collectives, x, dz_tc, grads.reborrow(), spare)?;
        let (both, own, spare) = ((x, dz_tc), grads.reborrow(), frame.nested());
        self.out.backward_adapter(device, collectives, params, both, masks, own, spare)?;
        let read = saved.norm_linear(x_tc, t, masks);
        let (dy, own) = (d_qkv.as_view(), grads.reborrow());
        self.norm_linear.backward_weight(device, collectives, params, read, dy, own, frame)?;
        if let Some(norms) = &self.head_norms {
            let targets = grads.of_two([&norms.query.at, &norms.key.at]);
            norms.add_sums(device, head_sums.as_view(), targets)?;
        }
        if let Some(norm) = &self.out.post_norm {
            norm.add_sums(device, post_sums.as_view(), grads.reborrow())?;
        }
        self.norm_linear.norm.add_sums(device, sums.as_view(), grads)
    }

    /// Computes the gradient of queries, keys and values; `product` sets that of attention's
    /// output.
    fn attention_gradient(
        &self,
        device: &dyn Device,
        product: &mut dyn FnMut(ViewMut<'_>, Frame<'_>) -> Result<()>,
        microbatch: &Microbatch<'_>,
        saved: &AttentionSaved<'_>,
        mask: Option<attention::Dropout>,
        mut d_qkv: ViewMut<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let len = microbatch.shape.rows() * self.out.num_local_inputs();
        let mut d_out_thd = frame.take_as(self.formats().activations, len);
        product(d_out_thd.reborrow(), frame.nested())?;
        let shape = self.shape(microbatch.shape);
        let scratch = frame.take(self.attend_scratch_len(shape));
        device.attention_backward(
            self.precision(),
            shape,
            self.rows(saved.qkv.as_view()),
            saved.out_thd.as_view(),
            saved.lse_bht.as_view(),
            d_out_thd.as_view(),
            &self.options_of(microbatch, mask.as_ref()),
            d_qkv.reborrow(),
            scratch,
        )?;
        self.rotate(device, d_qkv, (microbatch.shape.tokens, 0), true)
    }

    /// Normalises queries and keys before their rotation, where the model does.
    fn normalize_heads(
        &self,
        device: &dyn Device,
        params: View<'_>,
        saved: &mut AttentionSaved<'_>,
    ) -> Result<()> {
        let Some(norms) = &self.head_norms else { return Ok(()) };
        let AttentionSaved { qkv, raw_heads, head_stats, out_thd, .. } = saved;
        // Attention has not written its output yet.
        let [qkv, heads, stats, spare] =
            [qkv, raw_heads, head_stats, out_thd].map(ViewMut::reborrow);
        let stride = self.norm_linear.product.num_outputs();
        norms.forward(device, params, stride, qkv, heads, stats, spare)
    }

    /// Passes the gradient of normalised queries and keys through their normalisation, in place,
    /// and adds the gradients of its trained weights.
    fn heads_gradient(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        saved: &AttentionSaved<'_>,
        d_qkv: ViewMut<'_>,
        mut grads: Grads<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        let Some(norms) = &self.head_norms else { return Ok(()) };
        let read = (saved.raw_heads.as_view(), saved.head_stats.as_view());
        let d_qkv = (d_qkv, self.norm_linear.product.num_outputs());
        let targets = grads.of_two([&norms.query.at, &norms.key.at]);
        let tp_shards = self.tp_shards();
        norms.backward(device, collectives, params, read, d_qkv, targets, tp_shards, frame)
    }

    /// Elements of queries and keys before their normalisation, and of its statistics.
    fn num_raw_heads(&self, num_rows: usize) -> (usize, usize) {
        let num_rows = num_rows * self.tp_shards().num_local();
        let norms = self.head_norms.as_ref();
        norms.map_or((0, 0), |norms| (norms.num_gathered(num_rows), norms.num_stats(num_rows)))
    }

    /// Dropout mask of the output.
    fn mask(&self, ctx: &Context<'_>) -> Option<RowMask> {
        let first_row = self.tp_shards().rows(ctx.microbatch.shape.rows()).start;
        self.dropout.mask(ctx, Site::AttentionOutput, first_row, self.norm_linear.width())
    }

    /// Dropout of the attention probabilities.
    fn attention_mask(&self, ctx: &Context<'_>) -> Option<attention::Dropout> {
        self.dropout.attention_mask(ctx, self.all_heads(ctx.microbatch.shape.sequences))
    }

    /// Number formats.
    fn formats(&self) -> Formats {
        self.out.formats()
    }

    /// Precision of products, also inside attention, which takes fp8 as bf16.
    fn precision(&self) -> Precision {
        self.formats().products
    }

    /// Scratch memory of attention itself. With activations in `f32` it may run on every device,
    /// and the CPU needs the most.
    fn attend_scratch_len(&self, shape: Shape) -> usize {
        match self.formats().activations {
            Dtype::F32 => attention::scratch_len_in(self.precision(), shape),
            _ => accelerator_attention_len(shape),
        }
    }

    /// Memory that an accelerator's attention allocates in the place of a left operand, in bytes.
    pub(crate) fn workspace_bytes(&self, microbatch: MicrobatchShape) -> usize {
        let Formats { products, activations } = self.formats();
        if activations == Dtype::F32 || self.dropout.is_on() {
            return 0;
        }
        accelerator_attention_bytes(products, self.shape(microbatch))
    }

    /// Shards of the model.
    pub(crate) const fn tp_shards(&self) -> &TensorShards {
        &self.norm_linear.tp_shards
    }

    /// Rotates queries and keys. `positions` is (tokens per sequence, position of each sequence's
    /// first token).
    fn rotate(
        &self,
        device: &dyn Device,
        qkv: ViewMut<'_>,
        positions: (usize, usize),
        inverse: bool,
    ) -> Result<()> {
        let Some(angles) = &self.rope else { return Ok(()) };
        let rotation = Rotation {
            row_stride: self.norm_linear.product.num_outputs(),
            num_heads: self.heads + self.kv_heads,
            head_stride: self.head_dim,
            tokens_per_sequence: positions.0,
            first_position: positions.1,
            inverse,
        };
        angles.rotate(device, qkv, &rotation)
    }

    /// Queries, keys and values inside the rows of `qkv`.
    fn rows<'a>(&self, qkv: View<'a>) -> [HeadRows<'a>; 3] {
        let (q_len, kv_len) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        [0, q_len, q_len + kv_len].map(|start| HeadRows {
            data: qkv.range(start..qkv.len()),
            stride: self.norm_linear.product.num_outputs(),
        })
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

    /// Options of the call of a micro-batch.
    fn options_of<'a>(
        &self,
        microbatch: &Microbatch<'a>,
        dropout: Option<&'a attention::Dropout>,
    ) -> Options<'a, View<'a>> {
        let own = self.options(microbatch.shape.sequences, dropout);
        Options { documents: microbatch.documents, ..own }
    }

    /// Options of a call without documents.
    fn options<'a>(
        &self,
        sequences: usize,
        dropout: Option<&'a attention::Dropout>,
    ) -> Options<'a, View<'a>> {
        let Scores { scale, soft_cap, window, has_alibi } = self.scores;
        let alibi = has_alibi.then(|| self.all_heads(sequences));
        Options { scale, soft_cap, window, alibi, dropout, ..Options::CAUSAL }
    }

    /// Heads of the model in that call.
    fn all_heads(&self, sequences: usize) -> Heads {
        Heads {
            num: self.heads * self.tp_shards().num,
            first: self.heads * self.tp_shards().local.start,
            sequences,
        }
    }
}

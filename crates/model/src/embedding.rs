//! Embedding: the first block of a transformer.
//!
//! The rows of the token table are sharded (vocab-parallel, as in Megatron-LM); a token whose row
//! is on another rank adds nothing to the sum over shards. GPT-2 adds a learned vector per
//! position, Llama encodes positions inside attention, BLOOM normalises the rows. Only rows before
//! such a normalisation are saved: the gradient of the table needs the tokens alone.

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, Microbatch, MicrobatchShape, Pass, Saved,
    SavedLen,
};
use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::dropout::{Dropout, Site};
use crate::formats::Formats;
use crate::grads::Grads;
use crate::norm::Norm;
use crate::param::Param;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::{Device, Result, View, ViewMut, copy_rounded};
use lockstep_tensor::gemm::Precision;
use std::ops::Range;

/// Token and position embedding.
pub(crate) struct Embedding {
    pub(crate) name: String,
    pub(crate) width: usize,
    pub(crate) params: Vec<Param>,
    /// Range of the local rows of the token table.
    pub(crate) tokens: Range<usize>,
    /// First local token.
    pub(crate) first_token: usize,
    pub(crate) positions: Option<Range<usize>>,
    /// Factor on the rows of tokens (Gemma).
    pub(crate) scale: Option<f32>,
    /// Normalisation of the rows (BLOOM).
    pub(crate) norm: Option<Norm>,
    pub(crate) dropout: Dropout,
    pub(crate) tp_shards: TensorShards,
    pub(crate) formats: Formats,
}

/// Saved values of forward: rows before their normalisation, and its statistics; empty without one.
struct EmbeddingSaved<'a> {
    raw_tc: ViewMut<'a>,
    stats: ViewMut<'a>,
}

impl Embedding {
    /// Elements of the local rows of the stream, and of the statistics of their normalisation.
    fn num_saved(&self, num_rows: usize) -> [usize; 2] {
        let own = self.tp_shards.rows(num_rows).len();
        self.norm.as_ref().map_or([0; 2], |norm| [own * self.width, norm.stats_len(own)])
    }

    fn split<'a>(&self, num_rows: usize, kept: ViewMut<'a>) -> EmbeddingSaved<'a> {
        let (mut kept, [raw, stats]) = (Frame::over(kept), self.num_saved(num_rows));
        let raw_tc = kept.take_as(self.formats.activations, raw);
        EmbeddingSaved { raw_tc, stats: kept.take(stats) }
    }

    /// Gradient of the rows before their normalisation, where there is one, from that of the rows
    /// after it; adds the gradients of its parameters.
    fn raw_gradient<'a, 'f: 'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        (saved, num_rows): (&EmbeddingSaved<'_>, usize),
        d_own: View<'a>,
        grads: Grads<'_>,
        frame: &mut Frame<'f>,
    ) -> Result<View<'a>> {
        let Some(norm) = &self.norm else { return Ok(d_own) };
        let mut d_raw_tc = frame.take_as(d_own.dtype(), d_own.len());
        device.fill(d_raw_tc.reborrow(), 0.0)?;
        let sums = RowSums { tp_shards: &self.tp_shards, num_rows };
        let (x_tc, stats) = (saved.raw_tc.as_view(), saved.stats.as_view());
        let (dx, spare) = (d_raw_tc.reborrow(), frame.nested());
        norm.backward(device, collectives, params, x_tc, stats, d_own, dx, grads, &sums, spare)?;
        Ok(d_raw_tc.into_view())
    }

    /// Embeds tokens and positions, summed over all shards.
    fn embed(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        microbatch: &Microbatch<'_>,
        params: View<'_>,
        mut all_tc: ViewMut<'_>,
    ) -> Result<()> {
        let (table, first) = (params.range(self.tokens.clone()), self.first_token);
        let out = all_tc.reborrow();
        device.embedding_forward(microbatch.inputs, table, first, self.width, out)?;
        self.tp_shards.sum_rows(collectives, all_tc.reborrow());
        let sequences = (microbatch.shape.tokens, microbatch.documents);
        self.add_positions(device, params, sequences, 0, all_tc)
    }

    /// Scales rows, or their gradients, where the family does.
    fn rescale(&self, device: &dyn Device, rows: ViewMut<'_>) -> Result<()> {
        let none = ViewMut::of::<u64>(&mut []);
        match self.scale {
            Some(factor) => device.scale(rows, factor, Precision::F32, none),
            None => Ok(()),
        }
    }

    /// Whether all rows are summed over the shards in `f32`, in memory of their own.
    fn sums_apart(&self) -> bool {
        self.tp_shards.sequence || self.formats.has_wide_sums(self.tp_shards.num)
    }

    /// Adds the vectors of positions, where there are any. `sequences` is (tokens of each, first
    /// position of each token's document, if positions restart).
    fn add_positions(
        &self,
        device: &dyn Device,
        params: View<'_>,
        sequences: (usize, Option<View<'_>>),
        first_position: usize,
        x_tc: ViewMut<'_>,
    ) -> Result<()> {
        let Some(at) = &self.positions else { return Ok(()) };
        let table = params.range(at.clone());
        device.add_positions(table, sequences, first_position, self.width, x_tc)
    }
}

impl Block for Embedding {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        BlockIo::TokensToStream { output: self.width }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let [raw, stats] = self.num_saved(shape.rows());
        SavedLen { kept: self.formats.floats(raw) + stats, rebuilt: 0 }
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let all = if self.sums_apart() { shape.rows() * self.width } else { 0 };
        let [raw, _] = self.num_saved(shape.rows());
        let sums = self.norm.as_ref().map_or(0, |norm| norm.scratch_len(&self.tp_shards));
        all + self.formats.floats(raw) + sums
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        Flops::default()
    }

    fn collective_calls(&self, shape: MicrobatchShape, pass: Pass<'_>) -> Vec<CollectiveCall> {
        let rows = shape.rows() * self.width;
        match pass {
            Pass::Forward => vec![self.tp_shards.sum_call(rows)],
            Pass::Recompute(_) | Pass::BackwardInputs => Vec::new(),
            Pass::Backward(trained) | Pass::BackwardWeights(trained) => {
                let norm = self.norm.as_ref().map_or(Vec::new(), Norm::params);
                let sums = self.tp_shards.row_blocks_call(&norm, trained);
                let gather = self.tp_shards.gather_call(self.formats.floats(rows));
                sums.into_iter().chain(gather).collect()
            }
        }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        _input: View<'_>,
        mut output_tc: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        let (device, width) = (ctx.device, self.width);
        let own = self.tp_shards.rows(ctx.microbatch.shape.rows());
        let num_rows = ctx.microbatch.shape.rows();
        let EmbeddingSaved { mut raw_tc, stats } = self.split(num_rows, saved.kept);
        let has_norm = self.norm.is_some();
        let mut rows_tc = if has_norm { raw_tc.reborrow() } else { output_tc.reborrow() };
        if self.sums_apart() {
            let mut all_tc = ctx.scratch.frame().take(ctx.microbatch.shape.rows() * width);
            self.embed(device, ctx.collectives, ctx.microbatch, params, all_tc.reborrow())?;
            let of_stream = all_tc.as_view().range(own.start * width..own.end * width);
            copy_rounded(device, of_stream, rows_tc.reborrow())?;
        } else {
            self.embed(device, ctx.collectives, ctx.microbatch, params, rows_tc.reborrow())?;
        }
        self.rescale(device, rows_tc.reborrow())?;
        if let Some(norm) = &self.norm {
            norm.forward(device, params, raw_tc.as_view(), output_tc.reborrow(), stats)?;
        }
        match self.dropout.mask(ctx, Site::Embedding, own.start, width) {
            Some(mask) => mask.apply(device, output_tc),
            None => Ok(()),
        }
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        _input: View<'_>,
        saved: Saved<'_>,
        d_stream_tc: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (device, microbatch, width) = (ctx.device, ctx.microbatch, self.width);
        let own = self.tp_shards.rows(microbatch.shape.rows());
        let own = own.start * width..own.end * width;
        let mut d_own = d_stream_tc.range(0..own.len());
        if let Some(mask) = self.dropout.mask(ctx, Site::Embedding, own.start / width, width) {
            mask.apply(device, d_own.reborrow())?;
        }
        self.rescale(device, d_own.reborrow())?;
        let num_rows = microbatch.shape.rows();
        let saved = (&self.split(num_rows, saved.kept), num_rows);
        let mut frame = ctx.scratch.frame();
        let (dy, of_norm, rest) = (d_own.into_view(), grads.reborrow(), &mut frame);
        let all = &mut *ctx.collectives;
        let d_own = self.raw_gradient(device, all, params, saved, dy, of_norm, rest)?;
        let d_all = if self.tp_shards.sequence {
            let mut all_tc = frame.take_as(d_own.dtype(), num_rows * width);
            device.copy(d_own, all_tc.reborrow().range(own))?;
            self.tp_shards.gather_rows(ctx.collectives, all_tc.reborrow());
            all_tc.into_view()
        } else {
            d_own
        };
        if let Some(at) = &self.positions {
            let sequences = (microbatch.shape.tokens, microbatch.documents);
            let grads = grads.of(at);
            if !grads.is_empty() {
                device.positions_backward(d_all, sequences, width, grads)?;
            }
        }
        let grads = grads.of(&self.tokens);
        if grads.is_empty() {
            return Ok(());
        }
        device.embedding_backward(microbatch.inputs, d_all, self.first_token, width, grads)
    }

    fn deferred_len(&self, shape: MicrobatchShape) -> usize {
        self.formats.floats(self.tp_shards.rows(shape.rows()).len() * self.width)
    }

    /// Tokens have no gradient, so all work is in the weight gradient.
    fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        _params: View<'_>,
        _input: View<'_>,
        _saved: Saved<'_>,
        d_stream_tc: ViewMut<'_>,
        deferred: ViewMut<'_>,
    ) -> Result<()> {
        let len = self.tp_shards.rows(ctx.microbatch.shape.rows()).len() * self.width;
        let deferred = deferred.cast(d_stream_tc.dtype()).range(0..len);
        ctx.device.copy(d_stream_tc.as_view().range(0..len), deferred)
    }

    fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input: View<'_>,
        saved: Saved<'_>,
        deferred: ViewMut<'_>,
        grads: Grads<'_>,
    ) -> Result<()> {
        let d_stream_tc = deferred.cast(self.formats.activations);
        self.backward(ctx, params, input, saved, d_stream_tc, grads)
    }

    fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let rows = self.formats.floats(num_tokens * self.width);
        self.norm.as_ref().map_or(0, |norm| rows + norm.stats_len(num_tokens))
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: View<'_>,
        _input: View<'_>,
        mut output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        let (device, table) = (ctx.device, params.range(self.tokens.clone()));
        if let Some(norm) = &self.norm {
            let mut frame = ctx.scratch.frame();
            let mut raw_tc = frame.take_as(output.dtype(), output.len());
            device.embedding_forward(ctx.tokens, table, 0, self.width, raw_tc.reborrow())?;
            let stats = frame.take(norm.stats_len(ctx.tokens.len()));
            return norm.forward(device, params, raw_tc.as_view(), output, stats);
        }
        device.embedding_forward(ctx.tokens, table, 0, self.width, output.reborrow())?;
        self.rescale(device, output.reborrow())?;
        let num_tokens = ctx.tokens.len() / ctx.sequences.len();
        for (index, sequence) in ctx.sequences.iter().enumerate() {
            let len = num_tokens * self.width;
            let rows = output.reborrow().range(index * len..(index + 1) * len);
            let (alone, first) = ((num_tokens, None), sequence.first_position);
            self.add_positions(device, params, alone, first, rows)?;
        }
        Ok(())
    }
}

//! Embedding: the first block of a transformer.
//!
//! The rows of the token table are sharded (vocab-parallel, as in Megatron-LM); a token whose row
//! is on another rank adds nothing to the sum over shards. GPT-2 adds a learned vector per
//! position, Llama encodes positions inside attention. Nothing is saved: the gradient needs only
//! the tokens.

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, Microbatch, MicrobatchShape, Pass, Saved,
    SavedLen,
};
use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::dropout::{Dropout, Site};
use crate::formats::Formats;
use crate::grads::Grads;
use crate::param::Param;
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
    pub(crate) dropout: Dropout,
    pub(crate) tp_shards: TensorShards,
    pub(crate) formats: Formats,
}

impl Embedding {
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

    fn saved_len(&self, _shape: MicrobatchShape) -> SavedLen {
        SavedLen::default()
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        if self.sums_apart() { shape.rows() * self.width } else { 0 }
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        Flops::default()
    }

    fn collective_calls(&self, shape: MicrobatchShape, pass: Pass<'_>) -> Vec<CollectiveCall> {
        let rows = shape.rows() * self.width;
        match pass {
            Pass::Forward => vec![self.tp_shards.sum_call(rows)],
            Pass::Recompute(_) | Pass::BackwardInputs => Vec::new(),
            Pass::Backward(_) | Pass::BackwardWeights(_) => {
                self.tp_shards.gather_call(self.formats.floats(rows)).into_iter().collect()
            }
        }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        _input: View<'_>,
        mut output_tc: ViewMut<'_>,
        _saved: Saved<'_>,
    ) -> Result<()> {
        let (device, width) = (ctx.device, self.width);
        let own = self.tp_shards.rows(ctx.microbatch.shape.rows());
        if self.sums_apart() {
            let mut all_tc = ctx.scratch.frame().take(ctx.microbatch.shape.rows() * width);
            self.embed(device, ctx.collectives, ctx.microbatch, params, all_tc.reborrow())?;
            let of_stream = all_tc.as_view().range(own.start * width..own.end * width);
            copy_rounded(device, of_stream, output_tc.reborrow())?;
        } else {
            self.embed(device, ctx.collectives, ctx.microbatch, params, output_tc.reborrow())?;
        }
        self.rescale(device, output_tc.reborrow())?;
        match self.dropout.mask(ctx, Site::Embedding, own.start, width) {
            Some(mask) => mask.apply(device, output_tc),
            None => Ok(()),
        }
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        _params: View<'_>,
        _input: View<'_>,
        _saved: Saved<'_>,
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
        let d_own = d_own.into_view();
        let d_all = if self.tp_shards.sequence {
            let len = microbatch.shape.rows() * width;
            let mut all_tc = ctx.scratch.frame().take_as(d_own.dtype(), len);
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

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: View<'_>,
        _input: View<'_>,
        mut output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        let (device, table) = (ctx.device, params.range(self.tokens.clone()));
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

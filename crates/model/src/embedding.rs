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
use crate::grads::Grads;
use crate::param::Param;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::{Cpu, embedding};
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
    pub(crate) dropout: Dropout,
    pub(crate) tp_shards: TensorShards,
}

impl Embedding {
    /// Embeds tokens and positions, summed over all shards.
    fn embed(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        microbatch: &Microbatch<'_>,
        params: &[f32],
        all_tc: &mut [f32],
    ) {
        let table = &params[self.tokens.clone()];
        let first = self.first_token;
        embedding::forward_part(cpu, microbatch.inputs, table, first, self.width, all_tc);
        self.tp_shards.sum_rows(collectives, all_tc);
        if let Some(at) = &self.positions {
            let table = &params[at.clone()];
            embedding::add_positions(cpu, table, microbatch.shape.tokens, 0, self.width, all_tc);
        }
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
        if self.tp_shards.sequence { shape.rows() * self.width } else { 0 }
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
                self.tp_shards.gather_call(rows).into_iter().collect()
            }
        }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        _input: &[f32],
        output_tc: &mut [f32],
        _saved: Saved<'_>,
    ) -> f64 {
        let (cpu, width) = (ctx.cpu, self.width);
        let own = self.tp_shards.rows(ctx.microbatch.shape.rows());
        if self.tp_shards.sequence {
            let all_tc = ctx.scratch.frame().take(ctx.microbatch.shape.rows() * width);
            self.embed(cpu, ctx.collectives, ctx.microbatch, params, all_tc);
            output_tc.copy_from_slice(&all_tc[own.start * width..own.end * width]);
        } else {
            self.embed(cpu, ctx.collectives, ctx.microbatch, params, output_tc);
        }
        if let Some(mask) = self.dropout.mask(ctx, Site::Embedding, own.start, width) {
            mask.apply(cpu, output_tc);
        }
        0.0
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        _params: &[f32],
        _input: &[f32],
        _saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let (cpu, microbatch, width) = (ctx.cpu, ctx.microbatch, self.width);
        let own = self.tp_shards.rows(microbatch.shape.rows());
        let own = own.start * width..own.end * width;
        let d_own = &mut d_stream_tc[..own.len()];
        if let Some(mask) = self.dropout.mask(ctx, Site::Embedding, own.start / width, width) {
            mask.apply(cpu, d_own);
        }
        let d_all: &[f32] = if self.tp_shards.sequence {
            let all_tc = ctx.scratch.frame().take(microbatch.shape.rows() * width);
            all_tc[own].copy_from_slice(d_own);
            self.tp_shards.gather_rows(ctx.collectives, all_tc);
            all_tc
        } else {
            d_own
        };
        if let Some(at) = &self.positions {
            let (grads, tokens) = (grads.of(at), microbatch.shape.tokens);
            if !grads.is_empty() {
                embedding::positions_backward(cpu, d_all, tokens, width, grads);
            }
        }
        let grads = grads.of(&self.tokens);
        if !grads.is_empty() {
            embedding::backward_part(cpu, microbatch.inputs, d_all, self.first_token, width, grads);
        }
    }

    fn deferred_len(&self, shape: MicrobatchShape) -> usize {
        self.tp_shards.rows(shape.rows()).len() * self.width
    }

    /// Tokens have no gradient, so all work is in the weight gradient.
    fn backward_inputs(
        &self,
        _ctx: &mut Context<'_>,
        _params: &[f32],
        _input: &[f32],
        _saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        deferred: &mut [f32],
    ) {
        deferred.copy_from_slice(&d_stream_tc[..deferred.len()]);
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: &[f32],
        _input: &[f32],
        output: &mut [f32],
        _cache: &mut [f32],
    ) {
        embedding::forward(ctx.cpu, ctx.tokens, &params[self.tokens.clone()], self.width, output);
        if let Some(at) = &self.positions {
            let (table, first) = (&params[at.clone()], ctx.first_position);
            let num_tokens = ctx.tokens.len();
            embedding::add_positions(ctx.cpu, table, num_tokens, first, self.width, output);
        }
    }
}

//! The first block: tokens to vectors.
//!
//! A row of the token table per token; GPT-2 adds a learned vector per position, Llama encodes
//! positions inside attention. Nothing is saved: the gradient needs only the lane's tokens.

use crate::block::{Block, BlockIo, Context, DecodeContext, Flops, LaneShape, Saved, SavedLen};
use crate::dropout::{Dropout, Site};
use crate::grads::Grads;
use crate::param::Param;
use lockstep_tensor::embedding;
use std::ops::Range;

/// See the module's text.
pub(crate) struct Embedding {
    pub(crate) name: String,
    pub(crate) width: usize,
    pub(crate) params: Vec<Param>,
    pub(crate) tokens: Range<usize>,
    pub(crate) positions: Option<Range<usize>>,
    pub(crate) dropout: Dropout,
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

    fn saved_len(&self, _shape: LaneShape) -> SavedLen {
        SavedLen::default()
    }

    fn scratch_len(&self, _shape: LaneShape) -> usize {
        0
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        Flops::default()
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        _input: &[f32],
        output_tc: &mut [f32],
        _saved: Saved<'_>,
    ) -> f64 {
        let (cpu, lane) = (ctx.cpu, ctx.lane);
        let table = &params[self.tokens.clone()];
        embedding::forward(cpu, lane.inputs, table, self.width, output_tc);
        if let Some(at) = &self.positions {
            let table = &params[at.clone()];
            embedding::add_positions(cpu, table, lane.shape.tokens, 0, self.width, output_tc);
        }
        if let Some(mask) = self.dropout.mask(ctx, Site::Embedding, self.width) {
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
        let (cpu, lane) = (ctx.cpu, ctx.lane);
        if let Some(mask) = self.dropout.mask(ctx, Site::Embedding, self.width) {
            mask.apply(cpu, d_stream_tc);
        }
        if let Some(at) = &self.positions {
            let (grads, tokens) = (grads.of(at), lane.shape.tokens);
            if !grads.is_empty() {
                embedding::positions_backward(cpu, d_stream_tc, tokens, self.width, grads);
            }
        }
        let grads = grads.of(&self.tokens);
        if !grads.is_empty() {
            embedding::backward(cpu, lane.inputs, d_stream_tc, self.width, grads);
        }
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

//! First block of a problem: maps the index of a sample to its features. It has no parameters.

use super::samples::Samples;
use super::spectrum::Noise;
use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, MicrobatchShape, Saved, SavedLen,
};
use crate::grads::Grads;
use crate::param::Param;
use lockstep_tensor::device::{Result, View, ViewMut};
use std::sync::Arc;

/// Features of samples.
pub(super) struct Features {
    pub(super) width: usize,
    pub(super) rows: Rows,
}

/// Source of the rows.
pub(super) enum Rows {
    Table(Arc<Samples>),
    Noise(Noise),
}

impl Features {
    fn copy(&self, samples: View<'_>, output: ViewMut<'_>) -> Result<()> {
        let (samples, output) = (samples.as_slice::<u32>()?, output.into_slice()?);
        for (&sample, row) in samples.iter().zip(output.chunks_exact_mut(self.width)) {
            match &self.rows {
                Rows::Table(table) => row.copy_from_slice(table.row(sample as usize)),
                Rows::Noise(noise) => noise.copy(u64::from(sample), row),
            }
        }
        Ok(())
    }
}

impl Block for Features {
    fn name(&self) -> &'static str {
        "features"
    }

    fn params(&self) -> &[Param] {
        &[]
    }

    fn io(&self) -> BlockIo {
        BlockIo::TokensToStream { output: self.width }
    }

    fn saved_len(&self, _shape: MicrobatchShape) -> SavedLen {
        SavedLen::default()
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        Flops::default()
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        _params: View<'_>,
        _input: View<'_>,
        output_tc: ViewMut<'_>,
        _saved: Saved<'_>,
    ) -> Result<()> {
        self.copy(ctx.microbatch.inputs, output_tc)
    }

    fn backward(
        &self,
        _ctx: &mut Context<'_>,
        _params: View<'_>,
        _input: View<'_>,
        _saved: Saved<'_>,
        _d_stream_tc: ViewMut<'_>,
        _grads: Grads<'_>,
    ) -> Result<()> {
        Ok(())
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        _params: View<'_>,
        _input: View<'_>,
        output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        self.copy(ctx.tokens, output)
    }
}

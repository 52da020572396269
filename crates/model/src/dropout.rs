//! Dropout whose masks are a function of (seed, step, block, site, global element).
//!
//! The element's place is that in the *global* batch, so a micro-batch's mask is the same whichever
//! worker runs it and however often it is recomputed. Nothing is saved: backward draws the same
//! mask again. With rate zero, or in evaluation, there is no mask and no work.

use crate::block::{Context, Microbatch, Mode};
use lockstep_tensor::dropout::{self, DropoutMask};
use lockstep_tensor::random::Key;
use lockstep_tensor::{Cpu, attention};

/// Where in a block a mask is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Site {
    Embedding = 0,
    AttentionWeights = 1,
    AttentionOutput = 2,
    FeedForwardOutput = 3,
}

/// The dropout of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    pub(crate) rate: f32,
    /// Number of the block in the model.
    pub(crate) block: u64,
}

impl Dropout {
    /// Whether a training pass drops anything.
    pub(crate) fn is_on(&self) -> bool {
        self.rate > 0.0
    }

    /// The key of a site in this pass, or nothing where nothing is dropped.
    fn key(&self, mode: Mode, site: Site) -> Option<Key> {
        match mode {
            Mode::Train { seed, step, .. } if self.is_on() => {
                let key = Key::new(seed, "dropout").with(step).with(self.block);
                Some(key.with(site as u64))
            }
            Mode::Train { .. } | Mode::Evaluate => None,
        }
    }

    /// The mask of a site for rows of `width` elements, of which the first is `first_row` of the
    /// micro-batch.
    pub(crate) fn mask(
        &self,
        ctx: &Context<'_>,
        site: Site,
        first_row: usize,
        width: usize,
    ) -> Option<RowMask> {
        let key = self.key(ctx.mode, site)?;
        let Microbatch { shape, first_sample, .. } = *ctx.microbatch;
        let first_element =
            first_sample * (shape.tokens * width) as u64 + (first_row * width) as u64;
        Some(RowMask { mask: DropoutMask { key, rate: self.rate }, first_element })
    }

    /// The mask inside attention, where `heads` are run.
    pub(crate) fn attention_mask(
        &self,
        ctx: &Context<'_>,
        heads: attention::Heads,
    ) -> Option<attention::Dropout> {
        let key = self.key(ctx.mode, Site::AttentionWeights)?;
        let first_sample = ctx.microbatch.first_sample;
        Some(attention::Dropout { key, rate: self.rate, first_sample, heads })
    }
}

/// A mask over rows of one micro-batch.
pub(crate) struct RowMask {
    mask: DropoutMask,
    first_element: u64,
}

impl RowMask {
    /// Drops and scales in place; on a gradient it is its own backward.
    pub(crate) fn apply(&self, cpu: &Cpu, rows: &mut [f32]) {
        dropout::apply(cpu, &self.mask, self.first_element, rows);
    }
}

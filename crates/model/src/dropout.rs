//! Dropout masks as a function of (seed, step, block, site, global element).
//!
//! Elements are indexed in the *global* batch, so the mask of a micro-batch does not depend on its
//! rank or on recomputation. Nothing is saved: backward recomputes the mask. With rate zero, or in
//! evaluation, there is no mask and no work.

use crate::block::{Context, Microbatch, Mode};
use lockstep_config::LoraTarget;
use lockstep_tensor::attention;
use lockstep_tensor::device::{Device, Result, View, ViewMut};
use lockstep_tensor::dropout::DropoutMask;
use lockstep_tensor::random::Key;

/// Site of a mask in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Site {
    Embedding = 0,
    AttentionWeights = 1,
    AttentionOutput = 2,
    FeedForwardOutput = 3,
}

/// Dropout of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    pub(crate) rate: f32,
    /// Rate of the adapters' inputs.
    pub(crate) adapter_rate: f32,
    /// Index of the block in the model.
    pub(crate) block: u64,
}

impl Dropout {
    /// Whether a training pass applies dropout.
    pub(crate) fn is_on(&self) -> bool {
        self.rate > 0.0
    }

    /// Random stream of a site in this pass; none without dropout.
    fn key(&self, mode: Mode, site: Site) -> Option<Key> {
        match mode {
            Mode::Train { seed, step, .. } if self.is_on() => {
                let key = Key::new(seed, "dropout").with(step).with(self.block);
                Some(key.with(site as u64))
            }
            Mode::Train { .. } | Mode::Evaluate => None,
        }
    }

    /// Mask of a site for rows of `width` elements, from `first_row` of the micro-batch on.
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

    /// Mask of the attention probabilities of `heads`.
    pub(crate) fn attention_mask(
        &self,
        ctx: &Context<'_>,
        heads: attention::Heads,
    ) -> Option<attention::Dropout> {
        let key = self.key(ctx.mode, Site::AttentionWeights)?;
        let first_sample = ctx.microbatch.first_sample;
        Some(attention::Dropout { key, rate: self.rate, first_sample, heads })
    }

    /// Masks of the inputs of the block's adapters.
    pub(crate) fn adapter_masks(&self, ctx: &Context<'_>) -> AdapterMasks {
        let Microbatch { shape, first_sample, .. } = *ctx.microbatch;
        let key = match ctx.mode {
            Mode::Train { seed, step, .. } if self.adapter_rate > 0.0 => {
                Some(Key::new(seed, "adapter dropout").with(step).with(self.block))
            }
            Mode::Train { .. } | Mode::Evaluate => None,
        };
        AdapterMasks { key, rate: self.adapter_rate, first_row: first_sample * shape.tokens as u64 }
    }
}

/// Masks of the inputs of a block's adapters in one pass. Each adapter has its own, as in `peft`,
/// and each shard of a sharded input: the number of shards is the same under every layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterMasks {
    pub(crate) key: Option<Key>,
    pub(crate) rate: f32,
    /// First row of the micro-batch in the global batch.
    pub(crate) first_row: u64,
}

impl AdapterMasks {
    /// No masks.
    pub(crate) const NONE: Self = Self { key: None, rate: 0.0, first_row: 0 };

    /// Mask of a shard of an adapter's input, from `first_row` of the micro-batch on, whose rows
    /// have `width` elements.
    pub(crate) fn of(
        self,
        target: LoraTarget,
        shard: usize,
        first_row: usize,
        width: usize,
    ) -> Option<RowMask> {
        let key = self.key?.with(target as u64).with(shard as u64);
        let first_element = (self.first_row + first_row as u64) * width as u64;
        Some(RowMask { mask: DropoutMask { key, rate: self.rate }, first_element })
    }
}

/// A mask over rows of one micro-batch.
pub(crate) struct RowMask {
    mask: DropoutMask,
    first_element: u64,
}

impl RowMask {
    /// Applies the mask to `rows`, and adds `residual` to them.
    pub(crate) fn add_masked(
        &self,
        device: &dyn Device,
        mut rows: ViewMut<'_>,
        residual: View<'_>,
    ) -> Result<()> {
        self.apply(device, rows.reborrow())?;
        device.add_assign(rows, residual)
    }

    /// Applies the mask in place, to values or to gradients.
    pub(crate) fn apply(&self, device: &dyn Device, rows: ViewMut<'_>) -> Result<()> {
        device.dropout(&self.mask, self.first_element, rows)
    }
}

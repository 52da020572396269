//! Interface between the runtime and the blocks of a model.
//!
//! A model is a list of blocks: an embedding, layers and a head, or the corresponding blocks of a
//! small problem. A block describes its parameters, runs forward and fills the saved activations,
//! and runs backward from those. It owns no mutable memory and is independent of ranks: parameters,
//! gradients, activations and scratch memory belong to the runtime, which may gather a block's
//! parameters just before use (ZeRO), run blocks on different ranks (pipeline), keep many
//! micro-batches in flight, or discard saved values and recompute them.
//!
//! Shapes, here and in the blocks: t rows of a micro-batch (sequences x tokens), c width, h query
//! heads, g key/value heads, d head dim, f hidden width of the feed-forward part, v vocabulary.

use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::frozen_weight::FrozenWeight;
use crate::grads::Grads;
use crate::param::Param;
use crate::scratch::Scratch;
use lockstep_config::LossScale;
use lockstep_tensor::device::{Device, Preferences, Result, Targets, View, ViewMut};
use std::ops::Range;

/// Target of a token that is excluded from the loss.
pub use lockstep_tensor::cross_entropy::IGNORE;

/// Properties of a run that the memory of an accelerator's products depends on.
#[derive(Clone, Copy, Debug)]
pub struct ProductPlan {
    /// Whether the accelerator keeps rounded parameters.
    pub has_copies: bool,
    /// Whether weight gradients are computed apart from input gradients, as in a zero-bubble
    /// pipeline.
    pub splits_backward: bool,
}

/// Shape of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicrobatchShape {
    /// Sequences in the micro-batch.
    pub sequences: usize,
    /// Tokens in each sequence.
    pub tokens: usize,
}

impl MicrobatchShape {
    /// Rows of the activations: one per token.
    pub const fn rows(self) -> usize {
        self.sequences * self.tokens
    }
}

/// A micro-batch: the unit of forward and backward passes under every layout.
#[derive(Clone, Copy, Debug)]
pub struct Microbatch<'a> {
    /// Shape of the micro-batch.
    pub shape: MicrobatchShape,
    /// Token of each row, a `u32`.
    pub inputs: View<'a>,
    /// Token to predict at each row, or [`IGNORE`].
    pub targets: View<'a>,
    /// Index of the micro-batch's first sequence in the global batch of this step.
    pub first_sample: u64,
    /// Targets of the *global* batch that are not [`IGNORE`]: the denominator of the loss.
    pub num_targets: u64,
    /// First position of the document of each row, in its sequence, a `u32`, where attention stays
    /// within documents and positions restart with each.
    pub documents: Option<View<'a>>,
    /// Reference of pairs of sequences, where the loss is that of preferences; pairs then take the
    /// place of targets in `num_targets`.
    pub preferences: Option<Preferences<'a>>,
}

impl<'a> Microbatch<'a> {
    /// Targets of a cross-entropy with that scale of the gradients.
    pub(crate) fn loss_targets(&self, loss_scale: LossScale) -> Targets<'a> {
        let Self { targets: ids, num_targets, .. } = *self;
        Targets { ids, num_targets, loss_scale: loss_scale.factor() }
    }
}

/// Mode of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: backward follows; dropout masks are a function of seed, step and element.
    Train {
        /// The run's seed.
        seed: u64,
        /// The optimizer step.
        step: u64,
        /// Loss scale, which multiplies every gradient.
        loss_scale: LossScale,
    },
    /// Forward only, without dropout.
    Evaluate,
}

impl Mode {
    /// Loss scale of a training pass.
    pub(crate) const fn loss_scale(self) -> Option<LossScale> {
        match self {
            Self::Train { loss_scale, .. } => Some(loss_scale),
            Self::Evaluate => None,
        }
    }
}

/// Arguments of every call of a block besides its own buffers.
pub struct Context<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The current micro-batch.
    pub microbatch: &'a Microbatch<'a>,
    /// Mode of the pass.
    pub mode: Mode,
    /// Memory for the duration of the call.
    pub scratch: &'a mut Scratch,
    /// Collectives over the tensor-parallel ranks.
    pub collectives: &'a mut dyn TensorCollectives,
    /// Sum of the token losses, one `f64`, set by the block that ends in the loss, forward or
    /// backward ([`Block::defers_loss`]). The host reads it when it needs the number; until then
    /// the device does not wait.
    pub loss: ViewMut<'a>,
    /// Number of pairs with a positive margin, and the sum of the margins: two `f64`, set with the
    /// loss where the micro-batch has [preferences](Microbatch::preferences), or none.
    pub pairs: ViewMut<'a>,
}

/// A sequence whose past is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedSequence {
    /// Position of its first new token, which is the number of its positions in the cache.
    pub first_position: usize,
    /// Index of its part of the cache.
    pub part: usize,
}

/// Arguments of a decoding call: new tokens of one sequence, or one new token of each of several.
pub struct DecodeContext<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The new tokens, each a `u32`.
    pub tokens: View<'a>,
    /// Sequences of the new tokens, in order.
    pub sequences: &'a [CachedSequence],
    /// Number of equal parts of the cache, one for each sequence that it may hold.
    pub num_cache_parts: usize,
    /// Memory for the duration of the call.
    pub scratch: &'a mut Scratch,
}

/// Input and output of a block, with the width of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockIo {
    /// Reads the micro-batch's tokens; its input is empty.
    TokensToStream {
        /// Width of the rows it writes.
        output: usize,
    },
    /// From a row of activations for each token to another.
    StreamToStream {
        /// Width of the rows it reads.
        input: usize,
        /// Width of the rows it writes: that of the next block's input.
        output: usize,
    },
    /// Ends in the loss; its output is empty.
    StreamToLoss {
        /// Width of the rows it reads.
        input: usize,
    },
}

impl BlockIo {
    /// Width of the rows it reads; zero where it reads tokens.
    pub const fn input_width(self) -> usize {
        match self {
            Self::TokensToStream { .. } => 0,
            Self::StreamToStream { input, .. } | Self::StreamToLoss { input } => input,
        }
    }

    /// Width of the rows it writes; zero where it ends in the loss.
    pub const fn output_width(self) -> usize {
        match self {
            Self::TokensToStream { output } | Self::StreamToStream { output, .. } => output,
            Self::StreamToLoss { .. } => 0,
        }
    }

    /// The wider of the two.
    pub const fn max_width(self) -> usize {
        let (input, output) = (self.input_width(), self.output_width());
        if input > output { input } else { output }
    }

    /// Whether it is between other blocks: its saved values stay until its backward.
    pub const fn is_layer(self) -> bool {
        matches!(self, Self::StreamToStream { .. })
    }
}

/// Memory that a block saves between forward and backward, besides its input, in `f32` elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedLen {
    /// Values that are expensive to recompute.
    pub kept: usize,
    /// Values that [`Recompute::Selective`] recomputes from the kept ones.
    pub rebuilt: usize,
}

/// The memory behind [`SavedLen`].
#[derive(Debug)]
pub struct Saved<'a> {
    /// Values that are expensive to recompute.
    pub kept: ViewMut<'a>,
    /// Values that [`Recompute::Selective`] recomputes.
    pub rebuilt: ViewMut<'a>,
}

impl Saved<'_> {
    /// Reborrows the memory.
    pub fn reborrow(&mut self) -> Saved<'_> {
        Saved { kept: self.kept.reborrow(), rebuilt: self.rebuilt.reborrow() }
    }
}

/// Activation recomputation (Chen et al. 2016; selective: Korthikanti et al. 2022). The same
/// kernels recompute the values from the same micro-batch, so the choice never changes a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Everything was saved.
    #[default]
    None,
    /// The kept values were saved: attention is recomputed.
    Selective,
    /// Only the input of the block was saved.
    Full,
}

/// Kind of pass of a micro-batch through a block.
#[derive(Clone, Copy, Debug)]
pub enum Pass<'a> {
    /// Forward.
    Forward,
    /// Recomputation before backward.
    Recompute(Recompute),
    /// Backward, with gradients for these ranges of the block's flat buffer.
    Backward(&'a [Range<usize>]),
    /// The half of backward that computes input gradients.
    BackwardInputs,
    /// The half of backward that computes weight gradients for these ranges.
    BackwardWeights(&'a [Range<usize>]),
}

/// Forward and backward FLOPs of one token, where a fused multiply-add counts as two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Forward.
    pub forward: u64,
    /// Backward: gradients of inputs and of weights.
    pub backward: u64,
}

impl Flops {
    /// Of products with weights, which have no gradient where they are frozen, and of others.
    pub(crate) const fn of_half(products: u64, others: u64, is_frozen: bool) -> Self {
        let of_weights = if is_frozen { 0 } else { products };
        let forward = products + others;
        Self { forward, backward: products + of_weights + 2 * others }
    }
}

/// A part of a model with its own parameters.
pub trait Block: Send + Sync {
    /// Unique in the model; a prefix of its parameters' names where they share one.
    fn name(&self) -> &str;

    /// The parameters, in the order of the flat buffer, without gaps.
    fn params(&self) -> &[Param];

    /// Weights that are no parameters: they are frozen in four bits.
    fn frozen_weights(&self) -> Vec<&FrozenWeight> {
        Vec::new()
    }

    /// Input and output.
    fn io(&self) -> BlockIo;

    /// Exact memory saved for a micro-batch of this shape, in `f32` elements.
    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen;

    /// Largest scratch memory of any call on a micro-batch of this shape, in `f32` elements.
    fn scratch_len(&self, _shape: MicrobatchShape) -> usize {
        0
    }

    /// Bytes of the largest left and right operand of its products that an accelerator rounds to
    /// another number format first.
    fn operand_bytes(&self, _shape: MicrobatchShape, _products: ProductPlan) -> [usize; 2] {
        [0; 2]
    }

    /// Model FLOPs of one token in sequences of `num_tokens`; recomputation is not counted. The
    /// default counts a multiply-add with every parameter, as in a linear layer.
    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        let forward = 2 * self.num_params() as u64;
        Flops { forward, backward: 2 * forward }
    }

    /// Collective calls of a pass, in order.
    fn collective_calls(&self, _shape: MicrobatchShape, _pass: Pass<'_>) -> Vec<CollectiveCall> {
        Vec::new()
    }

    /// Whether a training pass sets [`Context::loss`] in backward, or in the half of it that
    /// computes input gradients, instead of forward.
    fn defers_loss(&self, _shape: MicrobatchShape) -> bool {
        false
    }

    /// Computes `output_tc` and fills `saved`; the block that ends in the loss sets
    /// [`Context::loss`], unless it defers that.
    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        output_tc: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()>;

    /// Recomputes the values that `what` did not save, to equal bits. Blocks that are cheap, or
    /// whose backward follows at once, keep the default: the runtime saves everything for them.
    fn recompute(
        &self,
        _ctx: &mut Context<'_>,
        _params: View<'_>,
        _input_tc: View<'_>,
        _saved: Saved<'_>,
        what: Recompute,
    ) -> Result<()> {
        assert_eq!(what, Recompute::None, "{} saves everything", self.name());
        Ok(())
    }

    /// Turns the gradient of the output in `d_stream_tc` into that of the input, in place, and
    /// *adds* the gradients of trained parameters to `grads`: frozen parameters take no work.
    /// `saved` is unchanged. The view has space for rows of the wider of the two, each at its
    /// front.
    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        d_stream_tc: ViewMut<'_>,
        grads: Grads<'_>,
    ) -> Result<()>;

    /// Memory that [`Self::backward_inputs`] stores for [`Self::backward_weights`], in `f32`
    /// elements. The default is for activations in `f32`.
    fn deferred_len(&self, shape: MicrobatchShape) -> usize {
        shape.rows() * self.io().max_width()
    }

    /// The first half of a split [`Self::backward`]: the input gradient, in `d_stream_tc`, and in
    /// `deferred` the state of the second half. Both halves together give the bits of the whole.
    /// Cheap blocks keep the default, which computes input gradients twice.
    fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        d_stream_tc: ViewMut<'_>,
        deferred: ViewMut<'_>,
    ) -> Result<()> {
        ctx.device.copy(d_stream_tc.as_view(), deferred.range(0..d_stream_tc.len()))?;
        self.backward(ctx, params, input_tc, saved, d_stream_tc, Grads::none())
    }

    /// Whether the weight-gradient pass accepts undefined gradients ([`Grads::written`]): its
    /// products then set them, and it zeroes the others. It must reach every element once.
    fn sets_gradients(&self) -> bool {
        false
    }

    /// The second half: *adds* the gradients of trained parameters to `grads`. It may overwrite
    /// `deferred`.
    fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        deferred: ViewMut<'_>,
        grads: Grads<'_>,
    ) -> Result<()> {
        self.backward(ctx, params, input_tc, saved, deferred, grads)
    }

    /// Memory of the key-value cache for `num_positions` tokens, in `f32` elements.
    fn cache_len(&self, _num_positions: usize) -> usize {
        0
    }

    /// Largest scratch memory for decoding `num_tokens` new tokens.
    fn decode_scratch_len(&self, _num_tokens: usize) -> usize {
        0
    }

    /// Forward for new tokens; appends keys and values to the cache. The block that ends in the
    /// loss writes the logits of the last token of each sequence instead. The bits equal those of
    /// `forward` on the whole sequence. Blocks of problems without classes keep the default,
    /// because they have no logits.
    fn decode(
        &self,
        _ctx: &mut DecodeContext<'_>,
        _params: View<'_>,
        _input_tc: View<'_>,
        _output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        unreachable!("{} has no logits", self.name());
    }

    /// Length of the flat buffer.
    fn num_params(&self) -> usize {
        self.params().last().map_or(0, |last| last.range().end)
    }
}

//! The one contract between the runtime and the mathematics of a model.
//!
//! A model is a list of blocks: an embedding, layers, a head; or what a small problem has in their
//! places. A block knows its parameters' layout,
//! runs forward and says what it saved, and runs backward from that. It owns no memory that
//! changes and knows no ranks: parameters, gradients, activations and scratch belong to the
//! runtime, which may gather a block's parameters just before use (ZeRO), run blocks on different
//! machines (pipeline), keep many micro-batches in flight, or throw saved values away and have them
//! recomputed, and the block cannot tell.
//!
//! Shapes, here and in the blocks: t rows of a micro-batch (sequences x tokens), c width, h query heads,
//! g key/value heads, d head dim, f hidden width of the feed-forward part, v vocabulary.

use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::grads::Grads;
use crate::param::Param;
use crate::scratch::Scratch;
use lockstep_config::LossScale;
use lockstep_tensor::Cpu;
use std::ops::Range;

/// The target that takes no part in the loss.
pub use lockstep_tensor::cross_entropy::IGNORE;

/// How large a micro-batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicrobatchShape {
    /// Sequences in the micro-batch (the microbatch).
    pub sequences: usize,
    /// Tokens in each sequence.
    pub tokens: usize,
}

impl MicrobatchShape {
    /// Rows of the micro-batch's activations: one per token.
    pub const fn rows(self) -> usize {
        self.sequences * self.tokens
    }
}

/// A microbatch: the unit that goes forward and backward in one piece under every layout.
#[derive(Clone, Copy, Debug)]
pub struct Microbatch<'a> {
    /// Its size.
    pub shape: MicrobatchShape,
    /// Token of each row.
    pub inputs: &'a [u32],
    /// Token to predict at each row, or [`IGNORE`].
    pub targets: &'a [u32],
    /// Index of the micro-batch's first sequence in the global batch of this step.
    pub first_sample: u64,
    /// Targets of the *global* batch that are not [`IGNORE`]: the denominator of the loss.
    pub num_targets: u64,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Backward follows; dropout masks are a function of seed, step and the element's place.
    Train {
        /// The run's seed.
        seed: u64,
        /// The optimizer step.
        step: u64,
        /// What the loss is multiplied by before backward, and with it every gradient.
        loss_scale: LossScale,
    },
    /// Forward only, without dropout.
    Evaluate,
}

/// What every call of a block receives besides its own buffers.
pub struct Context<'a> {
    /// The device.
    pub cpu: &'a Cpu,
    /// The micro-batch that passes.
    pub microbatch: &'a Microbatch<'a>,
    /// What the pass is for.
    pub mode: Mode,
    /// Memory for the duration of the call.
    pub scratch: &'a mut Scratch,
    /// Completes what the slices of the model that are held here make.
    pub collectives: &'a mut dyn TensorCollectives,
}

/// What a decoding call receives: new tokens of one sequence whose past is in the cache.
pub struct DecodeContext<'a> {
    /// The device.
    pub cpu: &'a Cpu,
    /// The new tokens.
    pub tokens: &'a [u32],
    /// Position of the first of them, which is the number of positions in the cache.
    pub first_position: usize,
    /// Memory for the duration of the call.
    pub scratch: &'a mut Scratch,
}

/// What a block consumes and produces, and how wide a row of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockIo {
    /// Reads the micro-batch's tokens; its input slice is empty.
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
    /// Ends in the loss; its output slice is empty.
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

    /// Whether it lies between other blocks: what it saves waits for its backward.
    pub const fn is_layer(self) -> bool {
        matches!(self, Self::StreamToStream { .. })
    }
}

/// Number of elements a block saves between forward and backward, besides its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedLen {
    /// Values that are dear to compute again.
    pub kept: usize,
    /// Values that [`Recompute::Selective`] computes again from the kept ones.
    pub rebuilt: usize,
}

/// The memory behind [`SavedLen`].
#[derive(Debug)]
pub struct Saved<'a> {
    /// Values that are dear to compute again.
    pub kept: &'a mut [f32],
    /// Values that [`Recompute::Selective`] computes again.
    pub rebuilt: &'a mut [f32],
}

impl Saved<'_> {
    /// The same memory for a shorter time.
    pub fn reborrow(&mut self) -> Saved<'_> {
        Saved { kept: self.kept, rebuilt: self.rebuilt }
    }
}

/// What backward finds saved, and what it must first compute again. The values are computed by the
/// same kernels on the same micro-batch, so the choice never changes a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Everything was saved.
    #[default]
    None,
    /// The kept values were saved: attention is run again.
    Selective,
    /// Only the input of the block was saved.
    Full,
}

/// One of the ways in which a micro-batch passes a block.
#[derive(Clone, Copy, Debug)]
pub enum Pass<'a> {
    /// Forward.
    Forward,
    /// What backward must first compute again.
    Recompute(Recompute),
    /// Backward, with gradients for these stretches of the block's flat buffer.
    Backward(&'a [Range<usize>]),
    /// The half of backward that gives gradients of inputs.
    BackwardInputs,
    /// The half that gives gradients for these stretches.
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

/// A part of a model with its own parameters: see the module's text.
pub trait Block: Send + Sync {
    /// Unique in the model; a prefix of its parameters' names where they share one.
    fn name(&self) -> &str;

    /// The parameters, in the order of the flat buffer, without gaps.
    fn params(&self) -> &[Param];

    /// What it consumes and produces.
    fn io(&self) -> BlockIo;

    /// Exact number of elements saved for a micro-batch of this shape.
    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen;

    /// Largest scratch that any call on a micro-batch of this shape takes.
    fn scratch_len(&self, shape: MicrobatchShape) -> usize;

    /// Model FLOPs of one token in sequences of `num_tokens`; recomputation is not counted.
    fn flops_per_token(&self, num_tokens: usize) -> Flops;

    /// The calls that a pass makes on the context's exchange, in their order.
    fn collective_calls(&self, _shape: MicrobatchShape, _pass: Pass<'_>) -> Vec<CollectiveCall> {
        Vec::new()
    }

    /// Computes `output_tc` and fills `saved`; returns the sum of the micro-batch's token losses (zero
    /// for blocks that do not end in the loss).
    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        output_tc: &mut [f32],
        saved: Saved<'_>,
    ) -> f64;

    /// Fills again what `what` left out of `saved`, to the same bits. A block that is cheap or
    /// whose backward follows at once keeps the default: it is asked to save everything.
    fn recompute(
        &self,
        _ctx: &mut Context<'_>,
        _params: &[f32],
        _input_tc: &[f32],
        _saved: Saved<'_>,
        what: Recompute,
    ) {
        assert_eq!(what, Recompute::None, "{} saves everything", self.name());
    }

    /// Turns the gradient of the output in `d_stream_tc` into that of the input, in place, and
    /// *adds* the gradients of parameters that are trained to `grads`: what is frozen takes
    /// no work. `saved` stays as it was.
    /// The slice has room for rows of the wider of the two; either lies at its front.
    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        grads: Grads<'_>,
    );

    /// Number of elements that [`Self::backward_inputs`] keeps for [`Self::backward_weights`].
    fn deferred_len(&self, shape: MicrobatchShape) -> usize {
        shape.rows() * self.io().max_width()
    }

    /// The first half of [`Self::backward`], where it comes in two: the gradient of the input, in
    /// `d_stream_tc`, and in `deferred` what the second half needs. Both halves together give the bits
    /// of the whole. A block that is cheap keeps the default, which computes gradients of inputs
    /// twice.
    fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        deferred: &mut [f32],
    ) {
        deferred[..d_stream_tc.len()].copy_from_slice(d_stream_tc);
        self.backward(ctx, params, input_tc, saved, d_stream_tc, Grads::none());
    }

    /// The second half: the gradients of parameters that are trained, *added* to `grads`. `deferred` is
    /// of no use after it.
    fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        deferred: &mut [f32],
        grads: Grads<'_>,
    ) {
        self.backward(ctx, params, input_tc, saved, deferred, grads);
    }

    /// Elements of the cache that decoding needs for `num_positions` tokens.
    fn cache_len(&self, _num_positions: usize) -> usize {
        0
    }

    /// Largest scratch that decoding `num_tokens` new tokens takes.
    fn decode_scratch_len(&self, _num_tokens: usize) -> usize {
        0
    }

    /// Forward for new tokens of one sequence; keys and values join the cache. The block that ends
    /// in the loss writes the logits of the last token instead. The same bits as `forward` would
    /// give on the whole sequence. Blocks of problems that have no classes keep the default: nobody
    /// asks them for logits.
    fn decode(
        &self,
        _ctx: &mut DecodeContext<'_>,
        _params: &[f32],
        _input_tc: &[f32],
        _output: &mut [f32],
        _cache: &mut [f32],
    ) {
        unreachable!("{} has no logits", self.name());
    }

    /// Length of the flat buffer.
    fn num_params(&self) -> usize {
        self.params().last().map_or(0, |last| last.range().end)
    }
}

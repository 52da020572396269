//! Token-by-token generation of one sequence with a key-value cache.
//!
//! Each layer caches the keys and values of every position, so a new token costs one row of work
//! instead of a whole forward pass. On the CPU the kernels are those of training, and the result of
//! a row does not depend on other rows, so the logits equal those of a full forward pass bit for
//! bit. Accelerators have kernels of their own for one row: their logits equal those of another run
//! that is fed the same tokens in the same calls.

use crate::block::{BlockIo, DecodeContext};
use crate::blueprint::Blueprint;
use crate::formats::floats as floats_of;
use crate::scratch::Scratch;
use lockstep_tensor::device::{Buffer, Device, Dtype, Result, View, ViewMut};

/// State of a sequence during generation.
pub struct Decoder<'a> {
    blueprint: &'a Blueprint,
    device: &'a dyn Device,
    /// One per block.
    caches: Vec<Buffer>,
    /// Positions in the cache.
    num_positions: usize,
    /// New tokens.
    tokens: Buffer,
    /// Input and output of the current block.
    streams: [Buffer; 2],
    logits_v: Buffer,
    /// Logits on the host.
    host_logits_v: Vec<f32>,
    scratch: Scratch,
    max_tokens: usize,
}

impl<'a> Decoder<'a> {
    /// Starts an empty sequence on a device that accepts up to `max_tokens` tokens per call.
    pub fn new(
        blueprint: &'a Blueprint,
        device: &'a dyn Device,
        max_tokens: usize,
    ) -> Result<Self> {
        let blocks = &blueprint.blocks;
        let scratch_len = blocks.iter().map(|block| block.decode_scratch_len(max_tokens)).max();
        let floats = |len: usize| device.allocate(Dtype::F32, len);
        let stream_len = floats_of(blueprint.activations, max_tokens * blueprint.max_width());
        let caches = blocks.iter().map(|block| floats(block.cache_len(blueprint.context)));
        Ok(Self {
            blueprint,
            device,
            caches: caches.collect::<Result<_>>()?,
            num_positions: 0,
            tokens: device.allocate(Dtype::U32, max_tokens)?,
            streams: [floats(stream_len)?, floats(stream_len)?],
            logits_v: floats(blueprint.vocab)?,
            host_logits_v: vec![0.0; blueprint.vocab],
            scratch: Scratch::new(device, scratch_len.unwrap_or(0))?,
            max_tokens,
        })
    }

    /// Number of tokens so far.
    pub fn num_positions(&self) -> usize {
        self.num_positions
    }

    /// Number of further tokens that fit the context.
    pub fn num_remaining(&self) -> usize {
        self.blueprint.context - self.num_positions
    }

    /// Clears the sequence.
    pub fn reset(&mut self) {
        self.num_positions = 0;
    }

    /// Appends tokens to the sequence and returns the logits after the last of them. `params` holds
    /// the flat buffer of each block, on the device.
    ///
    /// # Panics
    /// Without a token, with more than `max_tokens`, or with more than [`Self::num_remaining`].
    pub fn feed<'p, P>(&mut self, params: &'p [P], tokens: &[u32]) -> Result<&[f32]>
    where
        View<'p>: From<&'p P>,
    {
        self.queue(params, tokens)?;
        self.logits()
    }

    /// The first half of [`Self::feed`]: queues the work on the device, and does not wait for it.
    ///
    /// # Panics
    /// As [`Self::feed`].
    pub fn queue<'p, P>(&mut self, params: &'p [P], tokens: &[u32]) -> Result<()>
    where
        View<'p>: From<&'p P>,
    {
        assert!((1..=self.max_tokens).contains(&tokens.len()), "1 to {} tokens", self.max_tokens);
        assert!(
            tokens.len() <= self.num_remaining(),
            "the context holds {}",
            self.blueprint.context
        );
        assert_eq!(params.len(), self.blueprint.blocks.len(), "a buffer per block");
        let (device, num_tokens, dtype) = (self.device, tokens.len(), self.blueprint.activations);
        device.copy(View::of(tokens), self.tokens.view_mut().range(0..num_tokens))?;
        let [mut input, mut output] = self.streams.each_mut();
        let blocks = self.blueprint.blocks.iter().zip(params).zip(&mut self.caches);
        for ((block, params), cache) in blocks {
            let mut ctx = DecodeContext {
                device,
                tokens: self.tokens.view().range(0..num_tokens),
                first_position: self.num_positions,
                scratch: &mut self.scratch,
            };
            let io = block.io();
            let target = match io {
                BlockIo::StreamToLoss { .. } => self.logits_v.view_mut(),
                _ => output.view_mut().cast(dtype).range(0..num_tokens * io.output_width()),
            };
            let source = input.view().cast(dtype).range(0..num_tokens * io.input_width());
            block.decode(&mut ctx, params.into(), source, target, cache.view_mut())?;
            std::mem::swap(&mut input, &mut output);
        }
        self.num_positions += num_tokens;
        Ok(())
    }

    /// The second half of [`Self::feed`]: waits for the logits after the last token.
    pub fn logits(&mut self) -> Result<&[f32]> {
        self.device.copy(self.logits_v.view(), ViewMut::of(&mut self.host_logits_v))?;
        Ok(&self.host_logits_v)
    }
}

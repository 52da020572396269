//! Token-by-token generation with a key-value cache, of one sequence or of several together.
//!
//! Each layer caches the keys and values of every position, so a new token costs one row of work
//! instead of a whole forward pass. On the CPU the kernels are those of training, and the result of
//! a row does not depend on other rows, so the logits equal those of a full forward pass bit for
//! bit. Accelerators have kernels of their own for one row: their logits equal those of another run
//! that is fed the same tokens in the same calls.
//!
//! Several sequences that have one new token each pass together: the weights are read once for all
//! of them, and the logits of each are those of its own pass.

use crate::block::{BlockIo, CachedSequence, DecodeContext};
use crate::blueprint::Blueprint;
use crate::formats::floats as floats_of;
use crate::scratch::Scratch;
use lockstep_tensor::device::{Buffer, Device, Dtype, Result, View, ViewMut};
use std::ops::Range;

/// State of sequences during generation.
pub struct Decoder<'a> {
    blueprint: &'a Blueprint,
    device: &'a dyn Device,
    /// One per block, with a part for each sequence.
    caches: Vec<Buffer>,
    /// Positions in the cache of each sequence.
    num_positions: Vec<usize>,
    /// Sequence to which calls for one belong.
    selected: usize,
    /// New tokens: fed by the host, or chosen on the device.
    tokens: Buffer,
    /// Number of chosen tokens whose row had a logit that is not a number.
    num_invalid: Buffer,
    /// Chosen tokens on the host.
    host_tokens: Vec<u32>,
    /// Input and output of the current block.
    streams: [Buffer; 2],
    logits_v: Buffer,
    /// Logits on the host.
    host_logits_v: Vec<f32>,
    scratch: Scratch,
    max_tokens: usize,
}

impl<'a> Decoder<'a> {
    /// Most tokens of one [`Self::queue_greedy`].
    pub const MAX_GREEDY: usize = 16;

    /// Starts an empty sequence on a device that accepts up to `max_tokens` tokens per call.
    pub fn new(
        blueprint: &'a Blueprint,
        device: &'a dyn Device,
        max_tokens: usize,
    ) -> Result<Self> {
        Self::of_sequences(blueprint, device, max_tokens, 1)
    }

    /// Starts several empty sequences, each of which accepts up to `max_tokens` tokens per call.
    /// The first is selected.
    pub fn of_sequences(
        blueprint: &'a Blueprint,
        device: &'a dyn Device,
        max_tokens: usize,
        num_sequences: usize,
    ) -> Result<Self> {
        let blocks = &blueprint.blocks;
        let max_tokens = max_tokens.max(num_sequences);
        let scratch_len = blocks.iter().map(|block| block.decode_scratch_len(max_tokens)).max();
        let floats = |len: usize| device.allocate(Dtype::F32, len);
        let stream_len = floats_of(blueprint.activations, max_tokens * blueprint.max_width());
        let cache_len = |len: usize| num_sequences * len;
        let caches =
            blocks.iter().map(|block| floats(cache_len(block.cache_len(blueprint.context))));
        Ok(Self {
            blueprint,
            device,
            caches: caches.collect::<Result<_>>()?,
            num_positions: vec![0; num_sequences],
            selected: 0,
            tokens: device.allocate(Dtype::U32, max_tokens.max(Self::MAX_GREEDY))?,
            num_invalid: device.allocate(Dtype::U32, 1)?,
            host_tokens: Vec::with_capacity(Self::MAX_GREEDY),
            streams: [floats(stream_len)?, floats(stream_len)?],
            logits_v: floats(num_sequences * blueprint.vocab)?,
            host_logits_v: vec![0.0; num_sequences * blueprint.vocab],
            scratch: Scratch::new(device, scratch_len.unwrap_or(0))?,
            max_tokens,
        })
    }

    /// Selects the sequence to which the calls for one sequence belong.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn select(&mut self, sequence: usize) {
        assert!(sequence < self.num_positions.len(), "{} sequences", self.num_positions.len());
        self.selected = sequence;
    }

    /// Number of tokens so far.
    pub fn num_positions(&self) -> usize {
        self.num_positions[self.selected]
    }

    /// Number of further tokens that fit the context.
    pub fn num_remaining(&self) -> usize {
        self.blueprint.context - self.num_positions()
    }

    /// Clears the sequence.
    pub fn reset(&mut self) {
        self.num_positions[self.selected] = 0;
    }

    /// Forgets all tokens after the first few.
    ///
    /// # Panics
    /// With fewer tokens so far.
    pub fn rewind(&mut self, num_tokens: usize) {
        assert!(num_tokens <= self.num_positions(), "{} tokens so far", self.num_positions());
        self.num_positions[self.selected] = num_tokens;
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

    /// Appends one token to each of these sequences, and returns a row of logits for each.
    ///
    /// # Panics
    /// Without a token, or if a context is full.
    pub fn feed_each<'p, P>(&mut self, params: &'p [P], tokens: &[(usize, u32)]) -> Result<&[f32]>
    where
        View<'p>: From<&'p P>,
    {
        let ids: Vec<u32> = tokens.iter().map(|(_, token)| *token).collect();
        self.device.copy(View::of(&ids), self.tokens.view_mut().range(0..ids.len()))?;
        let sequence =
            |part: usize| CachedSequence { first_position: self.num_positions[part], part };
        let sequences: Vec<_> = tokens.iter().map(|(part, _)| sequence(*part)).collect();
        self.pass(params, 0..ids.len(), &sequences)?;
        let logits = 0..ids.len() * self.blueprint.vocab;
        let host = &mut self.host_logits_v[logits.clone()];
        self.device.copy(self.logits_v.view().range(logits), ViewMut::of(host))?;
        Ok(host)
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
        let num_tokens = tokens.len();
        self.device.copy(View::of(tokens), self.tokens.view_mut().range(0..num_tokens))?;
        self.forward(params, 0..num_tokens)
    }

    /// Queues the choice of the `num_tokens` likeliest tokens, one after the other, after those of
    /// [`Self::queue`]. All but the last are appended to the sequence. Without the host between two
    /// tokens, a device works all the time.
    ///
    /// # Panics
    /// Without a token, with more than [`Self::MAX_GREEDY`], or if more than
    /// [`Self::num_remaining`] were appended.
    pub fn queue_greedy<'p, P>(&mut self, params: &'p [P], num_tokens: usize) -> Result<()>
    where
        View<'p>: From<&'p P>,
    {
        assert!((1..=Self::MAX_GREEDY).contains(&num_tokens), "1 to {}", Self::MAX_GREEDY);
        for index in 0..num_tokens {
            if index > 0 {
                self.forward(params, index - 1..index)?;
            }
            let chosen = self.tokens.view_mut().range(index..index + 1);
            let logits = self.logits_v.view().range(0..self.blueprint.vocab);
            self.device.greedy_token(logits, chosen, self.num_invalid.view_mut())?;
        }
        self.host_tokens.resize(num_tokens, 0);
        Ok(())
    }

    /// Waits for the tokens of [`Self::queue_greedy`].
    ///
    /// # Panics
    /// When a logit is not a number: loaded weights are checked to be finite.
    pub fn chosen(&mut self) -> Result<&[u32]> {
        let mut num_invalid = [0u32];
        let chosen = self.tokens.view().range(0..self.host_tokens.len());
        self.device.copy(chosen, ViewMut::of(&mut self.host_tokens))?;
        self.device.copy(self.num_invalid.view(), ViewMut::of(&mut num_invalid))?;
        assert_eq!(num_invalid, [0], "logits are numbers");
        Ok(&self.host_tokens)
    }

    /// Queues the pass of these new tokens of the selected sequence through all blocks.
    fn forward<'p, P>(&mut self, params: &'p [P], new: Range<usize>) -> Result<()>
    where
        View<'p>: From<&'p P>,
    {
        let (first_position, part) = (self.num_positions(), self.selected);
        self.pass(params, new, &[CachedSequence { first_position, part }])
    }

    /// Queues the pass of new tokens of one sequence, or of one of each of several.
    fn pass<'p, P>(
        &mut self,
        params: &'p [P],
        new: Range<usize>,
        sequences: &[CachedSequence],
    ) -> Result<()>
    where
        View<'p>: From<&'p P>,
    {
        let (num_each, context) = (new.len() / sequences.len(), self.blueprint.context);
        for CachedSequence { first_position, part } in sequences {
            assert!(first_position + num_each <= context, "the context holds {context}");
            self.num_positions[*part] += num_each;
        }
        assert_eq!(params.len(), self.blueprint.blocks.len(), "a buffer per block");
        let (device, num_tokens, dtype) = (self.device, new.len(), self.blueprint.activations);
        let [mut input, mut output] = self.streams.each_mut();
        let blocks = self.blueprint.blocks.iter().zip(params).zip(&mut self.caches);
        for ((block, params), cache) in blocks {
            let mut ctx = DecodeContext {
                device,
                tokens: self.tokens.view().range(new.clone()),
                sequences,
                num_cache_parts: self.num_positions.len(),
                scratch: &mut self.scratch,
            };
            let io = block.io();
            let target = match io {
                BlockIo::StreamToLoss { .. } => {
                    self.logits_v.view_mut().range(0..sequences.len() * self.blueprint.vocab)
                }
                _ => output.view_mut().cast(dtype).range(0..num_tokens * io.output_width()),
            };
            let source = input.view().cast(dtype).range(0..num_tokens * io.input_width());
            block.decode(&mut ctx, params.into(), source, target, cache.view_mut())?;
            std::mem::swap(&mut input, &mut output);
        }
        Ok(())
    }

    /// The second half of [`Self::feed`]: waits for the logits after the last token.
    pub fn logits(&mut self) -> Result<&[f32]> {
        let logits = 0..self.blueprint.vocab;
        let host = &mut self.host_logits_v[logits.clone()];
        self.device.copy(self.logits_v.view().range(logits), ViewMut::of(host))?;
        Ok(host)
    }
}

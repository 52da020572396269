//! Token-by-token generation of one sequence with a key-value cache.
//!
//! Each layer caches the keys and values of every position, so a new token costs one row of work
//! instead of a whole forward pass. The kernels are those of training, and the result of a row does
//! not depend on other rows, so the logits equal those of a full forward pass bit for bit.

use crate::block::{BlockIo, DecodeContext};
use crate::blueprint::Blueprint;
use crate::scratch::Scratch;
use lockstep_tensor::Cpu;

/// State of a sequence during generation.
pub struct Decoder<'a> {
    blueprint: &'a Blueprint,
    /// One per block.
    caches: Vec<Vec<f32>>,
    /// Positions in the cache.
    num_positions: usize,
    /// Input and output of the current block.
    streams: [Vec<f32>; 2],
    logits_v: Vec<f32>,
    scratch: Scratch,
    max_tokens: usize,
}

impl<'a> Decoder<'a> {
    /// Starts an empty sequence that accepts up to `max_tokens` tokens per call.
    pub fn new(blueprint: &'a Blueprint, max_tokens: usize) -> Self {
        let blocks = &blueprint.blocks;
        let scratch_len = blocks.iter().map(|block| block.decode_scratch_len(max_tokens)).max();
        let stream = vec![0.0; max_tokens * blueprint.max_width()];
        Self {
            blueprint,
            caches: blocks.iter().map(|b| vec![0.0; b.cache_len(blueprint.context)]).collect(),
            num_positions: 0,
            streams: [stream.clone(), stream],
            logits_v: vec![0.0; blueprint.vocab],
            scratch: Scratch::new(scratch_len.unwrap_or(0)),
            max_tokens,
        }
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
    /// the flat buffer of each block.
    ///
    /// # Panics
    /// Without a token, with more than `max_tokens`, or with more than [`Self::num_remaining`].
    pub fn feed<P: AsRef<[f32]>>(&mut self, cpu: &Cpu, params: &[P], tokens: &[u32]) -> &[f32] {
        assert!((1..=self.max_tokens).contains(&tokens.len()), "1 to {} tokens", self.max_tokens);
        assert!(
            tokens.len() <= self.num_remaining(),
            "the context holds {}",
            self.blueprint.context
        );
        assert_eq!(params.len(), self.blueprint.blocks.len(), "a buffer per block");
        let [mut input, mut output] = self.streams.each_mut().map(|stream| &mut stream[..]);
        let blocks = self.blueprint.blocks.iter().zip(params).zip(&mut self.caches);
        for ((block, params), cache) in blocks {
            let mut ctx = DecodeContext {
                cpu,
                tokens,
                first_position: self.num_positions,
                scratch: &mut self.scratch,
            };
            let io = block.io();
            let target = match io {
                BlockIo::StreamToLoss { .. } => &mut self.logits_v,
                _ => &mut output[..tokens.len() * io.output_width()],
            };
            let source = &input[..tokens.len() * io.input_width()];
            block.decode(&mut ctx, params.as_ref(), source, target, cache);
            std::mem::swap(&mut input, &mut output);
        }
        self.num_positions += tokens.len();
        &self.logits_v
    }
}

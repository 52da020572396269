//! Activations by closed form, as they are published for mixed precision (arXiv:2205.05198): bytes
//! that a layer of a GPT keeps of a microbatch between forward and backward.
//!
//! What this engine keeps is counted block by block instead ([`super::activations_by_block`]); the
//! closed forms are for models that are not here.

/// A layer and a microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Tokens of a sequence (s).
    pub tokens: u64,
    /// Sequences of the microbatch (b).
    pub sequences: u64,
    /// Width of the model (h).
    pub width: u64,
    /// Heads of attention (a).
    pub heads: u64,
    /// Holders of slices (t).
    pub holders: u64,
}

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Everything; with or without rows divided among holders (sequence parallelism).
    All {
        /// Whether they are.
        rows_are_divided: bool,
    },
    /// All but scores of attention, which are computed again.
    Selective {
        /// Whether rows are divided.
        rows_are_divided: bool,
    },
    /// The input of the layer.
    Input,
}

impl Layer {
    /// sbh, what one number for each token and dimension would be.
    const fn stream(self) -> f64 {
        (self.tokens * self.sequences * self.width) as f64
    }

    /// Bytes of one layer.
    ///
    /// Of the 34 bytes, 11 are attention's, 19 the feed-forward part's and 4 the norms'; 24 of them
    /// lie inside the halves that holders divide. A score takes 5: its softmax, a mask, and the
    /// softmax with dropout.
    pub fn bytes(self, kept: Kept) -> f64 {
        let t = self.holders as f64;
        let scores = 5.0 * (self.heads * self.tokens) as f64 / self.width as f64;
        let each = match kept {
            Kept::All { rows_are_divided: true } => (34.0 + scores) / t,
            Kept::All { rows_are_divided: false } => 10.0 + (24.0 + scores) / t,
            Kept::Selective { rows_are_divided: true } => 34.0 / t,
            Kept::Selective { rows_are_divided: false } => 10.0 + 24.0 / t,
            Kept::Input => 2.0,
        };
        self.stream() * each
    }

    /// Bytes of the head with logits of 32 bits over a vocabulary.
    pub fn head_bytes(self, vocab: u64) -> f64 {
        let each = 4.0 * (1.0 + vocab as f64 / self.width as f64);
        self.stream() * each / self.holders as f64
    }
}

/// The number of segments of a model that takes least where every segment keeps its input and one
/// of them at a time is computed again: c·A_in + (l/c)·A_mid is least at √(l·A_mid/A_in).
pub fn best_segments(num_layers: u64, input_bytes: f64, layer_bytes: f64) -> f64 {
    (num_layers as f64 * layer_bytes / input_bytes).sqrt()
}

/// What so many segments take.
pub fn segmented_bytes(
    num_layers: u64,
    num_segments: f64,
    input_bytes: f64,
    layer_bytes: f64,
) -> f64 {
    num_segments * input_bytes + num_layers as f64 / num_segments * layer_bytes
}

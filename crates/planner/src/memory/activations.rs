//! Activation memory of a GPT layer in closed form, for mixed precision (Korthikanti et al. 2022,
//! arXiv:2205.05198).
//!
//! Activations of this engine are counted block by block instead ([`super::activations_by_block`]);
//! the closed forms are for other models.

/// A layer and a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Tokens of a sequence (s).
    pub tokens: u64,
    /// Sequences of the micro-batch (b).
    pub sequences: u64,
    /// Hidden size (h).
    pub width: u64,
    /// Attention heads (a).
    pub heads: u64,
    /// Tensor-parallel degree (t).
    pub tensor_degree: u64,
}

/// Activations that are saved for backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedActivations {
    /// All of them.
    All {
        /// Whether sequence parallelism splits the replicated activations.
        sequence_parallel: bool,
    },
    /// All but attention scores, which are recomputed.
    Selective {
        /// Whether sequence parallelism splits the replicated activations.
        sequence_parallel: bool,
    },
    /// The input of the layer.
    Input,
}

impl Layer {
    /// sbh: one element per token and dimension.
    const fn stream(self) -> f64 {
        (self.tokens * self.sequences * self.width) as f64
    }

    /// Bytes of one layer.
    ///
    /// Of the 34 bytes, 11 are attention's, 19 the feed-forward part's and 4 the norms'; 24 of them
    /// lie inside the tensor-parallel regions. A score takes 5: its softmax, a mask, and the
    /// softmax with dropout.
    pub fn bytes(self, saved: SavedActivations) -> f64 {
        let t = self.tensor_degree as f64;
        let scores = 5.0 * (self.heads * self.tokens) as f64 / self.width as f64;
        let each = match saved {
            SavedActivations::All { sequence_parallel: true } => (34.0 + scores) / t,
            SavedActivations::All { sequence_parallel: false } => 10.0 + (24.0 + scores) / t,
            SavedActivations::Selective { sequence_parallel: true } => 34.0 / t,
            SavedActivations::Selective { sequence_parallel: false } => 10.0 + 24.0 / t,
            SavedActivations::Input => 2.0,
        };
        self.stream() * each
    }

    /// Bytes of the head with 32-bit logits over a vocabulary.
    pub fn head_bytes(self, vocab: u64) -> f64 {
        let each = 4.0 * (1.0 + vocab as f64 / self.width as f64);
        self.stream() * each / self.tensor_degree as f64
    }
}

/// Number of recomputation segments with the least memory (Chen et al. 2016): c·A_in + (l/c)·A_mid
/// is least at √(l·A_mid/A_in).
pub fn best_segments(num_layers: u64, input_bytes: f64, layer_bytes: f64) -> f64 {
    (num_layers as f64 * layer_bytes / input_bytes).sqrt()
}

/// Bytes of a number of segments.
pub fn segmented_bytes(
    num_layers: u64,
    num_segments: f64,
    input_bytes: f64,
    layer_bytes: f64,
) -> f64 {
    num_segments * input_bytes + num_layers as f64 / num_segments * layer_bytes
}

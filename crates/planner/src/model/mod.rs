//! Model descriptions: shapes, parameter counts and FLOPs.
//!
//! A model here has no weights and no kernels, only the numbers that its paper publishes. Parameter
//! counts are exact, down to biases and norms, because memory follows from them.

mod flops;
mod hugging_face;
mod parameters;
mod presets;

pub use flops::{FlopsConvention, step_flops};
pub use hugging_face::{HuggingFaceConfig, MODEL_TYPES};
pub use presets::{preset, presets};

use serde::{Deserialize, Serialize};

/// Kind of attention kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// Attention scores are written to memory.
    Materialised,
    /// One kernel keeps scores on chip and skips masked pairs (FlashAttention, Dao et al. 2022).
    Fused,
}

/// Mixture-of-experts feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub num: u64,
    /// Experts per token.
    pub per_token: u64,
    /// Inner width of an expert.
    pub ffn: u64,
    /// Inner width of the shared expert; 0 without one.
    pub shared_ffn: u64,
    /// Leading layers with a dense feed-forward part.
    pub dense_layers: u64,
    /// Whether the router has a bias per expert.
    pub router_bias: bool,
}

impl Experts {
    /// Routed experts in every layer, and no shared one.
    pub const fn routed(num: u64, per_token: u64, ffn: u64) -> Self {
        Self { num, per_token, ffn, shared_ffn: 0, dense_layers: 0, router_bias: false }
    }
}

/// Multi-head latent attention (DeepSeek-V2, 2024): low-rank queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latent {
    /// Rank of the query projection; 0 for a full projection.
    pub query_rank: u64,
    /// Rank of the joint key and value projection.
    pub key_value_rank: u64,
    /// Head width without rotary positions.
    pub plain_dim: u64,
    /// Head width with rotary positions; heads share this part of the keys.
    pub rotary_dim: u64,
    /// Head width of values.
    pub value_dim: u64,
}

/// Shape of a transformer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent choice")]
pub struct Model {
    /// Name of the model.
    pub name: String,
    /// Layers (L).
    pub layers: u64,
    /// Hidden size (h).
    pub width: u64,
    /// Query heads (a).
    pub heads: u64,
    /// Key-value heads (g).
    pub kv_heads: u64,
    /// Width of a head; h/a in most models.
    pub head_dim: u64,
    /// Inner width of the feed-forward part (f).
    pub ffn: u64,
    /// Whether the feed-forward part is gated (SwiGLU).
    pub gated: bool,
    /// Vocabulary size (V).
    pub vocab: u64,
    /// Sequence length (s).
    pub context: u64,
    /// Whether the output projection shares the embedding.
    pub tied: bool,
    /// Rows of a learned position table; 0 without one.
    pub positions: u64,
    /// Whether linear layers and norms have biases.
    pub biases: bool,
    /// Whether query, key and value projections have biases where others have none (Qwen2).
    pub query_key_value_biases: bool,
    /// Norms of queries and keys.
    pub query_key_norms: QueryKeyNorms,
    /// Norms of the hidden size beside those of layers and the final one.
    pub extra_norms: u64,
    /// Norms per layer: two, one where attention and feed-forward share it, or four with norms
    /// behind both (Gemma 2).
    pub layer_norms: u64,
    /// Whether the model uses dropout.
    pub dropout: bool,
    /// Kind of attention kernel.
    pub attention: Attention,
    /// Experts of a mixture-of-experts model.
    pub experts: Option<Experts>,
    /// Latent attention, if the model uses it.
    pub latent: Option<Latent>,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryKeyNorms {
    /// None.
    #[default]
    None,
    /// Of each head, with a vector of its width for all queries and one for all keys (Qwen3).
    Heads,
    /// Of all queries together, and of all keys (OLMo 2).
    Whole,
}

impl Latent {
    /// Latent attention of DeepSeek-V2 and V3.
    pub const DEEPSEEK: Self = Self {
        query_rank: 1536,
        key_value_rank: 512,
        plain_dim: 128,
        rotary_dim: 64,
        value_dim: 128,
    };
}

impl Model {
    /// A GPT: learned positions, biases, tied embedding, ffn = 4h.
    pub fn gpt(name: &str, layers: u64, width: u64, heads: u64, vocab: u64, context: u64) -> Self {
        Self {
            name: name.to_owned(),
            layers,
            width,
            heads,
            kv_heads: heads,
            head_dim: width / heads.max(1),
            ffn: 4 * width,
            gated: false,
            vocab,
            context,
            tied: true,
            positions: context,
            biases: true,
            query_key_value_biases: false,
            query_key_norms: QueryKeyNorms::None,
            extra_norms: 0,
            layer_norms: 2,
            dropout: true,
            attention: Attention::Materialised,
            experts: None,
            latent: None,
        }
    }

    /// A Llama: rotary positions, no biases, gated feed-forward part, untied output.
    pub fn llama(name: &str, layers: u64, width: u64, heads: u64, kv_heads: u64, ffn: u64) -> Self {
        Self {
            kv_heads,
            ffn,
            gated: true,
            tied: false,
            positions: 0,
            biases: false,
            dropout: false,
            attention: Attention::Fused,
            ..Self::gpt(name, layers, width, heads, 32_000, 2048)
        }
    }

    /// Bytes per token in a token file.
    pub const fn token_bytes(&self) -> f64 {
        if self.vocab > 1 << 16 { 4.0 } else { 2.0 }
    }

    /// Replaces vocabulary size and sequence length.
    pub fn reading(self, vocab: u64, context: u64) -> Self {
        let positions = if self.positions > 0 { context } else { 0 };
        Self { vocab, context, positions, ..self }
    }

    /// Width of the queries of all heads.
    pub const fn query_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * (latent.plain_dim + latent.rotary_dim),
            None => self.heads * self.head_dim,
        }
    }

    /// Width of the keys (or values) of all heads.
    pub const fn key_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * (latent.plain_dim + latent.rotary_dim),
            None => self.kv_heads * self.head_dim,
        }
    }

    /// Width of the attention output before its projection.
    pub const fn attended_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * latent.value_dim,
            None => self.heads * self.head_dim,
        }
    }

    /// Input matrices of the feed-forward part: one, or two where it is gated.
    pub const fn ffn_inputs(&self) -> u64 {
        if self.gated { 2 } else { 1 }
    }

    /// Layers with a dense feed-forward part.
    pub fn dense_layers(&self) -> u64 {
        self.experts.map_or(self.layers, |experts| experts.dense_layers)
    }
}

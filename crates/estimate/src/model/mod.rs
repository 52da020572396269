//! Models as numbers: what their shapes are, how many parameters they have, how much they compute.
//!
//! A model here needs no weights and no kernels; it is what a paper's table says of it. Counts of
//! parameters are exact, down to biases and norms, because memory follows from them.

mod flops;
mod parameters;
mod presets;

pub use flops::{Counted, step_flops};
pub use presets::{preset, presets};

use serde::{Deserialize, Serialize};

/// How scores of attention are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// Scores of all pairs are written to memory, as before 2022.
    Materialised,
    /// One kernel that keeps them in registers and skips what causality hides.
    Fused,
}

/// Feed-forward parts of which a router picks some for every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// How many.
    pub num: u64,
    /// How many of them see a token.
    pub per_token: u64,
    /// Inner width of each.
    pub ffn: u64,
    /// Inner width of the part that sees every token; 0 if there is none.
    pub shared_ffn: u64,
    /// First layers that have one wide part instead.
    pub dense_layers: u64,
    /// Whether the router has a bias for each expert.
    pub router_bias: bool,
}

/// Multi-head latent attention: queries, keys and values come from narrow vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latent {
    /// Width of the vector that queries come from.
    pub query_rank: u64,
    /// Width of the vector that keys and values come from.
    pub key_value_rank: u64,
    /// Width of a head's part without positions.
    pub plain_dim: u64,
    /// Width of its part with positions; keys share theirs among heads.
    pub rotary_dim: u64,
    /// Width of a head's values.
    pub value_dim: u64,
}

/// A transformer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Model {
    /// What people call it.
    pub name: String,
    /// Layers (L).
    pub layers: u64,
    /// Width (h).
    pub width: u64,
    /// Heads of queries (a).
    pub heads: u64,
    /// Heads of keys and values (g).
    pub kv_heads: u64,
    /// Width of a head; h/a in most models.
    pub head_dim: u64,
    /// Inner width of the feed-forward part (f).
    pub ffn: u64,
    /// Whether that part multiplies two products (SwiGLU).
    pub gated: bool,
    /// Tokens that it knows (V).
    pub vocab: u64,
    /// Tokens of a sequence (s).
    pub context: u64,
    /// Whether the output shares the embedding.
    pub tied: bool,
    /// Rows of a learned table of positions; 0 if there is none.
    pub positions: u64,
    /// Whether products have biases and norms have them too.
    pub biases: bool,
    /// Norms of the width beside two in a layer and one at the end.
    pub extra_norms: u64,
    /// Norms in a layer: two, or one where both halves share it.
    pub layer_norms: u64,
    /// Whether parts are dropped at random.
    pub dropout: bool,
    /// How scores are computed.
    pub attention: Attention,
    /// Experts, if it has any.
    pub experts: Option<Experts>,
    /// Latent attention, if it has that.
    pub latent: Option<Latent>,
}

impl Model {
    /// A GPT: learned positions, biases, one embedding for input and output, ffn = 4h.
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
            extra_norms: 0,
            layer_norms: 2,
            dropout: true,
            attention: Attention::Materialised,
            experts: None,
            latent: None,
        }
    }

    /// A Llama: rotary positions, no biases, a gated feed-forward part, an output of its own.
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

    /// Bytes of a token in a file of tokens.
    pub const fn token_bytes(&self) -> f64 {
        if self.vocab > 1 << 16 { 4.0 } else { 2.0 }
    }

    /// The same model with another vocabulary and context.
    pub fn reading(self, vocab: u64, context: u64) -> Self {
        let positions = if self.positions > 0 { context } else { 0 };
        Self { vocab, context, positions, ..self }
    }

    /// Width of all heads' queries together.
    pub const fn query_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * (latent.plain_dim + latent.rotary_dim),
            None => self.heads * self.head_dim,
        }
    }

    /// Width of all heads' keys (or values) together.
    pub const fn key_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * (latent.plain_dim + latent.rotary_dim),
            None => self.kv_heads * self.head_dim,
        }
    }

    /// Width of what attention gives to its output product.
    pub const fn attended_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * latent.value_dim,
            None => self.heads * self.head_dim,
        }
    }

    /// Matrices that go into the feed-forward part: one, or two where it is gated.
    pub const fn ffn_inputs(&self) -> u64 {
        if self.gated { 2 } else { 1 }
    }

    /// Layers with one feed-forward part for every token.
    pub fn dense_layers(&self) -> u64 {
        self.experts.map_or(self.layers, |experts| experts.dense_layers)
    }
}

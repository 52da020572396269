//! Exact parameter counts.

use super::{Model, QueryKeyNorms};

impl Model {
    /// Entries of a layer's attention matrices.
    pub fn attention_matrices(&self) -> u64 {
        let h = self.width;
        let Some(latent) = self.latent else {
            return h * (self.query_width() + 2 * self.key_width()) + self.attended_width() * h;
        };
        let query = match latent.query_rank {
            0 => h * self.query_width(),
            rank => h * rank + rank * self.query_width(),
        };
        let narrow = h * (latent.key_value_rank + latent.rotary_dim);
        let wide = latent.key_value_rank * self.heads * (latent.plain_dim + latent.value_dim);
        query + narrow + wide + self.attended_width() * h
    }

    /// Entries of the matrices of a feed-forward part.
    pub const fn ffn_matrices(&self, inner: u64) -> u64 {
        (self.ffn_inputs() + 1) * self.width * inner
    }

    /// Biases and norms of a layer.
    fn vectors(&self) -> u64 {
        let h = self.width;
        let norm = if self.biases { 2 * h } else { h };
        let attention = self.query_width() + 2 * self.key_width();
        let biases = match (self.biases, self.query_key_value_biases) {
            (true, _) => attention + h + self.ffn_inputs() * self.ffn + h,
            (false, true) => attention,
            (false, false) => 0,
        };
        let head_norms = match self.query_key_norms {
            QueryKeyNorms::None => 0,
            QueryKeyNorms::Heads => 2 * self.head_dim,
            QueryKeyNorms::Whole => self.query_width() + self.key_width(),
        };
        let latent = self.latent.map_or(0, |latent| latent.query_rank + latent.key_value_rank);
        self.layer_norms * norm + biases + head_norms + latent
    }

    /// Parameters of a dense layer.
    pub fn dense_layer_params(&self) -> u64 {
        self.attention_matrices() + self.ffn_matrices(self.ffn) + self.vectors()
    }

    /// Parameters of a mixture-of-experts layer outside its experts: attention, router, shared
    /// expert.
    pub fn expert_layer_shared_params(&self) -> u64 {
        self.experts.map_or(0, |experts| {
            let router =
                self.width * experts.num + if experts.router_bias { experts.num } else { 0 };
            self.attention_matrices()
                + self.vectors()
                + router
                + self.ffn_matrices(experts.shared_ffn)
        })
    }

    /// Parameters of a layer's experts.
    pub fn experts_params(&self) -> u64 {
        self.experts.map_or(0, |experts| experts.num * self.ffn_matrices(experts.ffn))
    }

    /// Parameters of the token and position embeddings.
    pub const fn embedding_params(&self) -> u64 {
        (self.vocab + self.positions) * self.width
    }

    /// Parameters behind the last layer, without an output projection that is tied to the
    /// embedding.
    pub const fn head_params(&self) -> u64 {
        let norm = if self.biases { 2 * self.width } else { self.width };
        norm * (1 + self.extra_norms) + if self.tied { 0 } else { self.vocab * self.width }
    }

    /// Number of parameters.
    pub fn num_params(&self) -> u64 {
        let dense = self.dense_layers();
        let routed = self.layers - dense;
        dense * self.dense_layer_params()
            + routed * (self.expert_layer_shared_params() + self.experts_params())
            + self.embedding_params()
            + self.head_params()
    }

    /// Number of parameters that one token passes.
    pub fn num_active_params(&self) -> u64 {
        let idle = self.experts.map_or(0, |experts| {
            (experts.num - experts.per_token) * self.ffn_matrices(experts.ffn)
        });
        self.num_params() - (self.layers - self.dense_layers()) * idle
    }
}

//! Measurements of synchronization strategies.

/// Distance between replicas at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Mean over ranks of ‖xᵢ − x̄‖².
    pub mean: f64,
    /// Largest ‖xᵢ − x̄‖².
    pub max: f64,
    /// Rank with the largest distance.
    pub worker: usize,
    /// Squared norm of the mean change, ‖x̄ − x₀‖².
    pub moved: f64,
}

/// Compression statistics of a step, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CompressionStats {
    /// Σ‖Q(g) − g‖² / Σ‖g‖² over the ranks' gradients, residuals included.
    pub delta: f64,
    /// Mean norm of the residual over ranks.
    pub residual_norm: f64,
    /// Bytes of a rank's messages.
    pub message_bytes: u64,
    /// Bytes of the uncompressed gradients.
    pub dense_bytes: u64,
}

/// Distance of replicas from their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConsensusDistance {
    /// Mean over ranks of ‖xᵢ − x̄‖².
    pub mean: f64,
    /// Largest ‖xᵢ − x̄‖².
    pub max: f64,
    /// Rank with the largest distance.
    pub worker: usize,
}

/// Graph on which ranks average with neighbors.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Name in recipes.
    pub name: String,
    /// Largest number of neighbors of a rank.
    pub max_degree: usize,
    /// 1 minus the rate at which disagreement shrinks per step.
    pub spectral_gap: f64,
}

/// Aggregation of clients' updates at the end of a round, on the coordinator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundSummary {
    /// Clients sampled.
    pub sampled: usize,
    /// Updates aggregated, delayed ones included.
    pub counted: usize,
    /// Delayed updates among them.
    pub delayed: usize,
    /// Mean of ‖Δᵢ − Δ‖² over them, where Δ is the aggregate.
    pub drift: f64,
    /// Largest ‖Δᵢ − Δ‖², and its client.
    pub drift_max: (f64, usize),
    /// ‖Δ‖².
    pub moved: f64,
    /// ε of all rounds so far, if there is noise.
    pub epsilon: Option<f64>,
}

/// Measurements of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Distance of replicas at the end of a round.
    pub drift: Option<Drift>,
    /// Compression of the gradients.
    pub compression: Option<CompressionStats>,
    /// Aggregation of clients' updates.
    pub aggregation: Option<RoundSummary>,
}

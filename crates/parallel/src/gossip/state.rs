//! Gossip state of a rank.

use super::mixer::Mixer;
use super::push_sum::PushSum;
use super::robust_mixing::RobustMixer;
use lockstep_comm::Comm;

/// Gossip state of a rank.
pub struct Gossip {
    pub(super) mixer: Mixer,
    /// Communicator of the global mean.
    pub(super) comm: Comm,
    pub(super) push: Option<PushSum>,
    /// Byzantine-robust mixing, if enabled.
    pub(super) robust: Option<RobustMixer>,
    /// This rank's own weights, by bucket, while the mean is installed.
    pub(super) own_weights: Vec<Vec<f32>>,
    pub(super) is_mean_installed: bool,
    /// Sum of a bucket in flight.
    pub(super) buffer: Vec<f64>,
    pub(super) rate: f64,
    pub(super) found: Option<ConsensusDistance>,
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

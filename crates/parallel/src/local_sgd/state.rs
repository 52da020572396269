//! Settings and state of local SGD.

use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_optim::Optimizer;

/// Outer optimizer of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OuterOptimizer {
    /// Applies the mean change.
    Average,
    /// Nesterov momentum on the negative mean change.
    Nesterov {
        /// Learning rate.
        lr: f32,
        /// Momentum.
        momentum: f32,
    },
}

/// Local SGD settings of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSgdPlan {
    /// Outer optimizer.
    pub rule: OuterOptimizer,
    /// Whether optimizer state is averaged too.
    pub averages_state: bool,
    /// Size of groups of consecutive ranks that also average within a round; 1 for none.
    pub group: usize,
}

/// A communicator of ranks that average, and this rank's weight: its part of their batch.
pub(super) struct AveragingGroup {
    pub(super) comm: Comm,
    pub(super) weight: f32,
}

/// Local SGD state of a rank.
pub struct LocalSgd {
    pub(super) all: AveragingGroup,
    /// Ranks of this group.
    pub(super) group: Option<AveragingGroup>,
    pub(super) rule: OuterOptimizer,
    /// Whether optimizer state is averaged too.
    pub(super) averages_state: bool,
    /// Weights at the start of the round, by bucket.
    pub(super) anchors: Vec<Vec<f32>>,
    /// Momentum of the outer optimizer, by bucket; equal on all ranks.
    pub(super) velocity: Vec<Vec<f32>>,
    /// Mean change of a bucket in flight.
    pub(super) buffer: Vec<f32>,
}

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

impl AveragingGroup {
    /// Replaces all optimizer state by its mean over the ranks.
    pub(super) fn average_state(&self, optimizer: &mut Optimizer) -> Result<(), CommError> {
        for slot in optimizer.slots().to_vec() {
            for kind in 0..optimizer.state_names().len() {
                let Some(state) = optimizer.state_mut(&slot.name, slot.piece, kind) else {
                    continue;
                };
                for value in &mut *state {
                    *value *= self.weight;
                }
                self.comm.all_reduce(state, Reduction::Sum)?;
            }
        }
        Ok(())
    }
}

//! The memory a worker takes for its model, counted before anything is allocated.
//!
//! Counting is pure, so a recipe can be refused or explained without touching memory; what a
//! [`crate::Replica`] then allocates is the same count, and a test holds the two together.

use crate::lane::Activations;
use crate::leaves::LeafTree;
use crate::replica::ReplicaPlan;
use lockstep_config::OptimName;
use lockstep_model::Blueprint;
use lockstep_optim::Optimizer;

/// Numbers of `f32` by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, mirrors included.
    pub weights: usize,
    /// Sums of gradients: the leaf being filled and those that wait for their sibling.
    pub gradients: usize,
    /// Velocities and running means.
    pub optimizer: usize,
    /// What one lane leaves between forward and backward, and the gradient that passes through.
    pub activations: usize,
    /// Short-lived buffers of the block at work.
    pub scratch: usize,
}

impl Footprint {
    /// What a replica of this plan and its optimizer will hold.
    pub fn plan(blueprint: &Blueprint, plan: &ReplicaPlan, optimizer: OptimName) -> Self {
        let weights = blueprint.blocks.iter().map(|block| block.num_params()).sum();
        let activations = Activations::planned_len(blueprint, plan.lane, plan.recompute);
        Self {
            weights,
            gradients: weights * LeafTree::num_buffers(0..plan.leaves.num_leaves),
            optimizer: blueprint.num_params() * Optimizer::num_states(optimizer),
            activations: activations + plan.lane.rows() * blueprint.width,
            scratch: blueprint.scratch_len(plan.lane),
        }
    }

    /// All of it.
    pub const fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.scratch
    }
}

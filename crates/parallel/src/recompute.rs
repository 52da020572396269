//! Activation recomputation (Chen et al. 2016; selective: Korthikanti et al. 2022).
//!
//! *Full* keeps only a block's input, *selective* drops tensors that are cheap to recompute
//! (attention and activation functions), and *every K* applies full recomputation to every K-th
//! layer. Backward runs the same kernels on the same inputs, so results are bit-identical.

use lockstep_model::{Block, Recompute};

/// Recomputation policy and the layers it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecomputePlan {
    /// Policy of the selected layers.
    pub policy: Recompute,
    /// Interval of the selected layers, from the first on.
    pub every: usize,
}

impl RecomputePlan {
    /// No recomputation.
    pub const NONE: Self = Self { policy: Recompute::None, every: 1 };

    /// Policy of block number `index` of a model.
    ///
    /// The first block saves nothing and the last block's backward directly follows its forward, so
    /// only the layers between are worth recomputing; the first layer is block 1.
    pub fn of_block(self, index: usize, block: &dyn Block) -> Recompute {
        let is_chosen = index.wrapping_sub(1).is_multiple_of(self.every);
        if block.io().is_layer() && is_chosen { self.policy } else { Recompute::None }
    }
}

impl From<Recompute> for RecomputePlan {
    fn from(policy: Recompute) -> Self {
        Self { policy, every: 1 }
    }
}

//! Activation recomputation: which blocks throw away what forward saved and compute it again.
//!
//! Memory for time: *full* keeps only a block's input, *selective* drops what is cheap to compute
//! again (attention and activation functions), and *every K* drops everything of every K-th layer.
//! Backward runs the same kernels on the same micro-batch again, so not a bit changes.

use lockstep_model::{Block, Recompute};

/// What is dropped, and of which layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecomputePlan {
    /// What the chosen layers drop.
    pub policy: Recompute,
    /// Every how-manieth layer is chosen, from the first on.
    pub every: usize,
}

impl RecomputePlan {
    /// Everything is kept.
    pub const NONE: Self = Self { policy: Recompute::None, every: 1 };

    /// The policy of block number `index` of a model.
    ///
    /// The first block saves nothing and the last one's backward follows its forward at once, so
    /// only the layers between are worth computing again; the first layer is block 1.
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

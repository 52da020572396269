//! The memory a worker takes for its model, counted before anything is allocated.
//!
//! Counting is pure, so a recipe can be refused or explained without touching memory; what a
//! [`crate::Replica`] then allocates is the same count, and a test holds the two together.

use crate::buckets::Bucket;
use crate::lane::Activations;
use crate::leaves::LeafTree;
use crate::replica::{ReplicaPlan, trained_only};
use crate::shard_tree::ShardTree;
use crate::shares::Shares;
use crate::trained::{self, Trained};
use crate::zero::NUM_IN_FLIGHT;
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
    /// Short-lived: scratch of the block at work, and buckets on their way between workers.
    pub buffers: usize,
}

impl Footprint {
    /// What a worker with this plan and its optimizer will hold.
    pub fn plan(
        blueprint: &Blueprint,
        plan: &ReplicaPlan,
        optimizer: OptimName,
        worker: usize,
    ) -> Self {
        let num_workers = plan.shares.len();
        let buckets = trained::buckets(blueprint, plan.bucket_len, num_workers, &plan.phases);
        let trained = Trained::new(blueprint, &buckets, &plan.phases, plan.phase);
        let all = buckets.num_params();
        let part_len = |bucket: &Bucket| bucket.part(worker).len();
        let whole: usize = trained.lens(&buckets, |bucket| bucket.len).sum();
        let parts: usize = trained.lens(&buckets, part_len).sum();
        let own = buckets.list.iter().map(|bucket| bucket.part(worker).len()).sum();
        let pieces = NUM_IN_FLIGHT * num_workers * trained.max_of(&buckets, part_len);
        let (gradients, in_flight) = match plan.leaf_shares() {
            Shares::Contiguous(shares) => {
                (whole * LeafTree::num_buffers(shares[worker].clone()), 0)
            }
            Shares::Cyclic { .. } => {
                let kept = ShardTree::num_kept(plan.leaves.num_leaves, num_workers);
                let one_lane = plan.leaves.lanes_per_leaf == 1;
                let longest = trained.max_of(&buckets, |bucket| bucket.len);
                let leaves = if one_lane { NUM_IN_FLIGHT * longest } else { whole };
                (parts * kept, leaves + pieces)
            }
        };
        let windows = if plan.zero == 3 { 2 * buckets.max_len() } else { 0 };
        let slots = match plan.zero {
            0 => buckets.slots(blueprint, |bucket| 0..bucket.len),
            _ => buckets.slots(blueprint, |bucket| bucket.part(worker)),
        };
        let slots = trained_only(slots, plan);
        let stepped: usize = slots.iter().map(|slot| slot.range.len()).sum();
        let spare = buckets.mirrors.iter().map(|pair| {
            let (bucket, range) = &pair.mirror;
            let part = match plan.zero {
                0 => range.clone(),
                _ => buckets.list[*bucket].part(worker),
            };
            range.end.min(part.end).saturating_sub(range.start.max(part.start))
        });
        let spare = spare.max().unwrap_or(0);
        let activations = Activations::planned_len(blueprint, plan.lane, plan.recompute);
        Self {
            weights: if plan.zero == 3 { own } else { all },
            gradients,
            optimizer: stepped * Optimizer::num_states(optimizer),
            activations: activations + plan.lane.rows() * blueprint.max_width(),
            buffers: blueprint.scratch_len(plan.lane)
                + in_flight
                + windows
                + spare
                + trained.unwanted_len,
        }
    }

    /// All of it.
    pub const fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }
}

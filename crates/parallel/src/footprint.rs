//! The memory a worker takes for its model, counted before anything is allocated.
//!
//! Counting is pure, so a recipe can be refused or explained without touching memory; what a
//! [`crate::Replica`] then allocates is the same count, and a test holds the two together.

use crate::buckets::{Bucket, Buckets};
use crate::compress::Compression;
use crate::leaves::LeafTree;
use crate::pipeline::Device;
use crate::replica::{Replica, ReplicaPlan};
use crate::shard_tree::ShardTree;
use crate::shares::Shares;
use crate::trained::Trained;
use crate::wire::Narrow;
use crate::zero::{NUM_IN_FLIGHT, Wire};
use lockstep_config::{Dtype, OptimName};
use lockstep_mesh::{Axis, Rank};
use lockstep_model::Blueprint;
use lockstep_optim::Optimizer;

/// Numbers of `f32` by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, mirrors included.
    pub weights: usize,
    /// Sums of gradients: the leaf being filled and those that wait for their sibling.
    pub gradients: usize,
    /// Velocities and running means; where they lie in a file, what of them is in memory at once.
    pub optimizer: usize,
    /// What micro-batches in flight leave between forward and backward, and the gradient that passes.
    pub activations: usize,
    /// Short-lived: scratch of the block at work, buckets and activations on their way to others.
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
        let (device, worker) = (
            plan.mesh.index(Axis::Pipeline, Rank(worker)),
            plan.mesh.index(Axis::Data, Rank(worker)),
        );
        let buckets = plan.buckets(blueprint);
        let buckets = buckets.here(|block| plan.stages.device_of(block) == device);
        let trained = Trained::new(blueprint, &buckets, &plan.phases, plan.phase);
        let grads = &trained.grads;
        let parts = |buckets: &Buckets| -> usize {
            buckets.list.iter().map(|bucket| bucket.part(worker).len()).sum()
        };
        let pieces = num_workers * grads.max_part_len(worker);
        let wire = if plan.wire == Dtype::F32 { Wire::Wide } else { Wire::Narrow };
        let (gradients, in_flight) = match plan.leaf_shares() {
            Shares::Contiguous(shares) => {
                let mine = || shares[worker].clone();
                let sums = grads.num_params() * LeafTree::num_buffers(mine());
                let narrow = grads
                    .list
                    .iter()
                    .map(|bucket| Narrow::num_floats(bucket.len * LeafTree::num_sums(mine())));
                let narrow = if wire == Wire::Narrow { narrow.sum() } else { 0 };
                // One set is on its way while the next is filled.
                ((sums + narrow) * (1 + plan.delay as usize), 0)
            }
            Shares::Cyclic { .. } => {
                let kept = ShardTree::num_kept(plan.leaves.num_leaves, num_workers);
                let one_microbatch = plan.leaves.microbatches_per_leaf == 1;
                let leaves = if one_microbatch {
                    NUM_IN_FLIGHT * grads.max_len()
                } else {
                    grads.num_params()
                };
                (parts(grads) * kept, leaves + wire.num_in_flight(grads.max_len(), pieces))
            }
        };
        let windows = if plan.zero == 3 { 2 * buckets.max_len() } else { 0 };
        let stepped_of = |bucket: &Bucket| match plan.zero {
            0 => 0..bucket.len,
            _ => bucket.part(worker),
        };
        let slots = trained.slots(blueprint, &buckets, stepped_of);
        let mut stepped = vec![0; buckets.list.len()];
        for slot in &slots {
            stepped[slot.block] += slot.range.len();
        }
        let spare = grads.mirrors.iter().map(|pair| {
            let (bucket, range) = &pair.owner;
            let own = stepped_of(&grads.list[*bucket]);
            range.end.min(own.end).saturating_sub(range.start.max(own.start))
        });
        let spare = spare.max().unwrap_or(0);
        let sizes = plan.sizes(blueprint, worker);
        let (activations, messages) = Device::planned_len(&plan.stages, device, &sizes);
        let scratch = sizes.scratch_len(&plan.stages, device);
        Self {
            weights: if plan.zero == 3 { parts(&buckets) } else { buckets.num_params() },
            gradients,
            optimizer: Optimizer::planned_len(optimizer, stepped.into_iter(), plan.offload),
            activations,
            buffers: scratch + messages + in_flight + windows + spare,
        }
    }

    /// All of it.
    pub const fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }
}

impl Replica {
    /// The memory this replica and its optimizer hold.
    pub fn footprint(&self, optimizer: &Optimizer) -> Footprint {
        let store = self.store.footprint();
        let (activations, messages) = self.device.num_elements();
        let [anchors, outer] = self.len_of_rounds();
        let compressed = self.compression.as_ref().map_or(0, Compression::num_elements);
        Footprint {
            optimizer: optimizer.resident_len() + outer,
            activations,
            buffers: store.buffers
                + self.scratch.len()
                + messages
                + anchors
                + compressed
                + self.len_of_gossip(),
            ..store
        }
    }
}

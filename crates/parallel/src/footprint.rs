//! Memory of a rank for its model, counted before anything is allocated.
//!
//! Counting is pure, so a recipe can be rejected or explained without allocating; a
//! [`crate::Replica`] allocates exactly this count, and a test holds the two together.

use crate::buckets::{Bucket, Buckets};
use crate::leaf_assignment::LeafAssignment;
use crate::leaves::LeafTree;
use crate::pipeline::PipelineRank;
use crate::replica_plan::ReplicaPlan;
use crate::shard_tree::ShardTree;
use crate::trainable_params::TrainableParams;
use crate::trained_matrices;
use crate::wire_precision::RoundedBuffer;
use crate::zero::{NUM_IN_FLIGHT, WireFormat};
use lockstep_config::{OptimName, WireDtype};
use lockstep_mesh::{Axis, Rank};
use lockstep_model::Blueprint;
use lockstep_optim::Optimizer;

/// Numbers of `f32` elements by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, mirrors included, and weights that are frozen in four bits.
    pub weights: usize,
    /// Gradient sums: the leaf being filled and sums that wait for their sibling.
    pub gradients: usize,
    /// Optimizer state; with offload, only the part resident in memory.
    pub optimizer: usize,
    /// Activations of micro-batches in flight, offloaded ones too, and the gradient of the stream.
    pub activations: usize,
    /// Short-lived buffers: scratch, buckets and activations in flight.
    pub buffers: usize,
}

impl Footprint {
    /// Footprint of a rank with this plan and optimizer.
    pub fn plan(
        blueprint: &Blueprint,
        plan: &ReplicaPlan,
        optimizer: OptimName,
        worker: usize,
    ) -> Self {
        let (device, worker, buckets) = of_rank(blueprint, plan, worker);
        let trained = TrainableParams::new(blueprint, &buckets, &plan.phases, plan.phase);
        let grads = &trained.grads;
        let parts = |buckets: &Buckets| -> usize {
            buckets.list.iter().map(|bucket| bucket.part(worker).len()).sum()
        };
        let GradientBuffers { sums: gradients, leaves, exchanged } =
            GradientBuffers::plan(plan, grads, worker);
        let (gradients, in_flight) = match plan.leaf_assignment() {
            LeafAssignment::Contiguous(_) => (gradients + exchanged, 0),
            LeafAssignment::Cyclic { .. } => (gradients, leaves + exchanged),
        };
        let windows = if plan.zero == 3 { 2 * buckets.max_len() } else { 0 };
        let stepped_of = |bucket: &Bucket| match plan.zero {
            0 => 0..bucket.len,
            _ => bucket.part(worker),
        };
        let slots = trained.slots(blueprint, &buckets, stepped_of);
        let spare = grads.mirrors.iter().map(|pair| {
            let (bucket, range) = &pair.owner;
            let own = stepped_of(&grads.list[*bucket]);
            range.end.min(own.end).saturating_sub(range.start.max(own.start))
        });
        let spare = spare.max().unwrap_or(0);
        let sizes = plan.sizes(blueprint, worker);
        let (activations, messages) = PipelineRank::planned_len(&plan.stages, device, &sizes);
        let scratch = sizes.scratch_len(&plan.stages, device);
        let copies = plan.copy_of_params(blueprint).map_or(0, |dtype| buckets.copies_len(dtype));
        let matrices = trained_matrices::memory_len(blueprint, &buckets, plan);
        // The rank with the loss runs the teacher.
        let has_head = device == plan.stages.device_of(blueprint.blocks.len() - 1);
        let teacher = blueprint.teacher.as_ref().filter(|_| has_head);
        let [own_of_teacher, of_pass] =
            teacher.map_or([0; 2], |it| it.planned_len(plan.microbatch));
        let frozen =
            blueprint.frozen_tensors().filter(|(block, _)| plan.stages.device_of(*block) == device);
        let frozen = frozen.map(|(_, tensor)| floats_of(tensor.planned_bytes())).sum::<usize>();
        let tile = blueprint.tile().filter(|_| frozen > 0).map_or(0, |(_, len)| len);
        let weights = if plan.zero == 3 { parts(&buckets) } else { buckets.num_params() };
        let buffers = scratch + messages + in_flight + windows + spare + copies + matrices;
        Self {
            weights: weights + own_of_teacher + frozen,
            gradients,
            optimizer: Optimizer::planned_len(optimizer, &slots, plan.offload),
            activations,
            buffers: buffers + of_pass + tile,
        }
    }

    /// The part of [`Self::plan`] that is in host memory even where an accelerator runs the blocks:
    /// messages between stages, offloaded activations, and gradients as they are exchanged.
    pub fn plan_on_host(blueprint: &Blueprint, plan: &ReplicaPlan, worker: usize) -> usize {
        let (device, worker, buckets) = of_rank(blueprint, plan, worker);
        let trained = TrainableParams::new(blueprint, &buckets, &plan.phases, plan.phase);
        let sizes = plan.sizes(blueprint, worker);
        let (_, messages) = PipelineRank::planned_len(&plan.stages, device, &sizes);
        let offloaded = PipelineRank::planned_offload_len(&plan.stages, device, &sizes);
        messages + offloaded + GradientBuffers::plan(plan, &trained.grads, worker).exchanged
    }

    /// Total number of elements.
    pub const fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }
}

/// `f32` elements of the memory of a frozen tensor.
pub(crate) const fn floats_of(num_bytes: usize) -> usize {
    num_bytes.div_ceil(size_of::<f32>())
}

/// Stage, index in the data-parallel group and buckets of a rank.
fn of_rank(blueprint: &Blueprint, plan: &ReplicaPlan, worker: usize) -> (usize, usize, Buckets) {
    let [device, worker] =
        [Axis::Pipeline, Axis::Data].map(|axis| plan.mesh.index(axis, Rank(worker)));
    let buckets = plan.buckets(blueprint);
    (device, worker, buckets.here(|block| plan.stages.device_of(block) == device))
}

/// Numbers of elements for gradients.
struct GradientBuffers {
    /// Sums over leaves, at the rank that keeps them.
    sums: usize,
    /// Leaves that are filled and then sent.
    leaves: usize,
    /// Copies in the format of the wire, and what is received.
    exchanged: usize,
}

impl GradientBuffers {
    fn plan(plan: &ReplicaPlan, grads: &Buckets, worker: usize) -> Self {
        let num_workers = plan.shares.len();
        let wire =
            if plan.wire == WireDtype::F32 { WireFormat::Wide } else { WireFormat::RoundedBuffer };
        match plan.leaf_assignment() {
            LeafAssignment::Contiguous(shares) => {
                let mine = || shares[worker].clone();
                let sums = grads.num_params() * LeafTree::num_buffers(mine());
                let narrow = grads.list.iter().map(|bucket| {
                    RoundedBuffer::num_floats(bucket.len * LeafTree::num_sums(mine()))
                });
                let narrow = if wire == WireFormat::RoundedBuffer { narrow.sum() } else { 0 };
                // With delayed gradients one set is reduced while the next is filled.
                let sets = 1 + plan.delay as usize;
                Self { sums: sums * sets, leaves: 0, exchanged: narrow * sets }
            }
            LeafAssignment::Cyclic { .. } => {
                let kept = ShardTree::num_kept(plan.leaves.num_leaves, num_workers);
                let parts: usize = grads.list.iter().map(|bucket| bucket.part(worker).len()).sum();
                let leaves = if plan.leaves.microbatches_per_leaf == 1 {
                    NUM_IN_FLIGHT * grads.max_len()
                } else {
                    grads.num_params()
                };
                let pieces = num_workers * grads.max_part_len(worker);
                let exchanged = wire.num_in_flight(grads.max_len(), pieces);
                Self { sums: parts * kept, leaves, exchanged }
            }
        }
    }
}

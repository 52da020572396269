//! Layout of a replica across ranks: mesh, stages, leaves, buckets and memory sizes.

use crate::buckets::Buckets;
use crate::leaf_assignment::LeafAssignment;
use crate::leaves::Leaves;
use crate::microbatch::ActivationPlan;
use crate::microbatch_losses::values_per_microbatch;
use crate::pipeline::Sizes;
use crate::recompute::RecomputePlan;
use crate::sparse_embedding::SparseEmbedding;
use crate::stages::Stages;
use crate::trainable_params::TrainableParams;
use lockstep_config::WireDtype;
use lockstep_mesh::{Axis, Degrees, Mesh, Rank};
use lockstep_model::{Blueprint, MicrobatchShape};
use lockstep_optim::{CHUNK_LEN, Phases, UpdateInputs};
use lockstep_tensor::device::Dtype as DeviceDtype;
use lockstep_tensor::gemm::Precision;

/// Layout of a replica across ranks, and the sizes its memory is allocated for.
#[derive(Clone, Debug)]
pub struct ReplicaPlan {
    /// Shape of every micro-batch.
    pub microbatch: MicrobatchShape,
    /// Reduction leaves of a step.
    pub leaves: Leaves,
    /// Activation recomputation.
    pub recompute: RecomputePlan,
    /// ZeRO stage.
    pub zero: usize,
    /// Number of leaves per data-parallel rank, where each has a contiguous range (ZeRO 0 and 1).
    pub shares: Vec<usize>,
    /// Mesh of all ranks.
    pub mesh: Mesh,
    /// Pipeline stages.
    pub stages: Stages,
    /// Minimum number of parameters of a bucket.
    pub bucket_len: usize,
    /// Whether collectives overlap with computation.
    pub overlap: bool,
    /// Data type of gradients on the wire.
    pub wire: WireDtype,
    /// Whether optimizer state is offloaded to a file.
    pub offload: bool,
    /// Whether activations of layers are offloaded to host memory.
    pub offload_activations: bool,
    /// Freezing schedule of the parameters.
    pub phases: Phases,
    /// Current phase of the freezing schedule.
    pub phase: usize,
    /// Gradient delay in steps.
    pub delay: u64,
    /// Inputs of the optimizer's update rule, which ranks provide together.
    pub update_inputs: UpdateInputs,
    /// Precision of the products of whole matrices, where the rule needs them.
    pub matrix_precision: Precision,
    /// Number of values of a micro-batch's loss ([`values_per_microbatch`]).
    pub loss_values: usize,
}

impl ReplicaPlan {
    /// A plan for one rank that holds the whole model, without recomputation.
    pub fn single_rank(microbatch: MicrobatchShape, leaves: Leaves) -> Self {
        Self {
            microbatch,
            leaves,
            recompute: RecomputePlan::NONE,
            zero: 0,
            shares: vec![leaves.num_leaves],
            mesh: Mesh::new(Degrees::ONE).expect("one rank is a mesh"),
            stages: Stages::whole(),
            bucket_len: 0,
            overlap: false,
            wire: WireDtype::F32,
            offload: false,
            offload_activations: false,
            phases: Phases::default(),
            phase: 0,
            delay: 0,
            update_inputs: UpdateInputs::default(),
            matrix_precision: Precision::F32,
            loss_values: values_per_microbatch(false),
        }
    }

    /// Assignment of leaves to data-parallel ranks.
    pub fn leaf_assignment(&self) -> LeafAssignment {
        LeafAssignment::for_zero_stage(self.zero, &self.shares)
    }

    /// Number of micro-batches per step of the pipeline with this data-parallel rank, padding
    /// included.
    pub fn num_microbatches(&self, part: usize) -> usize {
        let Leaves { num_leaves, microbatches_per_leaf } = self.leaves;
        match self.leaf_assignment() {
            LeafAssignment::Contiguous(shares) => shares[part].len() * microbatches_per_leaf,
            LeafAssignment::Cyclic { num_workers } => {
                num_leaves.div_ceil(num_workers) * microbatches_per_leaf
            }
        }
    }

    /// Buckets of all pipeline stages.
    pub fn buckets(&self, blueprint: &Blueprint) -> Buckets {
        Buckets::between(blueprint, self.bucket_len, self.shares.len(), self.stages.cuts())
    }

    /// The embedding table whose gradient rows are exchanged sparsely, if any; only with an `f32`
    /// wire.
    pub fn sparse(
        &self,
        blueprint: &Blueprint,
        trained: &TrainableParams,
    ) -> Option<SparseEmbedding> {
        let shares = self.leaf_assignment();
        let found =
            SparseEmbedding::find(blueprint, trained, &shares, self.leaves, self.microbatch);
        found.filter(|_| self.wire == WireDtype::F32)
    }

    /// Type of the rounded copy of the parameters that an accelerator keeps for its products, if
    /// any. Sharded parameters are gathered for each use, and rounded then.
    pub fn copy_of_params(&self, blueprint: &Blueprint) -> Option<DeviceDtype> {
        let dtype = blueprint.activations;
        (dtype != DeviceDtype::F32 && self.zero < 3).then_some(dtype)
    }

    /// Sizes of a pipeline rank's memory, for this data-parallel rank.
    pub fn sizes<'a>(&self, blueprint: &'a Blueprint, part: usize) -> Sizes<'a> {
        let activations =
            ActivationPlan { recompute: self.recompute, offload: self.offload_activations };
        let (microbatch, num_microbatches) = (self.microbatch, self.num_microbatches(part));
        Sizes { blueprint, microbatch, activations, num_microbatches }
    }

    /// Number of values that each rank contributes to a norm over all ranks: a sum for each chunk
    /// of the trained parameters that it measures, and a count. Exactly one rank measures each
    /// piece of a parameter: of the ranks that step it, the one with data-parallel rank 0; of those
    /// that hold a tensor which is not sharded, the one with tensor-parallel rank 0.
    pub fn norm_lens(&self, blueprint: &Blueprint) -> Vec<usize> {
        let (buckets, num_parts) = (self.buckets(blueprint), self.shares.len());
        let num_devices = self.mesh.degree(Axis::Pipeline);
        // By pipeline and data-parallel rank: chunks of whole tensors, and of pieces.
        let mut chunks = vec![vec![[0; 2]; num_parts]; num_devices];
        for (block, param) in blueprint.owned_params() {
            if self.phases.is_frozen(self.phase, &param.name) {
                continue;
            }
            let (bucket, range) = buckets.place(block, param);
            let lens = match self.zero {
                0 => vec![range.len()],
                _ => buckets.list[bucket].part_lens_of(&range),
            };
            let of_device = &mut chunks[self.stages.device_of(block)];
            for (of_part, len) in of_device.iter_mut().zip(lens) {
                of_part[usize::from(param.piece.num > 1)] += len.div_ceil(CHUNK_LEN);
            }
        }
        let of_rank = |rank: usize| {
            let at = |axis| self.mesh.index(axis, Rank(rank));
            let [whole, pieces] = chunks[at(Axis::Pipeline)][at(Axis::Data)];
            1 + pieces + if at(Axis::Tensor) == 0 { whole } else { 0 }
        };
        (0..self.mesh.num_ranks()).map(of_rank).collect()
    }

    /// Whether every rank holds and steps the whole model.
    pub(crate) fn is_replicated(&self) -> bool {
        self.zero == 0 && self.mesh.degree(Axis::Data) == self.mesh.num_ranks()
    }
}

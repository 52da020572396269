//! Measurement of the gradient noise of a replica: the squared norms of its leaves' gradients and
//! of their total ([`crate::leaf_norms`]), over the parts of the model that ranks hold.
//!
//! Exactly one rank measures each element of a leaf and of the total. A leaf belongs to one
//! data-parallel rank, each block of it to one pipeline rank, and each shard of a layer to one
//! tensor-parallel rank; of a tensor that is not sharded, the first tensor-parallel rank measures
//! the leaf. The total is divided among the data-parallel ranks as optimizer state is.

use crate::buckets::Bucket;
use crate::leaf_norms::{LeafNorms, SquaredNorms};
use crate::replica::Replica;
use crate::trainable_params::{TrainableParams, joined};
use lockstep_comm::CommError;
use lockstep_config::LossScale;
use lockstep_model::Blueprint;
use lockstep_tensor::Cpu;
use std::ops::Range;

impl Replica {
    /// Allocates memory for the norms of leaves, and renews it where the leaves of this rank or
    /// their layout have changed. Only where the gradients of leaves are reduced as they are.
    pub fn allocate_leaf_norms(&mut self) -> Result<(), CommError> {
        let Self { blueprint, plan, groups, shares, store, .. } = self;
        let is_first = groups.tensor().group_rank() == 0;
        let of_leaf = measured_runs(blueprint, store.trained(), is_first);
        let part = groups.data().group_rank();
        let of_total = of_leaf.iter().zip(&store.trained().grads.list);
        let of_total = of_total.map(|(runs, bucket)| {
            let (part, own) = (bucket.part(part), store.own(bucket));
            runs.iter().filter_map(|run| within(run, &part, own.start)).collect()
        });
        let of_total: Vec<_> = of_total.collect();
        let num_leaves = shares.leaves_of(part, plan.leaves.num_leaves).len();
        let accelerator = store.overlap.accelerator().map(|device| &**device);
        store.leaf_norms = Some(LeafNorms::new(num_leaves, of_leaf, of_total, accelerator)?);
        Ok(())
    }

    /// Renews the memory for the norms of leaves, if there is some.
    pub(crate) fn renew_leaf_norms(&mut self) -> Result<(), CommError> {
        if self.store.leaf_norms.is_some() { self.allocate_leaf_norms() } else { Ok(()) }
    }

    /// Sets whether the norms of leaves are measured in the next step, if there is memory for them.
    pub fn measure_leaf_norms(&mut self, is_on: bool) {
        if let Some(norms) = &mut self.store.leaf_norms {
            norms.set_on(is_on);
        }
    }

    /// Norms of this rank's part of the step's gradients, without the loss scale; none if the step
    /// was not measured. From the end of the reduction on.
    pub fn leaf_norms(&mut self, cpu: &Cpu) -> Result<Option<SquaredNorms<'_>>, CommError> {
        let scale = f64::from(self.loss_scale.unwrap_or(LossScale::ONE).factor());
        let Self { store, device, .. } = self;
        let Some(norms) = store.leaf_norms.as_mut().filter(|norms| norms.is_on()) else {
            return Ok(None);
        };
        Ok(norms.read(device.compute_device(cpu), 1.0 / (scale * scale))?)
    }

    /// Whether this rank reports for its data-parallel rank what all its pipeline and
    /// tensor-parallel ranks know.
    pub fn reports_for_its_part(&self) -> bool {
        self.groups.pipeline().group_rank() == 0 && self.groups.tensor().group_rank() == 0
    }
}

/// Ranges of every gradient bucket that a rank measures: the shards of tensors, and, on the first
/// tensor-parallel rank, all other tensors too.
fn measured_runs(
    blueprint: &Blueprint,
    trained: &TrainableParams,
    is_first: bool,
) -> Vec<Vec<Range<usize>>> {
    let of_block = move |bucket: &Bucket, block: usize| {
        let (start, runs) = (bucket.block(block).start, &trained.of_block[block]);
        let params = blueprint.blocks[block].params().iter();
        let measured = params.filter(move |param| is_first || param.piece.num > 1);
        let measured = measured.filter(move |param| {
            runs.iter().any(|run| run.contains(&param.range().start)) && param.len() > 0
        });
        let place = move |at: usize| -> usize {
            start + runs.iter().map(|run| at.clamp(run.start, run.end) - run.start).sum::<usize>()
        };
        measured.map(move |param| place(param.range().start)..place(param.range().end))
    };
    let of_bucket =
        |bucket: &Bucket| joined(bucket.blocks.clone().flat_map(|block| of_block(bucket, block)));
    trained.grads.list.iter().map(of_bucket).collect()
}

/// Part of a range that lies in `part`, relative to `start`; none if it is empty.
fn within(run: &Range<usize>, part: &Range<usize>, start: usize) -> Option<Range<usize>> {
    let [first, end] = [run.start, run.end].map(|at| at.clamp(part.start, part.end));
    (first < end).then(|| first - start..end - start)
}

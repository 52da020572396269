//! Sums over the rows of a micro-batch: the gradients of norms and of biases behind a row-parallel
//! product.
//!
//! The micro-batch's rows are cut into as many blocks as the model has slices. A block is summed with rows
//! ascending, blocks by the tree, and the sum is added to the gradient once: the same bits whether
//! everybody has all rows or, with `sequence`, each holder its own.

use crate::collectives::TensorCollectives;
use crate::reduction_tree;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::{Cpu, reduce};
use std::ops::Range;

/// The rows of a micro-batch.
pub(crate) struct RowSums<'a> {
    pub(crate) tp_shards: &'a TensorShards,
    /// How many the micro-batch has.
    pub(crate) num_rows: usize,
}

/// Adds the sums of some rows to two targets.
pub(crate) type AddRows<'a> = dyn FnMut(Range<usize>, [&mut [f32]; 2]) + 'a;

impl RowSums<'_> {
    /// Memory that sums of `len` elements need.
    pub(crate) fn scratch_len(tp_shards: &TensorShards, len: usize) -> usize {
        len * (1 + reduction_tree::num_spare(tp_shards.row_blocks().len(), false))
    }

    /// Adds to both targets, either of which may be empty, their sums over the micro-batch's rows: `block`
    /// adds those of some rows, counted in the micro-batch.
    pub(crate) fn add_to(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        targets: [&mut [f32]; 2],
        mut frame: Frame<'_>,
        block: &mut AddRows<'_>,
    ) {
        let [first, second] = targets;
        let len = first.len() + second.len();
        let sums = frame.take(len);
        let blocks = self.tp_shards.row_blocks();
        let spare = frame.take(len * reduction_tree::num_spare(blocks.len(), false));
        reduction_tree::sum(cpu, blocks, false, sums, spare, &mut |index, out, _| {
            out.fill(0.0);
            let (one, other) = out.split_at_mut(first.len());
            block(self.tp_shards.range(self.num_rows, index), [one, other]);
        });
        self.tp_shards.sum_row_blocks(collectives, sums);
        reduce::add_assign(cpu, first, &sums[..first.len()]);
        reduce::add_assign(cpu, second, &sums[first.len()..]);
    }
}

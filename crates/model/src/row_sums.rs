//! Sums over the rows of a micro-batch: gradients of norms, and of biases of row-parallel layers.
//!
//! The rows of the micro-batch are divided into as many blocks as the model has shards. A block is
//! summed with rows ascending, blocks by the tree, and the sum is added to the gradient once. The
//! bits are equal with replicated rows and with `sequence`, where each tensor-parallel rank has its
//! own rows.

use crate::collectives::TensorCollectives;
use crate::reduction_tree;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::{Cpu, reduce};
use std::ops::Range;

/// Rows of a micro-batch to sum over.
pub(crate) struct RowSums<'a> {
    pub(crate) tp_shards: &'a TensorShards,
    /// Number of rows of the micro-batch.
    pub(crate) num_rows: usize,
}

/// Adds the sums of some rows to two targets.
pub(crate) type AddRows<'a> = dyn FnMut(Range<usize>, [&mut [f32]; 2]) + 'a;

impl RowSums<'_> {
    /// Temporary elements of sums of `len` elements.
    pub(crate) fn scratch_len(tp_shards: &TensorShards, len: usize) -> usize {
        len * (1 + reduction_tree::num_spare(tp_shards.row_blocks().len(), false))
    }

    /// Adds to both targets, either of which may be empty, their sums over the rows of the
    /// micro-batch. `block` adds the terms of a range of rows of the micro-batch.
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

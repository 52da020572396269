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
use lockstep_tensor::device::{Device, Result, ViewMut};
use std::ops::Range;

/// Rows of a micro-batch to sum over.
pub(crate) struct RowSums<'a> {
    pub(crate) tp_shards: &'a TensorShards,
    /// Number of rows of the micro-batch.
    pub(crate) num_rows: usize,
}

/// Adds the sums of some rows to two targets.
pub(crate) type AddRows<'a> = dyn FnMut(Range<usize>, [ViewMut<'_>; 2]) -> Result<()> + 'a;

impl RowSums<'_> {
    /// Whether all rows are one block on this rank.
    pub(crate) const fn is_whole(&self) -> bool {
        self.tp_shards.num == 1 && !self.tp_shards.sequence
    }

    /// Temporary elements of sums of `len` elements.
    pub(crate) fn scratch_len(tp_shards: &TensorShards, len: usize) -> usize {
        len * (1 + reduction_tree::num_spare(tp_shards.row_blocks().len(), false))
    }

    /// Adds to both targets, either of which may be empty, their sums over the rows of the
    /// micro-batch. `block` adds the terms of a range of rows of the micro-batch.
    pub(crate) fn add_to(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        targets: [ViewMut<'_>; 2],
        mut frame: Frame<'_>,
        block: &mut AddRows<'_>,
    ) -> Result<()> {
        let [first, second] = targets;
        let len = first.len() + second.len();
        let mut sums = frame.take(len);
        let blocks = self.tp_shards.row_blocks();
        let spare = frame.take(len * reduction_tree::num_spare(blocks.len(), false));
        let mut of_block = |index: usize, mut out: ViewMut<'_>, _| {
            device.fill(out.reborrow(), 0.0)?;
            let (one, other) = out.split_at(first.len());
            block(self.tp_shards.range(self.num_rows, index), [one, other])
        };
        reduction_tree::sum(device, blocks, false, sums.reborrow(), spare, &mut of_block)?;
        self.tp_shards.sum_row_blocks(collectives, sums.reborrow());
        let (of_first, of_second) = sums.as_view().split_at(first.len());
        device.add_assign(first, of_first)?;
        device.add_assign(second, of_second)
    }
}

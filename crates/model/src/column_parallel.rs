//! A linear layer whose outputs are cut into slices: the first product of each half of a layer, and
//! the head's.
//!
//! Every slice multiplies the whole input with its own outputs' weights, so forward needs nobody
//! else. The gradient of the input is a sum over all outputs: one product a slice, added by the
//! tree. Outputs lie slice behind slice, each with all its rows, so that what works on heads or
//! hidden numbers sees one slice after the other as if it were more rows.

use crate::grads::Grads;
use crate::linear::Linear;
use crate::reduction_tree;
use lockstep_tensor::Cpu;

/// The slices that are held, in order.
#[derive(Clone, Debug)]
pub(crate) struct ColumnParallel {
    pub(crate) shards: Vec<Linear>,
    /// How many slices there are everywhere.
    pub(crate) num_shards: usize,
}

impl ColumnParallel {
    /// Inputs of every slice.
    pub(crate) fn num_inputs(&self) -> usize {
        self.shards[0].num_inputs
    }

    /// Outputs of one slice.
    pub(crate) fn num_outputs(&self) -> usize {
        self.shards[0].num_outputs
    }

    /// Outputs of all slices that are held.
    pub(crate) fn num_local_outputs(&self) -> usize {
        self.num_outputs() * self.shards.len()
    }

    /// FLOPs of the product for one row, over all slices everywhere.
    pub(crate) fn flops(&self) -> u64 {
        self.shards[0].flops() * self.num_shards as u64
    }

    /// Overwrites `y`, slice behind slice.
    pub(crate) fn forward(&self, cpu: &Cpu, params: &[f32], x: &[f32], y: &mut [f32]) {
        let len = y.len() / self.shards.len();
        for (shard, y) in self.shards.iter().zip(y.chunks_exact_mut(len)) {
            shard.forward(cpu, params, x, y);
        }
    }

    /// Adds the gradients of what is trained of weights and biases to `grads`.
    pub(crate) fn backward_weight(&self, cpu: &Cpu, x: &[f32], dy: &[f32], mut grads: Grads<'_>) {
        let len = dy.len() / self.shards.len();
        for (shard, dy) in self.shards.iter().zip(dy.chunks_exact(len)) {
            shard.backward_weight(cpu, x, dy, grads.reborrow());
        }
    }

    /// Sets `dx` to what the slices held here add to the gradient of the input; `spare` is as long
    /// as [`Self::spare_len`] says.
    pub(crate) fn backward_input(
        &self,
        cpu: &Cpu,
        params: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        spare: &mut [f32],
    ) {
        let (num, len) = (self.shards.len(), dy.len() / self.shards.len());
        let fuses = self.fuses();
        reduction_tree::sum(cpu, 0..num, fuses, dx, spare, &mut |shard, dx, write| {
            let dy = &dy[shard * len..][..len];
            self.shards[shard].input_product(cpu, params, dy, dx, write);
        });
    }

    /// Whether a slice's part of the gradient of the input is one number before it is added.
    fn fuses(&self) -> bool {
        self.shards[0].precision.fuses(self.num_outputs())
    }

    /// Memory that [`Self::backward_input`] needs besides.
    pub(crate) fn spare_len(&self, num_rows: usize) -> usize {
        let num = reduction_tree::num_spare(self.shards.len(), self.fuses());
        num * num_rows * self.num_inputs()
    }
}

//! Column-parallel linear layer (Megatron-LM): its outputs are sharded. The first product of each
//! half of a layer, and the head's.
//!
//! Every shard multiplies the whole input with the weights of its own outputs, so forward needs no
//! communication. The input gradient is a sum over all outputs: one product per shard, added by the
//! tree. Outputs are stored shard after shard, each with all its rows, so that kernels on heads or
//! hidden units process further shards as further rows.

use crate::formats::Formats;
use crate::grads::Grads;
use crate::linear::Linear;
use crate::reduction_tree;
use crate::scratch::Frame;
use lockstep_tensor::device::{
    Device, Epilogue, Norm, OutputGradient, Result, RowEpilogue, View, ViewMut,
};
use lockstep_tensor::gemm::Write;

/// Local shards of a column-parallel layer, in order.
#[derive(Clone, Debug)]
pub(crate) struct ColumnParallel {
    pub(crate) shards: Vec<Linear>,
    /// Number of shards on all ranks.
    pub(crate) num_shards: usize,
}

impl ColumnParallel {
    /// Number formats.
    pub(crate) fn formats(&self) -> Formats {
        self.shards[0].formats
    }

    /// Inputs of every shard.
    pub(crate) fn num_inputs(&self) -> usize {
        self.shards[0].num_inputs
    }

    /// Outputs of one shard.
    pub(crate) fn num_outputs(&self) -> usize {
        self.shards[0].num_outputs
    }

    /// Outputs of all local shards.
    pub(crate) fn num_local_outputs(&self) -> usize {
        self.num_outputs() * self.shards.len()
    }

    /// FLOPs of the product for one row, over the shards of all ranks.
    pub(crate) fn flops(&self) -> u64 {
        self.shards[0].flops() * self.num_shards as u64
    }

    /// Overwrites `y`, shard after shard.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let (len, mut y) = (y.len() / self.shards.len(), Frame::over(y));
        self.shards.iter().try_for_each(|shard| shard.forward(device, params, x, y.take(len)))
    }

    /// Overwrites `y` for one row, normalised first where there is a norm, in one operation;
    /// `false` where the device has none for it.
    pub(crate) fn forward_row(
        &self,
        device: &dyn Device,
        params: View<'_>,
        norm: Option<Norm<'_>>,
        x: View<'_>,
        epilogue: RowEpilogue<'_>,
        y: ViewMut<'_>,
    ) -> Result<bool> {
        match &self.shards[..] {
            [only] => only.forward_row(device, params, norm, x, epilogue, y),
            _ => Ok(false),
        }
    }

    /// Overwrites `before` with the outputs and `y` with GELU of them, shard after shard.
    pub(crate) fn forward_gelu(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        before: ViewMut<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let len = y.len() / self.shards.len();
        let (mut before, mut y) = (Frame::over(before), Frame::over(y));
        self.shards.iter().try_for_each(|shard| {
            let bias = shard.bias.as_ref().expect("GELU is behind a layer with a bias");
            let bias = params.range(bias.clone());
            let epilogue = Epilogue::BiasGelu { bias, before: before.take(len) };
            shard.product_with(device, params, x, y.take(len), Write::Set, epilogue)
        })
    }

    /// Adds the gradients of trained weights and biases to `grads`.
    pub(crate) fn backward_weight(
        &self,
        device: &dyn Device,
        x: View<'_>,
        dy: View<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let len = dy.len() / self.shards.len();
        self.shards.iter().enumerate().try_for_each(|(index, shard)| {
            let dy = dy.range(index * len..(index + 1) * len);
            shard.backward_weight(device, x, dy, grads.reborrow())
        })
    }

    /// Sets `dx` to the partial sum of the local shards of the input gradient; `spare` has
    /// [`Self::spare_len`] elements.
    pub(crate) fn backward_input(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        spare: ViewMut<'_>,
    ) -> Result<()> {
        let (num, len) = (self.shards.len(), dy.len() / self.shards.len());
        let fuses = self.fuses();
        reduction_tree::sum(device, 0..num, fuses, dx, spare, &mut |shard, dx, write| {
            let dy = dy.range(shard * len..(shard + 1) * len);
            self.shards[shard].input_product(device, params, dy, dx, write, Epilogue::None)
        })
    }

    /// As [`Self::backward_input`] and [`Self::backward_weight`], from the gradient of the output,
    /// stored or not.
    pub(crate) fn backward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        mut dy: OutputGradient<'_>,
        dx: ViewMut<'_>,
        spare: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (num, len) = (self.shards.len(), dy.len() / self.shards.len());
        let fuses = self.fuses();
        reduction_tree::sum(device, 0..num, fuses, dx, spare, &mut |shard, dx, write| {
            let dy = dy.range(shard * len..(shard + 1) * len);
            let target = (dx, write, Epilogue::None);
            self.shards[shard].backward(device, params, x, dy, target, grads.reborrow())
        })
    }

    /// Whether a shard's term of the input gradient is rounded to one number before it is added.
    fn fuses(&self) -> bool {
        self.shards[0].precision().fuses(self.num_outputs())
    }

    /// Temporary elements of [`Self::backward_input`]: sums over several shards, in `f32`.
    pub(crate) fn spare_len(&self, num_rows: usize) -> usize {
        let num = reduction_tree::num_spare(self.shards.len(), self.fuses());
        num * num_rows * self.num_inputs()
    }
}

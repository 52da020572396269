//! Row-parallel linear layer (Megatron-LM): its inputs are sharded. The second product of each half
//! of a layer.
//!
//! Every shard multiplies its own inputs with its own rows of the weight, which gives a partial sum
//! of the whole output; partial sums are added by the tree. The bias is added once, after the sum.
//! The input and weight gradients of a shard need the whole output gradient and no communication.
//! Inputs are stored shard after shard, as in [`crate::column_parallel`].

use crate::collectives::TensorCollectives;
use crate::dropout::RowMask;
use crate::grads::Grads;
use crate::linear::Linear;
use crate::reduction_tree;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::{Cpu, bias};
use std::ops::Range;

/// Local shards of a row-parallel layer, in order, and the replicated bias.
#[derive(Clone, Debug)]
pub(crate) struct RowParallel {
    pub(crate) shards: Vec<Linear>,
    pub(crate) bias: Option<Range<usize>>,
    /// Shards of the model.
    pub(crate) tp_shards: TensorShards,
}

impl RowParallel {
    /// Inputs of one shard.
    pub(crate) fn num_inputs(&self) -> usize {
        self.shards[0].num_inputs
    }

    /// Inputs of all local shards.
    pub(crate) fn num_local_inputs(&self) -> usize {
        self.num_inputs() * self.shards.len()
    }

    /// Number of outputs.
    pub(crate) fn num_outputs(&self) -> usize {
        self.shards[0].num_outputs
    }

    /// Precision of products.
    pub(crate) fn precision(&self) -> Precision {
        self.shards[0].precision
    }

    /// FLOPs of the product for one row, over the shards of all ranks.
    pub(crate) fn flops(&self) -> u64 {
        self.shards[0].flops() * self.tp_shards.num as u64
    }

    /// Overwrites `y` with the local rows of the output, from all rows of the input.
    pub(crate) fn forward(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        params: &[f32],
        x: &[f32],
        y: &mut [f32],
        mut frame: Frame<'_>,
    ) {
        let num_rows = x.len() / self.num_local_inputs();
        let spare = frame.take(self.spare_len(num_rows));
        if self.tp_shards.sequence {
            let all = frame.take(num_rows * self.num_outputs());
            self.partial_sum(cpu, params, x, all, spare);
            self.tp_shards.sum_rows(collectives, all);
            let own = self.tp_shards.rows(num_rows);
            y.copy_from_slice(&all[own.start * self.num_outputs()..own.end * self.num_outputs()]);
        } else {
            self.partial_sum(cpu, params, x, y, spare);
            self.tp_shards.sum_rows(collectives, y);
        }
        if let Some(at) = &self.bias {
            bias::add(cpu, y, &params[at.clone()]);
        }
    }

    /// Sums over the local shards.
    fn partial_sum(&self, cpu: &Cpu, params: &[f32], x: &[f32], y: &mut [f32], spare: &mut [f32]) {
        let (num, len) = (self.shards.len(), x.len() / self.shards.len());
        let fuses = self.fuses();
        reduction_tree::sum(cpu, 0..num, fuses, y, spare, &mut |shard, y, write| {
            self.shards[shard].product(cpu, params, &x[shard * len..][..len], y, write);
        });
    }

    /// Whether a shard's term of the output is rounded to one number before it is added.
    fn fuses(&self) -> bool {
        self.precision().fuses(self.num_inputs())
    }

    fn spare_len(&self, num_rows: usize) -> usize {
        let num = reduction_tree::num_spare(self.shards.len(), self.fuses());
        num * num_rows * self.num_outputs()
    }

    /// Temporary elements of [`Self::forward`].
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let all = if self.tp_shards.sequence { num_rows * self.num_outputs() } else { 0 };
        all + self.spare_len(num_rows)
    }

    /// Gradient of all `num_rows` rows of the output, from that of the stream after dropout.
    pub(crate) fn output_gradient<'a, 'f: 'a>(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        d_stream: &'a [f32],
        mask: Option<RowMask>,
        num_rows: usize,
        frame: &mut Frame<'f>,
    ) -> &'a [f32] {
        if mask.is_none() && !self.tp_shards.sequence {
            return d_stream;
        }
        let all = frame.take(num_rows * self.num_outputs());
        self.fill_output_gradient(cpu, collectives, d_stream, mask, all);
        all
    }

    /// Writes the gradient of all rows of the output to `all`, from that of the stream after
    /// dropout.
    pub(crate) fn fill_output_gradient(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        d_stream: &[f32],
        mask: Option<RowMask>,
        all: &mut [f32],
    ) {
        let width = self.num_outputs();
        let own = self.tp_shards.rows(all.len() / width);
        let of_stream = &mut all[own.start * width..own.end * width];
        of_stream.copy_from_slice(d_stream);
        if let Some(mask) = mask {
            mask.apply(cpu, of_stream);
        }
        self.tp_shards.gather_rows(collectives, all);
    }

    /// Overwrites `dx` with the input gradient, from all rows of the output gradient.
    pub(crate) fn backward_input(&self, cpu: &Cpu, params: &[f32], dy: &[f32], dx: &mut [f32]) {
        let len = dx.len() / self.shards.len();
        for (shard, dx) in self.shards.iter().zip(dx.chunks_exact_mut(len)) {
            shard.backward_input(cpu, params, dy, dx);
        }
    }

    /// Adds the gradients of trained weights and bias to `grads`, from all rows of the input and of
    /// the output gradient.
    pub(crate) fn backward_weight(
        &self,
        cpu: &Cpu,
        collectives: &mut dyn TensorCollectives,
        x: &[f32],
        dy: &[f32],
        mut grads: Grads<'_>,
        frame: Frame<'_>,
    ) {
        let len = x.len() / self.shards.len();
        for (shard, x) in self.shards.iter().zip(x.chunks_exact(len)) {
            shard.backward_weight(cpu, x, dy, grads.reborrow());
        }
        let Some(at) = &self.bias else { return };
        let grads = grads.of(at);
        if !grads.is_empty() {
            let width = self.num_outputs();
            let sums = RowSums { tp_shards: &self.tp_shards, num_rows: dy.len() / width };
            sums.add_to(cpu, collectives, [grads, &mut []], frame, &mut |rows, [sum, _]| {
                bias::backward(cpu, &dy[rows.start * width..rows.end * width], sum);
            });
        }
    }
}

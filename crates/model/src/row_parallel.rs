//! Row-parallel linear layer (Megatron-LM): its inputs are sharded. The second product of each half
//! of a layer.
//!
//! Every shard multiplies its own inputs with its own rows of the weight, which gives a partial sum
//! of the whole output; partial sums are added by the tree. The bias is added once, after the sum.
//! The input and weight gradients of a shard need the whole output gradient and no communication.
//! Inputs are stored shard after shard, as in [`crate::column_parallel`].

use crate::collectives::TensorCollectives;
use crate::dropout::RowMask;
use crate::formats::Formats;
use crate::grads::Grads;
use crate::linear::Linear;
use crate::reduction_tree;
use crate::row_sums::RowSums;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::{
    Device, Epilogue, OutputGradient, Result, RowEpilogue, View, ViewMut, copy_rounded,
};
use lockstep_tensor::gemm::Write;
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

    /// Number formats.
    pub(crate) fn formats(&self) -> Formats {
        self.shards[0].formats
    }

    /// Whether the output is a sum over shards in `f32`, which is then rounded.
    fn has_wide_sums(&self) -> bool {
        self.formats().has_wide_sums(self.tp_shards.num)
    }

    /// FLOPs of the product for one row, over the shards of all ranks.
    pub(crate) fn flops(&self) -> u64 {
        self.shards[0].flops() * self.tp_shards.num as u64
    }

    /// Overwrites `y` with the local rows of the output, from all rows of the input, plus those of
    /// the residual, if any.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x: View<'_>,
        residual: Option<View<'_>>,
        mut y: ViewMut<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        if let (Some(residual), [only], false) = (residual, &self.shards[..], self.is_summed()) {
            let bias = self.bias.as_ref();
            let epilogue = RowEpilogue::Residual(residual);
            if bias.is_none()
                && only.forward_row(device, params, None, x, epilogue, y.reborrow())?
            {
                return Ok(());
            }
            let bias = bias.map(|at| params.range(at.clone()));
            let epilogue = Epilogue::Residual { bias, residual };
            return only.product_with(device, params, x, y, Write::Set, epilogue);
        }
        let (num_rows, width) = (x.len() / self.num_local_inputs(), self.num_outputs());
        let spare = frame.take(self.spare_len(num_rows));
        if self.tp_shards.sequence || self.has_wide_sums() {
            let mut all = frame.take(num_rows * width);
            self.partial_sum(device, params, x, all.reborrow(), spare)?;
            self.tp_shards.sum_rows(collectives, all.reborrow());
            let own = self.tp_shards.rows(num_rows);
            let own = all.as_view().range(own.start * width..own.end * width);
            copy_rounded(device, own, y.reborrow())?;
        } else {
            self.partial_sum(device, params, x, y.reborrow(), spare)?;
            self.tp_shards.sum_rows(collectives, y.reborrow());
        }
        if let Some(at) = &self.bias {
            device.bias_add(y.reborrow(), params.range(at.clone()))?;
        }
        match residual {
            Some(residual) => device.add_assign(y, residual),
            None => Ok(()),
        }
    }

    /// Whether the output is a sum over shards, here or on other ranks.
    const fn is_summed(&self) -> bool {
        self.tp_shards.num > 1 || self.tp_shards.sequence
    }

    /// Sums over the local shards.
    fn partial_sum(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        spare: ViewMut<'_>,
    ) -> Result<()> {
        let (num, len) = (self.shards.len(), x.len() / self.shards.len());
        let fuses = self.fuses();
        reduction_tree::sum(device, 0..num, fuses, y, spare, &mut |shard, y, write| {
            let x = x.range(shard * len..(shard + 1) * len);
            self.shards[shard].product(device, params, x, y, write)
        })
    }

    /// Whether a shard's term of the output is rounded to one number before it is added.
    fn fuses(&self) -> bool {
        self.shards[0].precision().fuses(self.num_inputs())
    }

    fn spare_len(&self, num_rows: usize) -> usize {
        let num = reduction_tree::num_spare(self.shards.len(), self.fuses());
        num * num_rows * self.num_outputs()
    }

    /// Temporary elements of [`Self::forward`].
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let has_sums = self.tp_shards.sequence || self.has_wide_sums();
        let all = if has_sums { num_rows * self.num_outputs() } else { 0 };
        all + self.spare_len(num_rows)
    }

    /// Gradient of all `num_rows` rows of the output, from that of the stream after dropout.
    pub(crate) fn output_gradient<'a, 'f: 'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        d_stream: View<'a>,
        mask: Option<RowMask>,
        num_rows: usize,
        frame: &mut Frame<'f>,
    ) -> Result<View<'a>> {
        if mask.is_none() && !self.tp_shards.sequence {
            return Ok(d_stream);
        }
        let len = num_rows * self.num_outputs();
        let mut all = frame.take_as(self.formats().activations, len);
        self.fill_output_gradient(device, collectives, d_stream, mask, all.reborrow())?;
        Ok(all.into_view())
    }

    /// Writes the gradient of all rows of the output to `all`, from that of the stream after
    /// dropout.
    pub(crate) fn fill_output_gradient(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        d_stream: View<'_>,
        mask: Option<RowMask>,
        mut all: ViewMut<'_>,
    ) -> Result<()> {
        let width = self.num_outputs();
        let own = self.tp_shards.rows(all.len() / width);
        let mut of_stream = all.reborrow().range(own.start * width..own.end * width);
        device.copy(d_stream, of_stream.reborrow())?;
        if let Some(mask) = mask {
            mask.apply(device, of_stream)?;
        }
        self.tp_shards.gather_rows(collectives, all);
        Ok(())
    }

    /// Overwrites `dx` with the input gradient, from all rows of the output gradient.
    pub(crate) fn backward_input(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (len, mut dx) = (dx.len() / self.shards.len(), Frame::over(dx));
        let mut shards = self.shards.iter();
        shards.try_for_each(|shard| shard.backward_input(device, params, dy, dx.take(len)))
    }

    /// Overwrites `dx` with the gradient of the input before GELU, from all rows of the output
    /// gradient.
    pub(crate) fn backward_input_gelu(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        before: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (len, mut dx) = (dx.len() / self.shards.len(), Frame::over(dx));
        self.shards.iter().enumerate().try_for_each(|(index, shard)| {
            let before = before.range(index * len..(index + 1) * len);
            let (dx, epilogue) = (dx.take(len), Epilogue::GeluBackward { before });
            shard.input_product(device, params, dy, dx, Write::Set, epilogue)
        })
    }

    /// Overwrites `dx` with the gradient of the input, or of what is before GELU, and adds the
    /// gradients of trained weights to `grads`, from all rows of the input and of the output
    /// gradient. Those of the bias are apart ([`Self::backward_bias`]).
    pub(crate) fn backward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        (x, before_gelu): (View<'_>, Option<View<'_>>),
        dy: View<'_>,
        dx: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (len, mut dx) = (dx.len() / self.shards.len(), Frame::over(dx));
        self.shards.iter().enumerate().try_for_each(|(index, shard)| {
            let own = index * len..(index + 1) * len;
            let epilogue = match before_gelu {
                Some(before) => Epilogue::GeluBackward { before: before.range(own.clone()) },
                None => Epilogue::None,
            };
            let target = (dx.take(len), Write::Set, epilogue);
            let (x, dy) = (x.range(own), OutputGradient::Stored(dy));
            shard.backward(device, params, x, dy, target, grads.reborrow())
        })
    }

    /// Adds the gradients of trained weights and bias to `grads`, from all rows of the input and of
    /// the output gradient.
    pub(crate) fn backward_weight(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        x: View<'_>,
        dy: View<'_>,
        mut grads: Grads<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        let len = x.len() / self.shards.len();
        for (index, shard) in self.shards.iter().enumerate() {
            let x = x.range(index * len..(index + 1) * len);
            shard.backward_weight(device, x, dy, grads.reborrow())?;
        }
        self.backward_bias(device, collectives, dy, grads, frame)
    }

    /// Adds the gradient of a trained bias to `grads`, from all rows of the output gradient.
    pub(crate) fn backward_bias(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        dy: View<'_>,
        mut grads: Grads<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        let Some(at) = &self.bias else { return Ok(()) };
        let grads = grads.of(at);
        if grads.is_empty() {
            return Ok(());
        }
        let width = self.num_outputs();
        let sums = RowSums { tp_shards: &self.tp_shards, num_rows: dy.len() / width };
        let len = grads.len();
        let (grads, none) = grads.split_at(len);
        sums.add_to(device, collectives, [grads, none], frame, &mut |rows, [sum, _]| {
            device.column_sums(dy.range(rows.start * width..rows.end * width), sum)
        })
    }
}

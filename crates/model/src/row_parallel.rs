//! Row-parallel linear layer (Megatron-LM): its inputs are sharded. The second product of each half
//! of a layer.
//!
//! Every shard multiplies its own inputs with its own rows of the weight, which gives a partial sum
//! of the whole output; partial sums are added by the tree. The bias is added once, after the sum.
//! The input and weight gradients of a shard need the whole output gradient and no communication.
//! Inputs are stored shard after shard, as in [`crate::column_parallel`].
//!
//! A family may normalise the whole output before it is added to the stream (Gemma 2, OLMo 2): each
//! rank normalises its rows of the stream.

use crate::block::ProductPlan;
use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::dropout::{AdapterMasks, RowMask};
use crate::formats::Formats;
use crate::grads::Grads;
use crate::linear::{Linear, larger_operands};
use crate::lora::RowAdapter;
use crate::norm::Norm;
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
    /// Adapter beside the layer, if it has one.
    pub(crate) adapter: Option<RowAdapter>,
    /// Normalisation of the output, if it has one.
    pub(crate) post_norm: Option<Norm>,
    /// Shards of the model.
    pub(crate) tp_shards: TensorShards,
}

/// Saved values of the normalisation of the output: its input and statistics; empty without one.
pub(crate) struct PostNormSaved<'a> {
    raw_tc: ViewMut<'a>,
    stats: ViewMut<'a>,
}

impl PostNormSaved<'_> {
    pub(crate) fn reborrow(&mut self) -> PostNormSaved<'_> {
        PostNormSaved { raw_tc: self.raw_tc.reborrow(), stats: self.stats.reborrow() }
    }
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

    /// Bytes of the largest operands that an accelerator rounds or quantises first.
    pub(crate) fn operand_bytes(&self, num_rows: usize, products: ProductPlan) -> [usize; 2] {
        let adapter = self.adapter.as_ref();
        let adapter = adapter.map_or([0; 2], |adapter| adapter.operand_bytes(num_rows, products));
        larger_operands(self.shards[0].operand_bytes(num_rows, products), adapter)
    }

    /// Collective call of the adapter, in forward and for its weight gradients.
    pub(crate) fn adapter_call(&self, num_rows: usize) -> Option<CollectiveCall> {
        self.adapter.as_ref().map(|adapter| adapter.hidden_call(num_rows))
    }

    /// Elements saved for the normalisation of the output.
    pub(crate) fn saved_len(&self, num_rows: usize) -> usize {
        let own = self.tp_shards.rows(num_rows).len();
        let len = |norm: &Norm| self.formats().floats(own * norm.width) + norm.stats_len(own);
        self.post_norm.as_ref().map_or(0, len)
    }

    /// Takes memory of that length.
    pub(crate) fn split<'a>(&self, num_rows: usize, memory: &mut Frame<'a>) -> PostNormSaved<'a> {
        let own = self.tp_shards.rows(num_rows).len();
        let [raw, stats] = match &self.post_norm {
            Some(norm) => [own * norm.width, norm.stats_len(own)],
            None => [0; 2],
        };
        let raw_tc = memory.take_as(self.formats().activations, raw);
        PostNormSaved { raw_tc, stats: memory.take(stats) }
    }

    /// Overwrites `y` with the local rows of the output, from all rows of the input, plus those of
    /// the residual, if any; fills `saved`.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x: View<'_>,
        residual: Option<View<'_>>,
        mut y: ViewMut<'_>,
        saved: PostNormSaved<'_>,
        masks: AdapterMasks,
        frame: Frame<'_>,
    ) -> Result<()> {
        let Some(norm) = &self.post_norm else {
            return self.adapted(device, collectives, params, x, residual, y, masks, frame);
        };
        let PostNormSaved { mut raw_tc, stats } = saved;
        let raw = raw_tc.reborrow();
        self.adapted(device, collectives, params, x, None, raw, masks, frame)?;
        norm.forward(device, params, raw_tc.as_view(), y.reborrow(), stats)?;
        match residual {
            Some(residual) => device.add_assign(y, residual),
            None => Ok(()),
        }
    }

    /// As [`Self::forward`], without the normalisation.
    fn adapted(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x: View<'_>,
        residual: Option<View<'_>>,
        mut y: ViewMut<'_>,
        masks: AdapterMasks,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let (out, spare) = (y.reborrow(), frame.nested());
        self.project(device, collectives, params, x, residual, out, spare)?;
        match &self.adapter {
            Some(adapter) => adapter.forward(device, collectives, params, x, y, masks, frame),
            None => Ok(()),
        }
    }

    /// As [`Self::adapted`], without the adapter.
    fn project(
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
        (all + self.spare_len(num_rows)).max(self.adapter_scratch_len(num_rows))
    }

    /// Temporary elements of the normalisation's part of [`Self::fill_output_gradient`].
    pub(crate) fn gradient_scratch_len(&self, num_rows: usize) -> usize {
        let own = self.tp_shards.rows(num_rows).len();
        self.post_norm.as_ref().map_or(0, |norm| {
            self.formats().floats(own * norm.width) + norm.scratch_len(&self.tp_shards)
        })
    }

    /// Collective call of the gradients of the normalisation; `trained` are the trained ranges of
    /// the block.
    pub(crate) fn post_norm_call(&self, trained: &[Range<usize>]) -> Option<CollectiveCall> {
        self.tp_shards.row_blocks_call(&self.post_norm.as_ref()?.params(), trained)
    }

    /// Temporary elements of the adapter.
    pub(crate) fn adapter_scratch_len(&self, num_rows: usize) -> usize {
        self.adapter.as_ref().map_or(0, |adapter| adapter.scratch_len(num_rows))
    }

    /// Adds the adapter's part of the input gradient to `dx`, from all rows of the output gradient.
    pub(crate) fn backward_adapter_input(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        masks: AdapterMasks,
        frame: Frame<'_>,
    ) -> Result<()> {
        match &self.adapter {
            Some(adapter) => adapter.backward_input(device, params, dy, dx, masks, frame),
            None => Ok(()),
        }
    }

    /// Adds the gradients of the adapter to `grads`, from all rows of the input and of the output
    /// gradient.
    pub(crate) fn backward_adapter(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        (x, dy): (View<'_>, View<'_>),
        masks: AdapterMasks,
        grads: Grads<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        match &self.adapter {
            Some(adapter) => {
                adapter.backward_weight(device, collectives, params, x, dy, masks, grads, frame)
            }
            None => Ok(()),
        }
    }

    /// Whether the gradient of the output has memory of its own.
    pub(crate) fn copies_gradient(&self) -> bool {
        self.tp_shards.sequence || self.post_norm.is_some()
    }

    /// Gradient of all `num_rows` rows of the output, from that of the stream after dropout; adds
    /// the gradients of the normalisation to `grads`.
    pub(crate) fn output_gradient<'a, 'f: 'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        (d_stream, mask): (View<'a>, Option<RowMask>),
        num_rows: usize,
        saved: &PostNormSaved<'_>,
        grads: Grads<'_>,
        frame: &mut Frame<'f>,
    ) -> Result<View<'a>> {
        if mask.is_none() && !self.copies_gradient() {
            return Ok(d_stream);
        }
        let len = num_rows * self.num_outputs();
        let mut all = frame.take_as(self.formats().activations, len);
        let (dz, spare) = (all.reborrow(), frame.nested());
        let of_stream = (d_stream, mask);
        self.fill_output_gradient(device, collectives, params, of_stream, saved, grads, dz, spare)?;
        Ok(all.into_view())
    }

    /// Writes the gradient of all rows of the output to `all`, from that of the stream after
    /// dropout; adds the gradients of the normalisation to `grads`.
    pub(crate) fn fill_output_gradient(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        (d_stream, mask): (View<'_>, Option<RowMask>),
        saved: &PostNormSaved<'_>,
        grads: Grads<'_>,
        mut all: ViewMut<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let width = self.num_outputs();
        let num_rows = all.len() / width;
        let own = self.tp_shards.rows(num_rows);
        let mut of_stream = all.reborrow().range(own.start * width..own.end * width);
        let Some(norm) = &self.post_norm else {
            device.copy(d_stream, of_stream.reborrow())?;
            if let Some(mask) = mask {
                mask.apply(device, of_stream)?;
            }
            self.tp_shards.gather_rows(collectives, all);
            return Ok(());
        };
        let mut dy_tc = frame.take_as(d_stream.dtype(), d_stream.len());
        device.copy(d_stream, dy_tc.reborrow())?;
        if let Some(mask) = mask {
            mask.apply(device, dy_tc.reborrow())?;
        }
        device.fill(of_stream.reborrow(), 0.0)?;
        let sums = RowSums { tp_shards: &self.tp_shards, num_rows };
        let (x_tc, stats, dy_tc) = (saved.raw_tc.as_view(), saved.stats.as_view(), dy_tc.as_view());
        norm.backward(
            device,
            collectives,
            params,
            x_tc,
            stats,
            dy_tc,
            of_stream,
            grads,
            &sums,
            frame,
        )?;
        self.tp_shards.gather_rows(collectives, all);
        Ok(())
    }

    /// As [`Self::fill_output_gradient`], for deferred weight gradients: `sums` becomes the
    /// contribution of the micro-batch to the gradients of the normalisation.
    pub(crate) fn fill_output_gradient_only(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        of_stream: (View<'_>, Option<RowMask>),
        saved: &PostNormSaved<'_>,
        mut sums: ViewMut<'_>,
        all: ViewMut<'_>,
        frame: Frame<'_>,
    ) -> Result<()> {
        // Adding to minus zero changes no bit, not even the sign of a zero.
        device.fill(sums.reborrow(), -0.0)?;
        let at = self.post_norm.as_ref().map(|norm| norm.at.clone());
        let grads = Grads::new(sums, at.as_slice());
        self.fill_output_gradient(device, collectives, params, of_stream, saved, grads, all, frame)
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

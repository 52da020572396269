//! Adapter of a row-parallel layer: A is sharded with the inputs, B is replicated.

use super::low_rank::{AdapterParams, LowRank, kaiming_uniform, masked, weight};
use super::names::{A, B};
use crate::block::ProductPlan;
use crate::collectives::{CollectiveCall, CollectiveKind, TensorCollectives};
use crate::dropout::{AdapterMasks, RowMask};
use crate::grads::Grads;
use crate::param::{Init, Piece};
use crate::reduction_tree;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_config::LoraTarget;
use lockstep_tensor::device::{Device, Matrix, MatrixMut, Result, View, ViewMut};
use lockstep_tensor::fp8::Role;
use lockstep_tensor::gemm::Write;
use std::ops::Range;

/// Adapter of a row-parallel layer.
#[derive(Clone, Debug)]
pub(crate) struct RowAdapter {
    target: LoraTarget,
    /// A by local shard.
    a: Vec<Range<usize>>,
    b: Range<usize>,
    low_rank: LowRank,
    /// Inputs of one shard.
    num_inputs: usize,
    num_outputs: usize,
    tp_shards: TensorShards,
}

impl RowAdapter {
    /// Adapter of a row-parallel layer, if it is a target. Its names begin with `prefix`.
    pub(crate) fn new(
        AdapterParams { model, tp_shards, formats, params }: &mut AdapterParams<'_>,
        prefix: &str,
        target: LoraTarget,
    ) -> Option<Self> {
        let lora = &model.lora;
        if !lora.is_on() || !lora.targets.contains(target) {
            return None;
        }
        let (num_inputs, num_outputs) = model.linear_shape(target);
        let (shape, module) = ([lora.rank, num_inputs], format!("{prefix}.{target}"));
        let a = tp_shards.local.clone().map(|shard| {
            let own = tp_shards.range(num_inputs, shard);
            let piece = Piece::cols(&shape, shard, tp_shards.num, vec![own]);
            params.push_piece(format!("{module}{A}"), &shape, piece, kaiming_uniform(num_inputs))
        });
        let a = a.collect();
        let b = params.push(format!("{module}{B}"), &[num_outputs, lora.rank], Init::Zeros);
        let (low_rank, tp_shards) = (LowRank::new(lora, *formats), tp_shards.clone());
        let num_inputs = num_inputs / tp_shards.num;
        Some(Self { target, a, b, low_rank, num_inputs, num_outputs, tp_shards })
    }

    /// FLOPs of forward for one row, over the shards of all ranks.
    pub(crate) const fn flops(&self) -> u64 {
        let all_inputs = self.num_inputs * self.tp_shards.num;
        (2 * self.low_rank.rank * (all_inputs + self.num_outputs)) as u64
    }

    const fn hidden_len(&self, num_rows: usize) -> usize {
        num_rows * self.low_rank.rank
    }

    /// Temporary elements of any of the calls below.
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let sums = 2 + reduction_tree::num_spare(self.a.len(), false);
        let masked = self.low_rank.masked_len(num_rows, self.num_inputs);
        sums * self.hidden_len(num_rows) + masked
    }

    /// Bytes of the largest operands that an accelerator rounds first.
    pub(crate) fn operand_bytes(&self, num_rows: usize, products: ProductPlan) -> [usize; 2] {
        let weight_len = self.a[0].len().max(self.b.len());
        self.low_rank.operand_bytes(num_rows, weight_len, products)
    }

    /// Collective call of forward, and of the weight gradients.
    pub(crate) const fn hidden_call(&self, num_rows: usize) -> CollectiveCall {
        CollectiveCall::new(CollectiveKind::AllReduce, self.hidden_len(num_rows))
    }

    fn mask(&self, masks: AdapterMasks, shard: usize) -> Option<RowMask> {
        masks.of(self.target, self.tp_shards.local.start + shard, 0, self.num_inputs)
    }

    /// Adds the adapter's output to the local rows in `y`, from all rows of the input.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        masks: AdapterMasks,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let hidden = self.hidden(device, collectives, params, x, masks, &mut frame)?;
        let (own, rank) = (self.tp_shards.rows(hidden.rows), self.low_rank.rank);
        let hidden = hidden.data.range(own.start * rank..own.end * rank);
        let hidden = Matrix::new(hidden, own.len(), rank);
        let b = weight(params, &self.b, rank).t();
        let y = MatrixMut::new(y, own.len(), self.num_outputs);
        self.low_rank.multiply(device, hidden, b, y, Write::Add)
    }

    /// Scaled hidden vectors of all rows.
    fn hidden<'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x: View<'_>,
        masks: AdapterMasks,
        frame: &mut Frame<'a>,
    ) -> Result<Matrix<'a>> {
        let (num, len, rank) = (self.a.len(), x.len() / self.a.len(), self.low_rank.rank);
        let rows = len / self.num_inputs;
        let mut hidden = frame.take(rows * rank);
        let mut inner = frame.nested();
        let spare = inner.take(reduction_tree::num_spare(num, false) * rows * rank);
        let of_shard = &mut |shard: usize, out: ViewMut<'_>, write| {
            let (own, mut inner) = (x.range(shard * len..(shard + 1) * len), inner.nested());
            let x = masked(device, own, self.mask(masks, shard), &mut inner)?;
            let x = Matrix::new(x, rows, self.num_inputs);
            let a = weight(params, &self.a[shard], self.num_inputs).t();
            self.low_rank.multiply(device, x, a, MatrixMut::new(out, rows, rank), write)
        };
        reduction_tree::sum(device, 0..num, false, hidden.reborrow(), spare, of_shard)?;
        collectives.all_reduce(hidden.reborrow());
        self.low_rank.scale(device, hidden.reborrow())?;
        Ok(Matrix::new(hidden.into_view(), rows, rank))
    }

    /// Scaled gradients of hidden vectors, from all rows of the output gradient.
    fn hidden_gradient<'a>(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        frame: &mut Frame<'a>,
    ) -> Result<Matrix<'a>> {
        let (rows, rank) = (dy.len() / self.num_outputs, self.low_rank.rank);
        let mut d_hidden = frame.take(rows * rank);
        let dy = Matrix::new(dy, rows, self.num_outputs).in_role(Role::Gradient);
        let out = MatrixMut::new(d_hidden.reborrow(), rows, rank);
        self.low_rank.multiply(device, dy, weight(params, &self.b, rank), out, Write::Set)?;
        self.low_rank.scale(device, d_hidden.reborrow())?;
        Ok(Matrix::new(d_hidden.into_view(), rows, rank))
    }

    /// Adds the gradients of trained matrices, from all rows of the input and of the output
    /// gradient.
    pub(crate) fn backward_weight(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        x: View<'_>,
        dy: View<'_>,
        masks: AdapterMasks,
        mut grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let hidden = self.hidden(device, collectives, params, x, masks, &mut frame)?;
        let d_hidden = self.hidden_gradient(device, params, dy, &mut frame)?;
        let (rows, rank, write) = (hidden.rows, self.low_rank.rank, grads.write());
        let target = grads.of(&self.b);
        if !target.is_empty() {
            let dy = Matrix::new(dy, rows, self.num_outputs).in_role(Role::Gradient).t();
            let out = MatrixMut::new(target, self.num_outputs, rank);
            self.low_rank.multiply(device, dy, hidden, out, write)?;
        }
        let len = x.len() / self.a.len();
        for (shard, a) in self.a.iter().enumerate() {
            let target = grads.of(a);
            if target.is_empty() {
                continue;
            }
            let (own, mut inner) = (x.range(shard * len..(shard + 1) * len), frame.nested());
            let x = masked(device, own, self.mask(masks, shard), &mut inner)?;
            let x = Matrix::new(x, rows, self.num_inputs);
            let out = MatrixMut::new(target, rank, self.num_inputs);
            self.low_rank.multiply(device, d_hidden.t(), x, out, write)?;
        }
        Ok(())
    }

    /// Adds the input gradient of the local shards to `dx`, from all rows of the output gradient.
    pub(crate) fn backward_input(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        masks: AdapterMasks,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let d_hidden = self.hidden_gradient(device, params, dy, &mut frame)?;
        let (len, mut dx) = (dx.len() / self.a.len(), Frame::over(dx));
        for (shard, a) in self.a.iter().enumerate() {
            let (a, mask) = (weight(params, a, self.num_inputs), self.mask(masks, shard));
            let (dx, spare) = (dx.take(len), frame.nested());
            self.low_rank.add_input_gradient(device, d_hidden, a, mask, dx, spare)?;
        }
        Ok(())
    }
}

//! Adapters of a column-parallel layer: A is replicated, B is sharded with the outputs.

use super::low_rank::{AdapterParams, LowRank, kaiming_uniform, masked, weight};
use super::names::{A, B};
use crate::block::ProductPlan;
use crate::collectives::{CollectiveCall, CollectiveKind, TensorCollectives};
use crate::dropout::AdapterMasks;
use crate::formats::Formats;
use crate::grads::Grads;
use crate::param::{Init, Piece};
use crate::reduction_tree;
use crate::scratch::Frame;
use lockstep_config::{Lora, LoraTarget};
use lockstep_tensor::device::{Device, Matrix, MatrixMut, Result, View, ViewMut};
use lockstep_tensor::fp8::Role;
use lockstep_tensor::gemm::Write;
use std::ops::Range;

/// Adapter of some outputs of a column-parallel layer.
#[derive(Clone, Debug)]
struct ColumnAdapter {
    target: LoraTarget,
    /// Outputs in a row of one shard.
    columns: Range<usize>,
    a: Range<usize>,
    /// B by local shard.
    b: Vec<Range<usize>>,
}

/// Adapters of a column-parallel layer.
#[derive(Clone, Debug)]
pub(crate) struct ColumnAdapters {
    list: Vec<ColumnAdapter>,
    low_rank: LowRank,
    /// Inputs.
    width: usize,
    /// Outputs of one shard.
    num_outputs: usize,
    /// Shards on all ranks.
    num_shards: usize,
}

impl ColumnAdapters {
    /// Adapters of a column-parallel layer whose outputs are these, in order; those of them that
    /// are no target have none. Their names begin with `prefix`.
    pub(crate) fn new(
        AdapterParams { model, tp_shards, formats, params }: &mut AdapterParams<'_>,
        prefix: &str,
        outputs: &[LoraTarget],
    ) -> Self {
        let (lora, mut list, mut start) = (&model.lora, Vec::new(), 0);
        for target in outputs {
            let (num_inputs, num_outputs) = model.linear_shape(*target);
            let columns = start..start + num_outputs / tp_shards.num;
            start = columns.end;
            if !lora.is_on() || !lora.targets.contains(*target) {
                continue;
            }
            let (shape, module) = ([lora.rank, num_inputs], format!("{prefix}.{target}"));
            let a = params.push(format!("{module}{A}"), &shape, kaiming_uniform(num_inputs));
            let b = tp_shards.local.clone().map(|shard| {
                let (shape, own) = ([num_outputs, lora.rank], tp_shards.range(num_outputs, shard));
                let piece = Piece::rows(&shape, shard, tp_shards.num, own);
                params.push_piece(format!("{module}{B}"), &shape, piece, Init::Zeros)
            });
            list.push(ColumnAdapter { target: *target, columns, a, b: b.collect() });
        }
        let num_shards = tp_shards.num;
        let (low_rank, width, num_outputs) = (LowRank::new(lora, *formats), model.width, start);
        Self { list, low_rank, width, num_outputs, num_shards }
    }

    /// No adapters.
    pub(crate) fn none(formats: Formats) -> Self {
        let low_rank = LowRank::new(&Lora::NONE, formats);
        Self { list: Vec::new(), low_rank, width: 0, num_outputs: 0, num_shards: 1 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// FLOPs of forward for one row, over the shards of all ranks.
    pub(crate) fn flops(&self) -> u64 {
        let of = |adapter: &ColumnAdapter| {
            2 * self.low_rank.rank * (self.width + adapter.columns.len() * self.num_shards)
        };
        self.list.iter().map(of).sum::<usize>() as u64
    }

    /// Elements of hidden vectors of one adapter.
    const fn hidden_len(&self, num_rows: usize) -> usize {
        num_rows * self.low_rank.rank
    }

    /// Temporary elements of all calls below, the result of [`Self::hidden_gradients`] included.
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let Some(first) = self.list.first() else { return 0 };
        let hidden = self.hidden_len(num_rows);
        let sums = reduction_tree::num_spare(first.b.len(), false) * hidden;
        let masked = self.low_rank.masked_len(num_rows, self.width);
        self.list.len() * hidden + sums.max(masked + hidden)
    }

    /// Bytes of the largest operands that an accelerator rounds first.
    pub(crate) fn operand_bytes(&self, num_rows: usize, products: ProductPlan) -> [usize; 2] {
        let lens = |adapter: &ColumnAdapter| adapter.a.len().max(adapter.b[0].len());
        let weight_len = self.list.iter().map(lens).max();
        weight_len.map_or([0; 2], |len| self.low_rank.operand_bytes(num_rows, len, products))
    }

    /// Collective call of [`Self::hidden_gradients`].
    pub(crate) fn gradients_call(&self, num_rows: usize) -> Option<CollectiveCall> {
        let len = self.list.len() * self.hidden_len(num_rows);
        (len > 0).then_some(CollectiveCall::new(CollectiveKind::AllReduce, len))
    }

    /// Adds the adapters' outputs to `y`, from all rows of the input.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        mut y: ViewMut<'_>,
        masks: AdapterMasks,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        for adapter in &self.list {
            let mut frame = frame.nested();
            let x = masked(device, x, masks.of(adapter.target, 0, 0, self.width), &mut frame)?;
            let hidden = self.hidden(device, params, adapter, x, &mut frame)?;
            let len = y.len() / adapter.b.len();
            for (shard, b) in adapter.b.iter().enumerate() {
                let own = y.reborrow().range(shard * len..(shard + 1) * len);
                let out = own.range(adapter.columns.start..len);
                let (rows, columns) = (hidden.rows, adapter.columns.len());
                let out = MatrixMut::strided(out, rows, columns, self.num_outputs);
                let b = weight(params, b, self.low_rank.rank).t();
                self.low_rank.multiply(device, hidden, b, out, Write::Add)?;
            }
        }
        Ok(())
    }

    /// Scaled hidden vectors of an adapter, from its masked input.
    fn hidden<'a>(
        &self,
        device: &dyn Device,
        params: View<'_>,
        adapter: &ColumnAdapter,
        x: View<'_>,
        frame: &mut Frame<'a>,
    ) -> Result<Matrix<'a>> {
        let (rows, rank) = (x.len() / self.width, self.low_rank.rank);
        let mut hidden = frame.take(rows * rank);
        let (x, a) = (Matrix::new(x, rows, self.width), weight(params, &adapter.a, self.width));
        let out = MatrixMut::new(hidden.reborrow(), rows, rank);
        self.low_rank.multiply(device, x, a.t(), out, Write::Set)?;
        self.low_rank.scale(device, hidden.reborrow())?;
        Ok(Matrix::new(hidden.into_view(), rows, rank))
    }

    /// Output gradient of an adapter's columns in one shard.
    fn of_columns<'a>(&self, adapter: &ColumnAdapter, dy: View<'a>, shard: usize) -> Matrix<'a> {
        let len = dy.len() / adapter.b.len();
        let own = dy.range(shard * len + adapter.columns.start..(shard + 1) * len);
        let columns = adapter.columns.len();
        Matrix::strided(own, len / self.num_outputs, columns, self.num_outputs)
            .in_role(Role::Gradient)
    }

    /// Scaled gradients of all rows of hidden vectors, adapter after adapter, from the output
    /// gradient of the local shards.
    pub(crate) fn hidden_gradients<'a>(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        dy: View<'_>,
        num_rows: usize,
        frame: &mut Frame<'a>,
    ) -> Result<View<'a>> {
        let (len, rank) = (self.hidden_len(num_rows), self.low_rank.rank);
        let mut all = frame.take(self.list.len() * len);
        if self.is_empty() {
            return Ok(all.into_view());
        }
        let mut parts = Frame::over(all.reborrow());
        for adapter in &self.list {
            let num = adapter.b.len();
            let spare = frame.nested().take(reduction_tree::num_spare(num, false) * len);
            let of_shard = &mut |shard: usize, out: ViewMut<'_>, write| {
                let b = weight(params, &adapter.b[shard], rank);
                let dy = self.of_columns(adapter, dy, shard);
                self.low_rank.multiply(device, dy, b, MatrixMut::new(out, num_rows, rank), write)
            };
            reduction_tree::sum(device, 0..num, false, parts.take(len), spare, of_shard)?;
        }
        collectives.all_reduce(all.reborrow());
        self.low_rank.scale(device, all.reborrow())?;
        Ok(all.into_view())
    }

    /// Adds the gradients of trained matrices, from all rows of the input, the output gradient of
    /// the local shards and [`Self::hidden_gradients`].
    pub(crate) fn backward_weight(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        (dy, d_hidden): (View<'_>, View<'_>),
        masks: AdapterMasks,
        mut grads: Grads<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let (rank, write) = (self.low_rank.rank, grads.write());
        for (index, adapter) in self.list.iter().enumerate() {
            let mut frame = frame.nested();
            let x = masked(device, x, masks.of(adapter.target, 0, 0, self.width), &mut frame)?;
            let hidden = self.hidden(device, params, adapter, x, &mut frame)?;
            for (shard, b) in adapter.b.iter().enumerate() {
                let target = grads.of(b);
                if !target.is_empty() {
                    let dy = self.of_columns(adapter, dy, shard).t();
                    let out = MatrixMut::new(target, adapter.columns.len(), rank);
                    self.low_rank.multiply(device, dy, hidden, out, write)?;
                }
            }
            let target = grads.of(&adapter.a);
            if !target.is_empty() {
                let d_hidden = self.of_adapter(index, d_hidden, hidden.rows).t();
                let x = Matrix::new(x, hidden.rows, self.width);
                let out = MatrixMut::new(target, rank, self.width);
                self.low_rank.multiply(device, d_hidden, x, out, write)?;
            }
        }
        Ok(())
    }

    /// Adds the input gradient of some rows to `dx`, from [`Self::hidden_gradients`] of
    /// `num_rows`.
    pub(crate) fn backward_input(
        &self,
        device: &dyn Device,
        params: View<'_>,
        (d_hidden, num_rows): (View<'_>, usize),
        rows: &Range<usize>,
        masks: AdapterMasks,
        mut dx: ViewMut<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let rank = self.low_rank.rank;
        for (index, adapter) in self.list.iter().enumerate() {
            let d_hidden = self.of_adapter(index, d_hidden, num_rows).data;
            let d_hidden = d_hidden.range(rows.start * rank..rows.end * rank);
            let d_hidden = Matrix::new(d_hidden, rows.len(), rank);
            let mask = masks.of(adapter.target, 0, rows.start, self.width);
            let (a, dx) = (weight(params, &adapter.a, self.width), dx.reborrow());
            let spare = frame.nested();
            self.low_rank.add_input_gradient(device, d_hidden, a, mask, dx, spare)?;
        }
        Ok(())
    }

    /// Hidden gradients of one adapter.
    fn of_adapter<'a>(&self, index: usize, d_hidden: View<'a>, num_rows: usize) -> Matrix<'a> {
        let len = self.hidden_len(num_rows);
        let own = d_hidden.range(index * len..(index + 1) * len);
        Matrix::new(own, num_rows, self.low_rank.rank)
    }
}

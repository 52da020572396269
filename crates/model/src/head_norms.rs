//! RMSNorm of queries and keys before rotation: over every head (Qwen3; Henry et al. 2020), or over
//! all heads together (OLMo 2), which then are one head of their normalisation.
//!
//! A head is a row of the normalisation, and all heads of a layer share one weight for queries and
//! one for keys. Heads lie inside the rows of `qkv`, so they are gathered into rows of their own,
//! which backward needs, and the normalised ones are scattered back.
//!
//! Shards divide the heads, so each shard sums its weight gradients over its own heads and all rows
//! of the micro-batch, in order, and the sums of shards are added by the tree: the bits are equal
//! under every layout, with and without sequence parallelism.

use crate::collectives::{CollectiveCall, TensorCollectives};
use crate::norm::Norm;
use crate::reduction_tree;
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::{Device, Result, View, ViewMut};
use lockstep_tensor::gemm::Write;
use std::ops::Range;

/// Normalisations of the heads of one shard.
pub(crate) struct HeadNorms {
    pub(crate) query: Norm,
    pub(crate) key: Norm,
    /// Normalised query heads of one shard.
    pub(crate) heads: usize,
    /// Normalised key heads of one shard.
    pub(crate) kv_heads: usize,
}

/// Heads of one kind: where they are in a row of `qkv`, in the gathered rows and in the statistics.
struct Part<'a> {
    norm: &'a Norm,
    /// First element in a row of `qkv`.
    start: usize,
    /// Elements in a row of `qkv`.
    len: usize,
    gathered: Range<usize>,
    stats: Range<usize>,
}

impl HeadNorms {
    /// Both weights, which are contiguous.
    pub(crate) const fn at(&self) -> Range<usize> {
        self.query.at.start..self.key.at.end
    }

    /// Gathered elements of `num_rows` rows of `qkv`, over all shards.
    pub(crate) const fn num_gathered(&self, num_rows: usize) -> usize {
        num_rows * (self.heads * self.query.width + self.kv_heads * self.key.width)
    }

    /// Statistics of `num_rows` rows of `qkv`.
    pub(crate) const fn num_stats(&self, num_rows: usize) -> usize {
        num_rows * (self.heads + self.kv_heads)
    }

    /// Elements of the heads of one kind in `num_rows` rows, at most.
    const fn num_spare(&self, num_rows: usize) -> usize {
        num_rows * self.heads * self.query.width
    }

    /// Temporary `f32` elements of [`Self::backward`], whose rows have `floats` of memory each.
    pub(crate) fn scratch_len(
        &self,
        num_rows: usize,
        floats: impl Fn(usize) -> usize,
        tp_shards: &TensorShards,
    ) -> usize {
        let sums = 1 + reduction_tree::num_spare(tp_shards.num_local(), false);
        2 * floats(self.num_spare(num_rows)) + sums * self.at().len()
    }

    fn parts(&self, num_rows: usize) -> [Part<'_>; 2] {
        let (q_len, k_len) = (self.heads * self.query.width, self.kv_heads * self.key.width);
        let middle = num_rows * self.heads;
        let query = Part {
            norm: &self.query,
            start: 0,
            len: q_len,
            gathered: 0..num_rows * q_len,
            stats: 0..middle,
        };
        let key = Part {
            norm: &self.key,
            start: q_len,
            len: k_len,
            gathered: num_rows * q_len..self.num_gathered(num_rows),
            stats: middle..self.num_stats(num_rows),
        };
        [query, key]
    }

    /// Normalises the heads of `qkv`, whose rows have `stride` elements, in place; fills `gathered`
    /// with the heads before and `stats` with their statistics. `spare` has the query heads.
    pub(crate) fn forward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        stride: usize,
        mut qkv: ViewMut<'_>,
        mut gathered: ViewMut<'_>,
        mut stats: ViewMut<'_>,
        mut spare: ViewMut<'_>,
    ) -> Result<()> {
        let num_rows = qkv.len() / stride;
        for Part { norm, start, len, gathered: own, stats: own_stats } in self.parts(num_rows) {
            let (shape, elements) = ((num_rows, len), start..qkv.len());
            let mut heads = gathered.reborrow().range(own);
            let from = (qkv.as_view().range(elements.clone()), stride);
            device.copy_rows(shape, from, (heads.reborrow(), len))?;
            let mut normed = spare.reborrow().range(0..heads.len());
            let stats = stats.reborrow().range(own_stats);
            norm.forward(device, params, heads.as_view(), normed.reborrow(), stats)?;
            let to = (qkv.reborrow().range(elements), stride);
            device.copy_rows(shape, (normed.as_view(), len), to)?;
        }
        Ok(())
    }

    /// Passes the gradient of the normalised heads in `d_qkv` through the normalisation, in place,
    /// and adds the gradients of the weights to `targets`, either of which may be empty.
    pub(crate) fn backward(
        &self,
        device: &dyn Device,
        collectives: &mut dyn TensorCollectives,
        params: View<'_>,
        (gathered, stats): (View<'_>, View<'_>),
        (mut d_qkv, stride): (ViewMut<'_>, usize),
        targets: [ViewMut<'_>; 2],
        tp_shards: &TensorShards,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let (num_rows, dtype) = (d_qkv.len() / stride, d_qkv.dtype());
        let mut sums = frame.take(targets[0].len() + targets[1].len());
        let mut of_parts = Frame::over(sums.reborrow());
        for (part, target) in self.parts(num_rows).into_iter().zip(&targets) {
            let mut frame = frame.nested();
            let (shape, len) = ((num_rows, part.len), part.gathered.len());
            let elements = part.start..d_qkv.len();
            let [mut dy, mut dx] = [(); 2].map(|()| frame.take_as(dtype, len));
            let from = (d_qkv.as_view().range(elements.clone()), stride);
            device.copy_rows(shape, from, (dy.reborrow(), part.len))?;
            let heads = (gathered.range(part.gathered.clone()), stats.range(part.stats.clone()));
            let norm = part.norm.operand(params);
            device.fill(dx.reborrow(), 0.0)?;
            device.norm_backward(norm, heads.0, heads.1, dy.as_view(), dx.reborrow())?;
            let to = (d_qkv.reborrow().range(elements), stride);
            device.copy_rows(shape, (dx.as_view(), part.len), to)?;
            let sum = of_parts.take(target.len());
            if !sum.is_empty() {
                let num_shards = tp_shards.num_local();
                part.sum(device, params, heads, dy.as_view(), sum, num_shards, &mut frame)?;
            }
        }
        if !sums.is_empty() {
            collectives.all_reduce(sums.reborrow());
        }
        let mut of_parts = Frame::over(sums);
        for target in targets.into_iter().filter(|target| !target.is_empty()) {
            let sum = of_parts.take(target.len());
            device.add_assign(target, sum.into_view())?;
        }
        Ok(())
    }

    /// Adds the sums of a micro-batch to the gradients of trained weights.
    pub(crate) fn add_sums(
        &self,
        device: &dyn Device,
        sums: View<'_>,
        targets: [ViewMut<'_>; 2],
    ) -> Result<()> {
        let (query, key) = sums.split_at(self.query.width);
        for (target, sums) in targets.into_iter().zip([query, key]) {
            if !target.is_empty() {
                device.add_assign(target, sums)?;
            }
        }
        Ok(())
    }

    /// Collective call of the weight gradients; `trained` are the trained ranges of the block.
    pub(crate) fn sums_call(&self, trained: &[Range<usize>]) -> Option<CollectiveCall> {
        let weights = [self.query.at.clone(), self.key.at.clone()];
        TensorShards::shard_sums_call(&weights, trained)
    }
}

impl Part<'_> {
    /// Sets `sum` to the weight gradient of the local shards, each summed in the order of its rows.
    fn sum(
        &self,
        device: &dyn Device,
        params: View<'_>,
        (heads, stats): (View<'_>, View<'_>),
        dy: View<'_>,
        sum: ViewMut<'_>,
        num_shards: usize,
        frame: &mut Frame<'_>,
    ) -> Result<()> {
        let norm = self.norm.operand(params);
        let spare = frame.take(sum.len() * reduction_tree::num_spare(num_shards, false));
        let of_shard = &mut |shard: usize, mut out: ViewMut<'_>, _: Write| {
            let own = |len: usize| len / num_shards * shard..len / num_shards * (shard + 1);
            let (rows, stats) = (own(heads.len()), stats.range(own(stats.len())));
            let (heads, dy) = (heads.range(rows.clone()), dy.range(rows));
            device.fill(out.reborrow(), 0.0)?;
            let no_bias = ViewMut::of::<f32>(&mut []);
            device.norm_weight_backward(norm, heads, stats, dy, out, no_bias)
        };
        reduction_tree::sum(device, 0..num_shards, false, sum, spare, of_shard)
    }
}

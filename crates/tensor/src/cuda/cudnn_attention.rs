//! Causal attention as graphs of cuDNN, which its fused engines recognise.
//!
//! The graphs are those of NVIDIA's front end (cudnn-frontend, scaled dot-product attention) for
//! its composite form, which every cuDNN 9 takes. In backward the gradient of queries is a product
//! of its own, from gradients of scores in the workspace: that is the form without atomics, and
//! the reason for parts: the workspace of all sequences at once would take gigabytes.
//!
//! b sequences, h heads, t tokens, d elements of a head.

use super::cudnn::Cudnn;
use super::cudnn_graph::{Element, Graph, Plan, Pointwise, Reduction, Storage, Tensor};
use crate::attention::Shape;
use crate::device::error::Result;
use crate::device::view::Dtype;

/// Largest workspace for gradients of scores. Parts have their own waves of blocks: with 256 MiB,
/// eight parts of GPT-2 124M take a quarter longer than one, two parts a few percent.
const MAX_SCORE_BYTES: usize = 1 << 30;
/// Bytes that plans need besides tensors.
const PLAN_BYTES: usize = 256;
/// Tokens that the engines take at a time: no shape needs padding.
const TOKENS_MULTIPLE: usize = 128;

/// Ids of tensors in device memory.
pub(super) mod id {
    pub(in crate::cuda) const Q: i64 = 1;
    pub(in crate::cuda) const K: i64 = 2;
    pub(in crate::cuda) const V: i64 = 3;
    pub(in crate::cuda) const OUT: i64 = 4;
    pub(in crate::cuda) const LSE: i64 = 5;
    pub(in crate::cuda) const DOUT: i64 = 6;
    pub(in crate::cuda) const DELTA: i64 = 7;
    pub(in crate::cuda) const DQ: i64 = 8;
    pub(in crate::cuda) const DK: i64 = 9;
    pub(in crate::cuda) const DV: i64 = 10;
    /// Factor on scores.
    pub(in crate::cuda) const SCALE: i64 = 11;
    /// Score of a key after its query.
    pub(in crate::cuda) const MASKED: i64 = 12;
    pub(in crate::cuda) const ONE: i64 = 13;
}

/// Whether the engines take a shape.
pub(super) const fn fits(shape: Shape) -> bool {
    matches!(shape.head_dim, 64 | 128) && shape.tokens.is_multiple_of(TOKENS_MULTIPLE)
}

/// Properties of a call that its plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) is_backward: bool,
    pub(super) dtype: Dtype,
    /// Sequences, tokens, heads, key heads, elements of a head.
    pub(super) sizes: [usize; 5],
    /// Elements between rows of queries, keys and values.
    pub(super) strides: [usize; 3],
}

impl Problem {
    pub(super) const fn new(
        is_backward: bool,
        dtype: Dtype,
        shape: Shape,
        strides: [usize; 3],
    ) -> Self {
        let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
        Self { is_backward, dtype, sizes: [sequences, tokens, heads, kv_heads, head_dim], strides }
    }

    /// Sequences and key heads of an execution of the plan; `None` if even one is too large.
    pub(super) fn part(&self) -> Option<(usize, usize)> {
        let [sequences, tokens, heads, kv_heads, _] = self.sizes;
        if !self.is_backward {
            return Some((sequences, kv_heads));
        }
        let head_bytes = tokens * tokens * self.dtype.size();
        let fits = |num_heads: usize| num_heads * head_bytes <= MAX_SCORE_BYTES;
        let divisor = |of: usize, heads_each: usize| {
            (1..=of).rev().find(|n| of.is_multiple_of(*n) && fits(n * heads_each))
        };
        let of_sequences = divisor(sequences, heads).map(|part| (part, kv_heads));
        of_sequences.or_else(|| divisor(kv_heads, heads / kv_heads).map(|part| (1, part)))
    }

    /// Bytes of workspace: gradients of scores, and of keys and values by query head where query
    /// heads share them.
    pub(super) fn workspace_bytes(&self) -> usize {
        let [_, tokens, heads, kv_heads, head_dim] = self.sizes;
        let Some((sequences, part_kv_heads)) = self.part().filter(|_| self.is_backward) else {
            return 0;
        };
        let by_head = if heads == kv_heads { 0 } else { 2 * head_dim };
        let num_heads = sequences * part_kv_heads * (heads / kv_heads);
        num_heads * tokens * (tokens + by_head) * self.dtype.size() + PLAN_BYTES
    }

    /// Plans a part by a configuration of the library's list, or by the first that compiles.
    pub(super) fn plan(
        &self,
        cudnn: &Cudnn,
        index: Option<usize>,
    ) -> Result<Option<(usize, Plan)>> {
        let (Some(element), Some(part)) = (Element::of(self.dtype), self.part()) else {
            return Ok(None);
        };
        let mut builder = Builder::new(cudnn, self, element, part)?;
        if self.is_backward {
            builder.backward()?;
        } else {
            builder.forward()?;
        }
        builder.graph.plan(index).map(Some)
    }
}

/// A graph under construction, with the sizes of its tensors.
struct Builder<'a> {
    graph: Graph<'a>,
    /// Type of activations.
    element: Element,
    /// Of a part.
    b: i64,
    h: i64,
    kv_h: i64,
    t: i64,
    d: i64,
    /// Query heads of all parts, and elements between rows of gradients.
    all_h: i64,
    row_len: i64,
    strides: [i64; 3],
    /// Factor on scores.
    scale: Tensor,
}

impl<'a> Builder<'a> {
    fn new(
        cudnn: &'a Cudnn,
        problem: &Problem,
        element: Element,
        (sequences, part_kv_heads): (usize, usize),
    ) -> Result<Self> {
        let [_, tokens, heads, kv_heads, head_dim] = problem.sizes;
        let mut graph = Graph::new(cudnn);
        let scale = value(&mut graph, id::SCALE)?;
        Ok(Self {
            graph,
            element,
            b: sequences as i64,
            h: (part_kv_heads * heads / kv_heads) as i64,
            kv_h: part_kv_heads as i64,
            t: tokens as i64,
            d: head_dim as i64,
            all_h: heads as i64,
            row_len: ((heads + 2 * kv_heads) * head_dim) as i64,
            strides: problem.strides.map(|stride| stride as i64),
            scale,
        })
    }

    /// out = softmax(mask(q k^T scale)) v, and the log-sum-exp.
    fn forward(&mut self) -> Result<()> {
        let [q_stride, k_stride, v_stride] = self.strides;
        let q = self.rows(id::Q, self.h, q_stride)?;
        let k = self.columns(id::K, k_stride)?;
        let v = self.rows(id::V, self.kv_h, v_stride)?;
        let out = self.rows(id::OUT, self.h, self.all_h * self.d)?;
        let lse = self.statistics(Storage::Memory(id::LSE))?;
        let scores = self.product_of_scores(q, k)?;
        let scores = self.scaled(scores)?;
        let scores = self.masked(scores)?;
        let max = self.statistics(Storage::Virtual)?;
        self.graph.reduce(Reduction::Max, scores, max)?;
        let scores = self.binary(Pointwise::Subtract, scores, max, Element::F32)?;
        let exp = self.exp(scores)?;
        let sum = self.statistics(Storage::Virtual)?;
        self.graph.reduce(Reduction::Sum, exp, sum)?;
        let log = self.statistics(Storage::Virtual)?;
        self.graph.pointwise(Pointwise::Log, Element::F32, &[sum], log)?;
        self.graph.pointwise(Pointwise::Add, Element::F32, &[max, log], lse)?;
        let weights = self.binary(Pointwise::Divide, exp, sum, self.element)?;
        self.graph.multiply(weights, v, out)
    }

    /// dv = p^T dout, ds = p (dout v^T - delta) scale, dk = ds^T q, dq = ds k, with
    /// p = exp(mask(q k^T scale) - lse) and delta = sum(dout out).
    fn backward(&mut self) -> Result<()> {
        let [q_stride, k_stride, v_stride] = self.strides;
        let (h, kv_h, row_len, all_width) = (self.h, self.kv_h, self.row_len, self.all_h * self.d);
        let q = self.rows(id::Q, h, q_stride)?;
        let k = self.columns(id::K, k_stride)?;
        let v = self.columns(id::V, v_stride)?;
        let out = self.rows(id::OUT, h, all_width)?;
        let dout = self.rows(id::DOUT, h, all_width)?;
        let lse = self.statistics(Storage::Memory(id::LSE))?;
        let delta = self.statistics(Storage::Memory(id::DELTA))?;
        self.delta(out, dout, delta)?;

        let scores = self.product_of_scores(q, k)?;
        let scores = self.scaled(scores)?;
        let scores = self.binary(Pointwise::Subtract, scores, lse, Element::F32)?;
        let scores = self.masked(scores)?;
        let p = self.exp(scores)?;
        let p_transposed = self.transposed_scores(p)?;
        let dv = self.rows(id::DV, kv_h, row_len)?;
        self.product_to_keys(p_transposed, dout, dv)?;

        let dp = self.product_of_scores(dout, v)?;
        let ds = self.binary(Pointwise::Subtract, dp, delta, Element::F32)?;
        let ds = self.binary(Pointwise::Multiply, ds, p, Element::F32)?;
        let ds = self.scaled(ds)?;
        let ds_transposed = self.transposed_scores(ds)?;
        let dk = self.rows(id::DK, kv_h, row_len)?;
        self.product_to_keys(ds_transposed, q, dk)?;

        let [dims, strides] = [k.dims, k.strides].map(|[b, h, d, t]| [b, h, t, d]);
        let k_rows = self.graph.tensor(self.element, dims, strides, Storage::Virtual)?;
        self.graph.reshape(k, k_rows)?;
        let dq = self.rows(id::DQ, h, row_len)?;
        self.graph.multiply(ds, k_rows, dq)
    }

    /// delta = sum over a head of dout out.
    fn delta(&mut self, out: Tensor, dout: Tensor, delta: Tensor) -> Result<()> {
        let Self { b, h, t, d, .. } = *self;
        let (dims, strides) = ([b, h, t, d], [h * t * d, t * d, h * d, 1]);
        let product = self.graph.tensor(Element::F32, dims, strides, Storage::Virtual)?;
        self.graph.pointwise(Pointwise::Multiply, Element::F32, &[dout, out], product)?;
        let sum = self.statistics(Storage::Virtual)?;
        self.graph.reduce(Reduction::Sum, product, sum)?;
        // The engines expect the factor of dropout here.
        let one = value(&mut self.graph, id::ONE)?;
        self.graph.pointwise(Pointwise::Multiply, Element::F32, &[sum, one], delta)
    }

    /// Rows of heads in memory.
    fn rows(&mut self, id: i64, num_heads: i64, stride: i64) -> Result<Tensor> {
        let Self { b, t, d, element, .. } = *self;
        let strides = [t * stride, d, stride, 1];
        self.graph.tensor(element, [b, num_heads, t, d], strides, Storage::Memory(id))
    }

    /// Rows of key heads in memory, transposed.
    fn columns(&mut self, id: i64, stride: i64) -> Result<Tensor> {
        let Self { b, kv_h, t, d, element, .. } = *self;
        let strides = [t * stride, d, 1, stride];
        self.graph.tensor(element, [b, kv_h, d, t], strides, Storage::Memory(id))
    }

    /// A number for each query; in memory among those of all heads.
    fn statistics(&mut self, storage: Storage) -> Result<Tensor> {
        let Self { b, h, t, .. } = *self;
        let num_heads = if storage == Storage::Virtual { h } else { self.all_h };
        self.graph.tensor(Element::F32, [b, h, t, 1], [num_heads * t, t, 1, 1], storage)
    }

    /// A number for each query and key.
    fn scores(&mut self, element: Element) -> Result<Tensor> {
        let Self { b, h, t, .. } = *self;
        self.graph.tensor(element, [b, h, t, t], [h * t * t, t * t, t, 1], Storage::Virtual)
    }

    fn product_of_scores(&mut self, rows: Tensor, columns: Tensor) -> Result<Tensor> {
        let scores = self.scores(Element::F32)?;
        self.graph.multiply(rows, columns, scores)?;
        Ok(scores)
    }

    fn binary(
        &mut self,
        mode: Pointwise,
        scores: Tensor,
        other: Tensor,
        element: Element,
    ) -> Result<Tensor> {
        let out = self.scores(element)?;
        self.graph.pointwise(mode, Element::F32, &[scores, other], out)?;
        Ok(out)
    }

    fn scaled(&mut self, scores: Tensor) -> Result<Tensor> {
        self.binary(Pointwise::Multiply, scores, self.scale, Element::F32)
    }

    fn exp(&mut self, scores: Tensor) -> Result<Tensor> {
        let out = self.scores(Element::F32)?;
        self.graph.pointwise(Pointwise::Exp, Element::F32, &[scores], out)?;
        Ok(out)
    }

    /// Scores of keys up to their query; those of later keys become minus infinity.
    fn masked(&mut self, scores: Tensor) -> Result<Tensor> {
        let (query, key) = (self.scores(Element::I32)?, self.scores(Element::I32)?);
        self.graph.index(2, scores, query)?;
        self.graph.index(3, scores, key)?;
        let is_visible = self.scores(Element::BOOL)?;
        self.graph.pointwise(Pointwise::AtLeast, Element::BOOL, &[query, key], is_visible)?;
        let (masked, out) = (value(&mut self.graph, id::MASKED)?, self.scores(Element::F32)?);
        let operands = [scores, masked, is_visible];
        self.graph.pointwise(Pointwise::Select, Element::F32, &operands, out)?;
        Ok(out)
    }

    /// Scores by key and query, in the type of activations.
    fn transposed_scores(&mut self, scores: Tensor) -> Result<Tensor> {
        let Self { b, h, t, element, .. } = *self;
        let strides = [h * t * t, t * t, 1, t];
        let out = self.graph.tensor(element, [b, h, t, t], strides, Storage::Virtual)?;
        self.graph.reshape(scores, out)?;
        Ok(out)
    }

    /// Products of transposed scores with rows of query heads, added up over the query heads of
    /// each key head.
    fn product_to_keys(&mut self, scores: Tensor, rows: Tensor, out: Tensor) -> Result<()> {
        let Self { b, h, kv_h, t, d, element, .. } = *self;
        if h == kv_h {
            return self.graph.multiply(scores, rows, out);
        }
        let strides = [h * t * d, t * d, d, 1];
        let by_head = self.graph.tensor(element, [b, h, t, d], strides, Storage::Virtual)?;
        self.graph.multiply(scores, rows, by_head)?;
        self.graph.reduce(Reduction::Sum, by_head, out)
    }
}

/// A number from the host.
fn value(graph: &mut Graph<'_>, id: i64) -> Result<Tensor> {
    graph.tensor(Element::F32, [1; 4], [1; 4], Storage::Value(id))
}

//! Causal grouped-query attention by tiles, without the tokens x tokens matrix (FlashAttention, Dao
//! et al. 2022).
//!
//! Scores and probabilities exist only in tiles of 64 queries by 64 keys that stay in the
//! first-level cache. Forward keeps, per query, the largest score so far and the sum of
//! exponentials relative to it, and rescales both the sum and the output at a larger score (online
//! softmax, Milakov and Gimelshein 2018); it stores the output and, per query, the log-sum-exp.
//! Backward recomputes any tile of probabilities from those.
//!
//! Inside a tile, keys are rows and queries are columns: sixteen queries share a vector, so the
//! softmax needs no sum or maximum across vector elements.
//!
//! # Order of additions
//! Tiles start at multiples of 64 from position zero. A score is one chain of fused multiply-adds
//! over the head dimension, ascending; every other product below is one such chain per tile, over
//! the tile's keys or queries, which is then added to its target.
//! - Forward, for each query: key tiles ascending; `m' = max(m, largest score * scale)`,
//!   `a = exp(m - m')`, `p = exp(score * scale - m')`, `sum = sum * a + (sum of p)`,
//!   `out = out * a + p V`. At the end `out * (1 / sum)` and `lse = m + ln(sum)`.
//! - Backward: `D = sum(dout * out)` of each query by sixteen accumulators; then key tiles
//!   ascending, and for each the query heads of the group ascending, and for each the query tiles
//!   ascending: `P = exp(score * scale - lse)`, `dV += P^T dout`, `dS = (P * (dout V^T) - P * D) *
//!   scale`, `dK += dS^T Q`, `dQ += dS K`. So dK and dV sum over heads, then queries; dQ over keys.
//!
//! Forward has one task per head and sequence, backward one per key head with all its query heads.
//! Results of a query do not depend on other queries: decoding with a key-value cache gives the
//! bits of those rows of a full pass. Keys after a query contribute exactly zero: whole tiles and,
//! on the diagonal, steps of sixteen keys are skipped, single probabilities are set to zero. So do
//! keys before those that [`Options`] let a query see.
//!
//! # In bf16
//! Every product rounds its operands, the probabilities and the gradients of scores among them, to
//! bf16 and has the order of additions of `gemm`'s products in bf16 (steps of 32 from the first key
//! or query of the tile, added to the target); scores, exponentials and all sums stay `f32`.
//! Attention in `f16` runs in `f32`: CPUs have no units for it, so rounding the operands would only
//! cost time.
#![expect(unsafe_code, reason = "tasks write disjoint heads of shared rows")]

mod backward;
mod bf16_products;
mod dispatch;
mod dropout;
mod f32_products;
mod forward;
mod options;
mod products;
mod tile;

pub use backward::{backward, backward_in};
pub use dropout::{Dropout, Heads};
pub use forward::{forward, forward_in};
pub use options::{Options, alibi_slope};

use crate::gemm::Precision;
use crate::simd::{Simd, VECTOR_LEN};

/// Queries, and keys, of one tile.
const TILE: usize = crate::gemm::tile::SCORE_STRIDE;
/// Vectors in a row of a tile.
const PER_ROW: usize = TILE / VECTOR_LEN;

/// Rows by which a copy prefetches: rows are kilobytes apart, which defeats hardware prefetchers,
/// and each miss would wait for the shared cache.
const ROWS_AHEAD: usize = 16;

/// Shape of an attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of independent sequences.
    pub sequences: usize,
    /// Queries of each sequence.
    pub tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head of one row.
    pub head_dim: usize,
}

impl Shape {
    /// Key and value head of a query head.
    pub fn kv_head(&self, head: usize) -> usize {
        head / self.group()
    }

    /// Query heads that share a key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Factor on the scores.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    pub(crate) fn check(&self) {
        assert!(self.sequences * self.tokens * self.heads * self.head_dim > 0, "empty {self:?}");
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "kv_heads must divide heads in {self:?}"
        );
    }
}

/// Stride of packed rows in `f32`: that of a tile where it fits, for which products are
/// specialized.
fn packed_stride(head_dim: usize) -> usize {
    head_dim.max(TILE)
}

/// Rows of a larger buffer: row r starts at `r * stride`, its head h `h * head_dim` later.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Elements from the first head of row zero on.
    pub data: &'a [f32],
    /// Distance between rows.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows from column `col` of row `row` on.
    fn from(self, row: usize, col: usize) -> Self {
        Self { data: &self.data[row * self.stride + col..], stride: self.stride }
    }

    /// The first `len` elements of a row.
    #[inline(always)]
    fn row(self, row: usize, len: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..len]
    }

    /// Prefetches the first `len` elements of a row, which may be beyond the last.
    #[inline(always)]
    fn prefetch<S: Simd>(self, s: S, row: usize, len: usize) {
        let start = self.data.as_ptr().wrapping_add(row * self.stride);
        for line in (0..len).step_by(VECTOR_LEN) {
            s.prefetch(start.wrapping_add(line));
        }
    }

    fn check(self, num_rows: usize, width: usize, name: &str) {
        assert!(
            self.stride >= width && self.data.len() >= (num_rows - 1) * self.stride + width,
            "{name} has {} elements, stride {}, but must hold {num_rows} rows of {width}",
            self.data.len(),
            self.stride
        );
    }
}

/// Elements of scratch memory of [`forward`] and [`backward`] for a shape.
pub fn scratch_len(shape: Shape) -> usize {
    scratch_len_in(Precision::F32, shape)
}

/// Elements of scratch memory of [`forward_in`] and [`backward_in`].
pub fn scratch_len_in(precision: Precision, shape: Shape) -> usize {
    let forward = shape.sequences * shape.heads * forward::region_len(precision, shape);
    let backward = shape.sequences * shape.kv_heads * backward::region_len(precision, shape);
    forward.max(backward)
}

/// Aligns a task's scratch memory to a cache line and splits it after `len` elements; a region has
/// [`VECTOR_LEN`] spare elements for the alignment.
fn split_aligned(region: &mut [f32], len: usize) -> (&mut [f32], &mut [f32]) {
    let start = region.as_ptr().align_offset(VECTOR_LEN * size_of::<f32>());
    region[start..].split_at_mut(len)
}

fn check_scratch(precision: Precision, shape: Shape, scratch: &[f32]) {
    let needed = scratch_len_in(precision, shape);
    assert!(scratch.len() >= needed, "scratch of {}, but {shape:?} needs {needed}", scratch.len());
}

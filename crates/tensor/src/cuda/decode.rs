//! Generation token by token: products of one row and attention to a cache, bound by the bytes of
//! weights and cache.
//!
//! A token runs about a hundred such kernels one after another. Each may start while the one ahead
//! ends (programmatic dependent launch), and then reads weights or cached rows before it waits for
//! that one's results.

use super::Cuda;
use super::attention::{KernelShape, MAX_COUNTED, MAX_HEAD_DIM};
use super::commands::KernelArg;
use super::few_rows::in_type;
use super::launch::{launch_early, type_code};
use super::programs::{Grid, Program, Source};
use crate::attention::Shape;
use crate::device::error::Result;
use crate::device::operands::{RowEpilogue, RowProduct, check_rows};
use crate::device::view::{Dtype, View, ViewMut};
use crate::gemm::Precision;

/// Warps of a block, each of which computes elements of a result.
const ROW_WARPS: usize = 8;
/// Most blocks of a multiprocessor, half of those that it has room for: the blocks of the next
/// launch start beside them.
const ROW_BLOCKS: usize = 2;
/// `ROW_PAIRS` of the kernels, and the bytes of a pair.
const ROW_PAIRS: usize = 6;
const PAIR_BYTES: usize = 1024;
/// Longest row in shared memory: with the weights in flight it fits the 99 KiB of a block on every
/// supported device.
const MAX_ROW_BYTES: usize = 47 * 1024;
/// Threads of a block of attention, and the positions that it takes.
const THREADS: usize = 256;
const SPLIT: usize = 64;
/// Place of the states among the temporary memories.
const SLOT: usize = 4;

/// `RowNorm` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RowNorm {
    weight: u64,
    bias: u64,
    type_code: i32,
    eps: f32,
}

// SAFETY: no padding.
unsafe impl KernelArg for RowNorm {}

/// `Partials` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Partials {
    states: u64,
    finished: u64,
}

// SAFETY: no padding.
unsafe impl KernelArg for Partials {}

impl Cuda {
    /// Multiplies a row by the transpose of a stored matrix; `false` if the operands are others.
    pub(super) fn try_row_product(
        &self,
        precision: Precision,
        product: &RowProduct<'_>,
        y: &ViewMut<'_>,
    ) -> Result<bool> {
        let RowProduct { norm, x, weight, epilogue } = product;
        let (dtype, (k, columns)) = (Dtype::of_operands(precision), weight.shape());
        assert_eq!(x.len(), k, "a row of the weight's inputs");
        let is_gated = matches!(epilogue, RowEpilogue::SwiGlu);
        let n = if is_gated { columns / 2 } else { columns };
        assert!(y.len() == n && (!is_gated || columns == 2 * n), "{columns} columns for a result");
        check_rows(weight.data.len(), weight.rows, weight.cols, weight.row_stride);
        let Some(stored) = in_type(weight, dtype) else { return Ok(false) };
        let row_bytes = k * dtype.size();
        let fits = weight.transposed && row_bytes.is_multiple_of(16) && row_bytes <= MAX_ROW_BYTES;
        if !fits || x.dtype() != dtype || n == 0 {
            return Ok(false);
        }
        let (x, b) = (self.read(x, dtype)?, self.read(&stored, dtype)?);
        let stride_bytes = (weight.row_stride * dtype.size()) as u64;
        if [x, b, stride_bytes].iter().any(|at| !at.is_multiple_of(16)) {
            return Ok(false);
        }
        if norm.is_some_and(|norm| norm.adds_one) {
            return Ok(false);
        }
        let mut row_norm = RowNorm::default();
        if let Some(norm) = norm {
            assert_eq!(norm.width(), k, "a norm of the row");
            let in_type = norm.weight.dtype();
            row_norm.weight = self.read(&norm.weight, in_type)?;
            row_norm.bias = norm.bias.map_or(Ok(0), |bias| self.read(&bias, in_type))?;
            (row_norm.type_code, row_norm.eps) = (type_code(in_type)?, norm.eps);
        }
        let (y_type, out) = (type_code(y.dtype())?, self.write(y, y.dtype())?);
        let residual = match epilogue {
            RowEpilogue::Residual(residual) => {
                assert_eq!(residual.len(), n, "a residual for each result");
                self.read(residual, y.dtype())?
            }
            RowEpilogue::None | RowEpilogue::SwiGlu => 0,
        };
        let most = self.num_multiprocessors * ROW_BLOCKS;
        let blocks = (n.div_ceil(ROW_WARPS).min(most), 1, 1);
        let shared_bytes = row_bytes + ROW_WARPS * ROW_PAIRS * PAIR_BYTES;
        let grid = Grid { blocks, threads: 32 * ROW_WARPS, shared_bytes };
        let name = if is_gated { "gated_row_product" } else { "row_product" };
        let [b_row, n, k] = [weight.row_stride, n, k].map(|count| count as u64);
        let program = Program::new(Source::Product, dtype);
        self.recorder.moves(columns * row_bytes);
        launch_early!(
            self, program, name, grid, row_norm, x, b, b_row, out, y_type, residual, n, k
        )?;
        Ok(true)
    }

    /// Appends a token to the cache and attends from it; `false` if the operands are others.
    pub(super) fn try_attend_token(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: View<'_>,
        angles: Option<View<'_>>,
        cache: &ViewMut<'_>,
        position: usize,
        out: &ViewMut<'_>,
    ) -> Result<bool> {
        shape.check();
        let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
        let (dtype, row) = (qkv.dtype(), 2 * kv_heads * head_dim);
        assert_eq!((sequences, tokens), (1, 1), "one token of one sequence");
        assert_eq!(qkv.len(), heads * head_dim + row, "a row for {shape:?}");
        assert_eq!(out.len(), heads * head_dim, "out for {shape:?}");
        assert!((position + 1) * row <= cache.len(), "position {position} of the cache");
        if head_dim > MAX_HEAD_DIM || heads > MAX_COUNTED || dtype != Dtype::of_operands(precision)
        {
            return Ok(false);
        }
        let num_positions = angles.map_or(0, |angles| angles.len() / head_dim);
        if angles.is_some() {
            assert!(head_dim.is_multiple_of(2), "pairs need an even head dimension");
            assert!(position < num_positions, "angles of position {position}");
        }
        let angles = angles.map_or(Ok(0), |angles| self.read(&angles, Dtype::F32))?;
        let (qkv, cache, out) =
            (self.read(&qkv, dtype)?, self.write(cache, dtype)?, self.write(out, dtype)?);
        let [tokens, num_heads, kv_heads] = [tokens, heads, kv_heads].map(|count| count as u32);
        let kernel_shape = KernelShape { tokens, heads: num_heads, kv_heads };
        let program = Program { source: Source::AttentionDecode, dtype, head_dim };
        let (num_angles, at, scale) = (num_positions as u64, position as u32, shape.scale());
        self.recorder.moves((position + 1) * row * dtype.size());
        self.with_partials((1, position + 1), (heads, head_dim), |partials, grid| {
            launch_early!(
                self,
                program,
                "attention_token",
                grid,
                qkv,
                cache,
                angles,
                num_angles,
                kernel_shape,
                at,
                scale,
                partials,
                out,
            )
        })?;
        Ok(true)
    }

    /// Calls `queue` with memory for the states of (queries, positions of the last one) by (heads,
    /// head dimension), and with the grid of a kernel over them.
    pub(super) fn with_partials(
        &self,
        (queries, positions): (usize, usize),
        (heads, head_dim): (usize, usize),
        queue: impl FnOnce(Partials, Grid) -> Result<()>,
    ) -> Result<()> {
        let num_splits = positions.div_ceil(SPLIT);
        // Zero between calls, at a fixed place.
        let counted = MAX_COUNTED * size_of::<u32>();
        assert!(queries * heads <= MAX_COUNTED, "{queries} queries of {heads} heads");
        // A power of two, so that a growing sequence seldom needs more.
        let states = queries * heads * num_splits.next_power_of_two() * (head_dim + 2);
        let blocks = (num_splits, heads, queries);
        let grid = Grid { blocks, threads: THREADS, shared_bytes: 0 };
        self.with_scratch(SLOT, counted + states * size_of::<f32>(), |finished| {
            queue(Partials { states: finished + counted as u64, finished }, grid)
        })
    }
}

//! Copies blocks of the operands into panels that the register tile reads in order.
//!
//! A right panel is k rows of [`TILE_COLS`] columns, contiguous. A left panel keeps whichever
//! direction is contiguous in memory, so that packing is a copy and not a gather: rows
//! [`PANEL_STRIDE`] apart when k is contiguous, columns of [`TILE_ROWS`] when rows are.

use super::Mat;
use super::tile::{PANEL_STRIDE, TILE_COLS, TILE_ROWS};
use crate::simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Room for one left panel, in either layout. It lives on the stack of a task and is not cleared
/// first: that would cost as much as filling it.
pub(super) type LeftPanel = [MaybeUninit<f32>; LEFT_LEN];
/// Elements of a left panel.
pub(super) const LEFT_LEN: usize = TILE_ROWS * PANEL_STRIDE;

/// Strides of a packed left panel: (between rows, between products).
pub(super) type LeftStrides = (usize, usize);

/// Packs rows `i..i + m` and products `p..p + k` of `a`: after it, those m x k elements of the
/// panel are initialised, at the strides it returns.
#[inline(always)]
pub(super) fn left(
    a: Mat<'_>,
    (i, m): (usize, usize),
    (p, k): (usize, usize),
    panel: &mut LeftPanel,
) -> LeftStrides {
    if a.col_stride == 1 {
        for r in 0..m {
            let start = (i + r) * a.row_stride + p;
            panel[r * PANEL_STRIDE..][..k].write_copy_of_slice(&a.data[start..start + k]);
        }
        (PANEL_STRIDE, 1)
    } else {
        for q in 0..k {
            let start = i * a.row_stride + (p + q) * a.col_stride;
            let column = &mut panel[q * TILE_ROWS..][..m];
            if a.row_stride == 1 {
                copy_column(&a.data[start..start + m], column);
            } else {
                for (r, out) in column.iter_mut().enumerate() {
                    out.write(a.data[start + r * a.row_stride]);
                }
            }
        }
        (1, TILE_ROWS)
    }
}

/// A full column has a known length, which the compiler turns into two vector moves.
#[inline(always)]
fn copy_column(from: &[f32], to: &mut [MaybeUninit<f32>]) {
    match from.as_array::<TILE_ROWS>() {
        Some(from) => to[..TILE_ROWS].write_copy_of_slice(from),
        None => to.write_copy_of_slice(from),
    };
}

/// Packs products `p..p + k` and columns `j..j + n` of `b`; columns beyond `n` are left as they
/// are, because the tile does not read them.
#[inline(always)]
pub(super) fn right<S: Simd>(
    s: S,
    b: Mat<'_>,
    (p, k): (usize, usize),
    (j, n): (usize, usize),
    panel: &mut [f32],
) {
    if b.col_stride == 1 {
        for (q, row) in panel.chunks_exact_mut(TILE_COLS).take(k).enumerate() {
            let start = (p + q) * b.row_stride + j;
            let from = &b.data[start..start + n];
            if let (Some(from), Some(to)) =
                (from.as_array::<TILE_COLS>(), row.as_mut_array::<TILE_COLS>())
            {
                *to = *from;
            } else {
                row[..n].copy_from_slice(from);
            }
        }
    } else if b.row_stride == 1 {
        transpose(s, b, (p, k), (j, n), panel);
    } else {
        for (q, row) in panel.chunks_exact_mut(TILE_COLS).take(k).enumerate() {
            for (c, out) in row[..n].iter_mut().enumerate() {
                *out = b.data[(p + q) * b.row_stride + (j + c) * b.col_stride];
            }
        }
    }
}

/// Packs a right operand whose columns are contiguous, in squares of sixteen by sixteen.
#[inline(always)]
fn transpose<S: Simd>(
    s: S,
    b: Mat<'_>,
    (p, k): (usize, usize),
    (j, n): (usize, usize),
    panel: &mut [f32],
) {
    for c in (0..n).step_by(LANES) {
        let columns = LANES.min(n - c);
        for q in (0..k).step_by(LANES) {
            let depth = LANES.min(k - q);
            let mut square = [s.zero(); LANES];
            let start = |r: usize| (j + c + r) * b.col_stride + p + q;
            if columns == LANES && depth == LANES {
                for (r, row) in square.iter_mut().enumerate() {
                    *row = s.load(b.data[start(r)..].first_chunk().expect("sixteen products"));
                }
            } else {
                for (r, row) in square.iter_mut().enumerate().take(columns) {
                    *row = s.load_partial(&b.data[start(r)..start(r) + depth]);
                }
            }
            let square = s.transpose(square);
            let rows = panel[q * TILE_COLS..].chunks_exact_mut(TILE_COLS).take(depth);
            for (out, &row) in rows.zip(&square) {
                s.store(row, out[c..].first_chunk_mut().expect("two vectors in a panel row"));
            }
        }
    }
}

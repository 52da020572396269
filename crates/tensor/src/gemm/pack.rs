//! Packs blocks of the operands into panels that the register tile reads sequentially.
//!
//! A right panel is k rows of [`TILE_COLS`] columns, contiguous. A left panel keeps whichever
//! direction is contiguous in memory, so that packing is a copy and not a gather: rows
//! [`PANEL_STRIDE`] apart when k is contiguous, columns of [`TILE_ROWS`] when rows are.

use super::Mat;
use super::blocking::{PANEL_STRIDE, TILE_COLS, TILE_ROWS};
use super::elements::{Element, of_any_type, through_f16};
use crate::simd::{Simd, VECTOR_LEN};
use std::mem::MaybeUninit;

/// A left panel, in either layout. It is on the stack of a task and not cleared first: that would
/// cost as much as filling it.
pub(super) type LeftPanel = [MaybeUninit<f32>; LEFT_LEN];
/// Elements of a left panel.
pub(super) const LEFT_LEN: usize = TILE_ROWS * PANEL_STRIDE;

/// Strides of a packed left panel: (between rows, between products).
pub(super) type LeftStrides = (usize, usize);

/// Packs rows `i..i + m` and products `p..p + k` of `a`: after it, those m x k elements of the
/// panel are initialised, at the strides it returns.
#[inline(always)]
pub(super) fn left<S: Simd>(
    s: S,
    a: Mat<'_>,
    (i, m): (usize, usize),
    (p, k): (usize, usize),
    to_f16: bool,
    panel: &mut LeftPanel,
) -> LeftStrides {
    of_any_type!(a.data, data => if a.col_stride == 1 {
        for r in 0..m {
            let start = (i + r) * a.row_stride + p;
            copy(s, &data[start..start + k], to_f16, &mut panel[r * PANEL_STRIDE..][..k]);
        }
        (PANEL_STRIDE, 1)
    } else {
        for q in 0..k {
            let start = i * a.row_stride + (p + q) * a.col_stride;
            let column = &mut panel[q * TILE_ROWS..][..m];
            if a.row_stride == 1 {
                copy_column(s, &data[start..start + m], to_f16, column);
            } else {
                for (r, out) in column.chunks_exact_mut(1).enumerate() {
                    copy(s, &data[start + r * a.row_stride..][..1], to_f16, out);
                }
            }
        }
        (1, TILE_ROWS)
    })
}

/// A full column has a constant length, which the compiler turns into two vector moves.
#[inline(always)]
fn copy_column<S: Simd, T: Element>(s: S, from: &[T], to_f16: bool, to: &mut [MaybeUninit<f32>]) {
    match T::as_f32(from).and_then(|from| from.as_array::<TILE_ROWS>()) {
        Some(from) if !to_f16 => {
            to[..TILE_ROWS].write_copy_of_slice(from);
        }
        _ => copy(s, from, to_f16, to),
    }
}

/// Copies elements, widened where they are narrower, rounded to `f16` with `to_f16`.
#[inline(always)]
fn copy<S: Simd, T: Element>(s: S, from: &[T], to_f16: bool, to: &mut [MaybeUninit<f32>]) {
    match T::as_f32(from) {
        Some(from) if !to_f16 => {
            to.write_copy_of_slice(from);
        }
        _ => {
            for (from, to) in from.chunks(VECTOR_LEN).zip(to.chunks_mut(VECTOR_LEN)) {
                let values = s.to_array(rounded(s, T::load_partial(s, from), to_f16));
                to.write_copy_of_slice(&values[..from.len()]);
            }
        }
    }
}

#[inline(always)]
fn rounded<S: Simd>(s: S, v: S::V, to_f16: bool) -> S::V {
    if to_f16 { through_f16(s, v) } else { v }
}

/// Packs products `p..p + k` and columns `j..j + n` of `b`; columns beyond `n` are not written,
/// because the tile does not read them.
#[inline(always)]
pub(super) fn right<S: Simd>(
    s: S,
    b: Mat<'_>,
    (p, k): (usize, usize),
    (j, n): (usize, usize),
    to_f16: bool,
    panel: &mut [f32],
) {
    of_any_type!(b.data, data => if b.row_stride == 1 && b.col_stride != 1 {
        let data = &data[j * b.col_stride + p..];
        transpose(s, (data, b.col_stride), (k, n), to_f16, panel);
    } else {
        for (q, row) in panel.chunks_exact_mut(TILE_COLS).take(k).enumerate() {
            let start = (p + q) * b.row_stride + j * b.col_stride;
            if b.col_stride == 1 {
                copy_row(s, &data[start..start + n], to_f16, row);
            } else {
                for (c, out) in row[..n].iter_mut().enumerate() {
                    let one = &data[start + c * b.col_stride..][..1];
                    [*out, ..] = s.to_array(rounded(s, Element::load_partial(s, one), to_f16));
                }
            }
        }
    });
}

/// One row of a panel.
#[inline(always)]
fn copy_row<S: Simd, T: Element>(s: S, from: &[T], to_f16: bool, row: &mut [f32]) {
    match T::as_f32(from) {
        Some(from) if !to_f16 => {
            match (from.as_array::<TILE_COLS>(), row.as_mut_array::<TILE_COLS>()) {
                (Some(from), Some(to)) => *to = *from,
                _ => row[..from.len()].copy_from_slice(from),
            }
        }
        _ => {
            for (from, to) in from.chunks(VECTOR_LEN).zip(row.chunks_mut(VECTOR_LEN)) {
                let v = rounded(s, T::load_partial(s, from), to_f16);
                s.store_partial(v, &mut to[..from.len()]);
            }
        }
    }
}

/// Packs a right operand whose columns are contiguous, `stride` apart, in squares of sixteen by
/// sixteen.
#[inline(always)]
fn transpose<S: Simd, T: Element>(
    s: S,
    (data, stride): (&[T], usize),
    (k, n): (usize, usize),
    to_f16: bool,
    panel: &mut [f32],
) {
    for c in (0..n).step_by(VECTOR_LEN) {
        let columns = VECTOR_LEN.min(n - c);
        for q in (0..k).step_by(VECTOR_LEN) {
            let depth = VECTOR_LEN.min(k - q);
            let mut square = [s.zero(); VECTOR_LEN];
            let start = |r: usize| (c + r) * stride + q;
            if columns == VECTOR_LEN && depth == VECTOR_LEN {
                for (r, row) in square.iter_mut().enumerate() {
                    let numbers = data[start(r)..].first_chunk().expect("sixteen products");
                    *row = rounded(s, T::load(s, numbers), to_f16);
                }
            } else {
                for (r, row) in square.iter_mut().enumerate().take(columns) {
                    let numbers = &data[start(r)..start(r) + depth];
                    *row = rounded(s, T::load_partial(s, numbers), to_f16);
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

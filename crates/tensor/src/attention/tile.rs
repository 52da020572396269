//! Tile of 64 keys (rows) by 64 queries (columns): geometry and copies shared by forward and
//! backward.

use super::{PER_ROW, ROWS_AHEAD, Rows, TILE};
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Simd, VECTOR_LEN};
use std::ops::Range;

/// One tile of the causal matrix, possibly partial.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Columns with a query.
    pub(super) queries: Range<usize>,
    /// Rows with a key.
    pub(super) num_keys: usize,
    /// Whether the tile is on the diagonal: then row r is visible to the columns from r on.
    pub(super) diagonal: bool,
}

impl Tile {
    /// The vectors of columns that hold the queries, by their first column.
    #[inline(always)]
    pub(super) fn vectors(&self) -> std::iter::StepBy<Range<usize>> {
        (self.queries.start / VECTOR_LEN * VECTOR_LEN..self.queries.end).step_by(VECTOR_LEN)
    }

    /// For the vector from `column` on: rows visible to all its elements, and rows visible to some.
    #[inline(always)]
    pub(super) fn rows(&self, column: usize) -> [usize; 2] {
        if self.diagonal {
            [column, column + VECTOR_LEN].map(|row| row.min(self.num_keys))
        } else {
            [self.num_keys; 2]
        }
    }

    /// `tile *= factors` wherever a query sees a key.
    #[inline(always)]
    pub(super) fn multiply_visible<S: Simd>(&self, s: S, factors: &[f32], tile: &mut [f32]) {
        let ((tile, _), (factors, _)) = (tile.as_chunks_mut::<VECTOR_LEN>(), factors.as_chunks());
        for column in self.vectors() {
            let [_, visible] = self.rows(column);
            for at in (0..visible).map(|row| row * PER_ROW + column / VECTOR_LEN) {
                s.store(s.mul(s.load(&tile[at]), s.load(&factors[at])), &mut tile[at]);
            }
        }
    }
}

/// Prefetches the first elements of up to 64 rows, which are kilobytes apart.
#[inline(always)]
pub(super) fn prefetch<S: Simd>(s: S, head_dim: usize, rows: Rows<'_>, num_rows: usize) {
    for row in 0..num_rows {
        rows.prefetch(s, row, head_dim);
    }
}

/// Copies up to 64 rows to contiguous memory, so that no two share a set of the cache.
#[inline(always)]
pub(super) fn pack<S: Simd>(
    s: S,
    head_dim: usize,
    rows: Rows<'_>,
    num_rows: usize,
    packed: &mut [f32],
    packed_stride: usize,
) {
    for (i, packed) in packed.chunks_mut(packed_stride).take(num_rows).enumerate() {
        rows.prefetch(s, i + ROWS_AHEAD, head_dim);
        copy(s, rows.row(i, head_dim), &mut packed[..head_dim]);
    }
}

/// Copies a row inline, because a call costs more than the copy.
#[inline(always)]
pub(super) fn copy<S: Simd>(s: S, from: &[f32], to: &mut [f32]) {
    for group in 0..num_groups(from) {
        store(s, load(s, from, group), to, group);
    }
}

/// `columns[p][queries.start + i] = rows[i][p]`: rows become columns, with zeros around them.
#[inline(always)]
pub(super) fn transpose<S: Simd>(
    s: S,
    head_dim: usize,
    rows: Rows<'_>,
    queries: &Range<usize>,
    columns: &mut [f32],
) {
    let (columns, _) = columns.as_chunks_mut::<VECTOR_LEN>();
    for column in (0..TILE).step_by(VECTOR_LEN) {
        for row in column..column + VECTOR_LEN {
            rows.prefetch(s, row + VECTOR_LEN, head_dim);
        }
        for p in (0..head_dim).step_by(VECTOR_LEN) {
            let len = VECTOR_LEN.min(head_dim - p);
            let mut square = [s.zero(); VECTOR_LEN];
            for (i, vector) in square.iter_mut().enumerate() {
                if queries.contains(&(column + i)) {
                    let part = &rows.data[(column + i - queries.start) * rows.stride + p..][..len];
                    *vector = match part.as_array::<VECTOR_LEN>() {
                        Some(part) => s.load(part),
                        None => s.load_partial(part),
                    };
                }
            }
            let square = s.transpose(square);
            for (i, &vector) in square[..len].iter().enumerate() {
                s.store(vector, &mut columns[(p + i) * PER_ROW + column / VECTOR_LEN]);
            }
        }
    }
}

/// The numbers 0 to 15.
#[inline(always)]
pub(super) fn element_indices<S: Simd>(s: S) -> S::V {
    s.load(&std::array::from_fn(|index| index as f32))
}

//! What forward and backward do alike with one tile of 64 keys (rows) by 64 queries (columns).

use super::products::Products;
use super::{PER_ROW, ROWS_AHEAD, Rows, TILE};
use crate::gemm::Write;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{LANES, Simd};
use std::ops::Range;

/// One tile of the causal matrix, and how much of it there is.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Columns with a query.
    pub(super) queries: Range<usize>,
    /// Rows with a key.
    pub(super) num_keys: usize,
    /// Whether it lies on the diagonal: then row r is visible to the columns from r on.
    pub(super) diagonal: bool,
}

impl Tile {
    /// Products with the tile skip what is hidden in steps of this many rows and columns.
    #[inline(always)]
    fn step(&self) -> usize {
        if self.diagonal { LANES } else { TILE }
    }

    /// The vectors of columns that hold the queries, by their first column.
    #[inline(always)]
    pub(super) fn vectors(&self) -> std::iter::StepBy<Range<usize>> {
        (self.queries.start / LANES * LANES..self.queries.end).step_by(LANES)
    }

    /// For the vector from `column` on: rows visible to all its lanes, and rows visible to some.
    #[inline(always)]
    pub(super) fn rows(&self, column: usize) -> [usize; 2] {
        if self.diagonal {
            [column, column + LANES].map(|row| row.min(self.num_keys))
        } else {
            [self.num_keys; 2]
        }
    }

    /// `out[key][query] = rows[key] . columns[query]` wherever a query sees a key.
    #[inline(always)]
    pub(super) fn dot(
        &self,
        by: &mut impl Products,
        head_dim: usize,
        rows: Rows<'_>,
        columns: &[f32],
        out: &mut [f32],
    ) {
        let end = self.queries.end.next_multiple_of(LANES);
        let step = self.step();
        for key in (0..self.num_keys).step_by(step) {
            let num_rows = step.min(self.num_keys - key);
            let start = key.max(self.queries.start / LANES * LANES);
            if start < end {
                by.multiply(
                    (num_rows, end - start, head_dim),
                    &rows.data[key * rows.stride..],
                    (rows.stride, 1),
                    &columns[start..],
                    TILE,
                    &mut out[key * TILE + start..],
                    TILE,
                    Write::Set,
                );
            }
        }
    }

    /// `tile *= factors` wherever a query sees a key.
    #[inline(always)]
    pub(super) fn multiply_visible<S: Simd>(&self, s: S, factors: &[f32], tile: &mut [f32]) {
        let ((tile, _), (factors, _)) = (tile.as_chunks_mut::<LANES>(), factors.as_chunks());
        for column in self.vectors() {
            let [_, visible] = self.rows(column);
            for at in (0..visible).map(|row| row * PER_ROW + column / LANES) {
                s.store(s.mul(s.load(&tile[at]), s.load(&factors[at])), &mut tile[at]);
            }
        }
    }

    /// `out[query] (= or +=) sum over its keys of tile[key][query] * rows[key]`; `out` begins
    /// with the first query of the tile.
    #[inline(always)]
    pub(super) fn sum_over_keys(
        &self,
        by: &mut impl Products,
        head_dim: usize,
        tile: &[f32],
        rows: Rows<'_>,
        out: &mut [f32],
        write: Write,
    ) {
        let step = self.step();
        let Range { start, end } = self.queries;
        for block in (0..end).step_by(step) {
            let (first, last) = (block.max(start), (block + step).min(end));
            if first < last {
                by.multiply(
                    (last - first, head_dim, self.num_keys.min(block + step)),
                    &tile[first..],
                    (1, TILE),
                    rows.data,
                    rows.stride,
                    &mut out[(first - start) * head_dim..],
                    head_dim,
                    write,
                );
            }
        }
    }

    /// `out[key] (= or +=) sum over its queries of tile[key][query] * rows[query]`; the queries
    /// of the tile start at column zero.
    #[inline(always)]
    pub(super) fn sum_over_queries(
        &self,
        by: &mut impl Products,
        head_dim: usize,
        tile: &[f32],
        rows: Rows<'_>,
        out: &mut [f32],
        write: Write,
    ) {
        debug_assert_eq!(self.queries.start, 0);
        let step = self.step();
        for key in (0..self.num_keys).step_by(step) {
            by.multiply(
                (step.min(self.num_keys - key), head_dim, self.queries.end - key),
                &tile[key * TILE + key..],
                (TILE, 1),
                &rows.data[key * rows.stride..],
                rows.stride,
                &mut out[key * head_dim..],
                head_dim,
                write,
            );
        }
    }
}

/// Copies up to 64 rows next to each other, so that no two lie in the same set of the cache.
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

/// Copies a row, which is too short to be worth a call.
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
    let (columns, _) = columns.as_chunks_mut::<LANES>();
    for column in (0..TILE).step_by(LANES) {
        for row in column..column + LANES {
            rows.prefetch(s, row + LANES, head_dim);
        }
        for p in (0..head_dim).step_by(LANES) {
            let len = LANES.min(head_dim - p);
            let mut square = [s.zero(); LANES];
            for (i, vector) in square.iter_mut().enumerate() {
                if queries.contains(&(column + i)) {
                    let part = &rows.data[(column + i - queries.start) * rows.stride + p..][..len];
                    *vector = match part.as_array::<LANES>() {
                        Some(part) => s.load(part),
                        None => s.load_partial(part),
                    };
                }
            }
            let square = s.transpose(square);
            for (i, &vector) in square[..len].iter().enumerate() {
                s.store(vector, &mut columns[(p + i) * PER_ROW + column / LANES]);
            }
        }
    }
}

/// The numbers 0 to 15, one per lane.
#[inline(always)]
pub(super) fn lane_numbers<S: Simd>(s: S) -> S::V {
    s.load(&std::array::from_fn(|lane| lane as f32))
}

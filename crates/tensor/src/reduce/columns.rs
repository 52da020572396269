//! Sums over rows for every column: the shape of the gradient of a bias or of a norm's weight.
//!
//! Each column is one chain of additions from zero, rows ascending, and the result is added to the
//! gradient once. The order does not depend on the number of threads: a task owns sixty-four
//! neighbouring columns and iterates over all rows, with four vectors of running sums in registers.

use super::groups::{load, store};
use crate::Cpu;
use crate::simd::{Kernel, Simd, VECTOR_LEN};
use std::ops::Range;

/// Vectors of columns that one task keeps in registers.
const GROUPS: usize = 4;

/// Columns of a task.
pub(crate) const COLUMNS: usize = GROUPS * VECTOR_LEN;

/// Terms of `K` column sums that are computed in one pass over the rows.
pub(crate) trait Terms<const K: usize>: Copy + Send + Sync {
    /// Adds the terms of `row` at `columns` (N vectors; one may be partial when N is 1).
    ///
    /// Implementations must be `#[inline(always)]`.
    fn add<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        columns: Range<usize>,
        sums: &mut [[S::V; N]; K],
    );
}

/// Adds to each buffer of `sums` (one element a column) its column sums over all rows.
pub(crate) fn add_column_sums<const K: usize, T: Terms<K>>(
    cpu: &Cpu,
    num_rows: usize,
    terms: T,
    sums: [&mut [f32]; K],
) {
    cpu.for_each_split(sums, [COLUMNS; K], |i, sums| {
        cpu.run(ColumnBlock { num_rows, terms, first_column: i * COLUMNS, sums });
    });
}

/// The part of `row` in `columns`.
#[inline(always)]
pub(crate) fn row_part(x_tn: &[f32], width: usize, row: usize, columns: Range<usize>) -> &[f32] {
    let start = row * width + columns.start;
    &x_tn[start..start + columns.len()]
}

struct ColumnBlock<'a, T, const K: usize> {
    num_rows: usize,
    terms: T,
    first_column: usize,
    sums: [&'a mut [f32]; K],
}

impl<const K: usize, T: Terms<K>> Kernel for ColumnBlock<'_, T, K> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { num_rows, terms, first_column: first, mut sums } = self;
        let num_columns = sums[0].len();
        if num_columns == COLUMNS {
            let mut total = [[s.zero(); GROUPS]; K];
            for row in 0..num_rows {
                terms.add(s, row, first..first + COLUMNS, &mut total);
            }
            add_totals(s, total, &mut sums, 0);
            return;
        }
        for group in 0..num_columns.div_ceil(VECTOR_LEN) {
            let columns =
                first + group * VECTOR_LEN..first + num_columns.min((group + 1) * VECTOR_LEN);
            let mut total = [[s.zero(); 1]; K];
            for row in 0..num_rows {
                terms.add(s, row, columns.clone(), &mut total);
            }
            add_totals(s, total, &mut sums, group);
        }
    }
}

/// Adds N vectors of totals to each buffer, from group `first` on.
#[inline(always)]
fn add_totals<S: Simd, const K: usize, const N: usize>(
    s: S,
    totals: [[S::V; N]; K],
    sums: &mut [&mut [f32]; K],
    first: usize,
) {
    for (totals, sums) in totals.iter().zip(sums) {
        for (i, &total) in totals.iter().enumerate() {
            store(s, s.add(load(s, sums, first + i), total), sums, first + i);
        }
    }
}

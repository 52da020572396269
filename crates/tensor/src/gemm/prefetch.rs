//! Software prefetch during the computation of a register tile.
//!
//! The rows of the target and of the left operand are kilobytes apart, which defeats hardware
//! prefetchers, and a miss to the shared cache costs as much as a dozen steps of the tile. Each
//! tile therefore prefetches its own piece of the target, which it needs at its end, and a part of
//! the rows that the next task packs. It issues a few at a time: all at once, they would delay the
//! tile's own loads. Prefetches have no visible effect and may point beyond a buffer.

use super::Mat;
use super::blocking::{TILE_COLS, TILE_ROWS};
use crate::simd::{Simd, VECTOR_LEN};

/// Steps of k between two rounds of prefetches.
pub(super) const STEPS: usize = 32;
/// Rows of the target in one round: a tile of 192 steps or more prefetches all of its rows.
const TARGET_ROWS: usize = 2;
/// Cache lines of the left operand in one round: twelve adjacent tiles prefetch all of it.
const LEFT_LINES: usize = 3;

/// Addresses of the next round of prefetches.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    /// A row of the tile's target; null for no prefetches.
    target: *const f32,
    target_row: usize,
    left: *const f32,
    /// Stride between lines of a round.
    left_line: usize,
    /// Stride between rounds.
    left_round: usize,
}

impl Prefetch {
    /// No prefetches, for tiles whose operands are in the cache.
    pub(super) const NONE: Self = Self {
        target: std::ptr::null(),
        target_row: 0,
        left: std::ptr::null(),
        left_line: 0,
        left_round: 0,
    };

    /// Addresses for the `index`-th tile of a task, whose target starts at `target`; the next task
    /// packs rows of `a` from `next_row` on and products from `first` on.
    #[inline(always)]
    pub(super) fn new(
        (target, target_row): (*const f32, usize),
        a: Mat<'_>,
        (next_row, first): (usize, usize),
        index: usize,
    ) -> Self {
        let (row, product, left_line, left_round) = if a.col_stride == 1 {
            // One row per tile; tiles beyond the twelfth repeat the last row.
            (next_row + index.min(TILE_ROWS - 1), first, VECTOR_LEN, STEPS)
        } else {
            // A column is shorter than a cache line and the one above it was just packed, so its
            // last element is in the only line that can be missing.
            let column = first + LEFT_LINES * index;
            (next_row + TILE_ROWS - 1, column, a.col_stride, STEPS * a.col_stride)
        };
        let left = a.data.address(row * a.row_stride + product * a.col_stride);
        Self { target, target_row, left, left_line, left_round }
    }

    /// Issues one round of prefetches and advances.
    #[inline(always)]
    pub(super) fn issue<S: Simd>(&mut self, s: S) {
        if self.target.is_null() {
            return;
        }
        for _ in 0..TARGET_ROWS {
            for column in [0, VECTOR_LEN, TILE_COLS - 1] {
                s.prefetch(self.target.wrapping_add(column));
            }
            self.target = self.target.wrapping_add(self.target_row);
        }
        for i in 0..LEFT_LINES {
            s.prefetch(self.left.wrapping_add(i * self.left_line));
        }
        self.left = self.left.wrapping_add(self.left_round);
    }
}

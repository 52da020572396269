//! What the CPU is told to fetch while a register tile is computed.
//!
//! The rows of the target and of the left operand lie kilobytes apart, where no hardware expects
//! the next access, and a miss to the shared cache costs as much as a dozen steps of the tile. So
//! each tile asks for its own piece of the target, which it needs at its end, and for a share of
//! the rows that the next task packs. It asks a little at a time: all at once the requests would
//! hold up the tile's own loads. Hints move no data that the program can see; they may point
//! beyond a buffer.

use super::Mat;
use super::tile::{TILE_COLS, TILE_ROWS};
use crate::simd::{VECTOR_LEN, Simd};

/// Steps of k between two rounds of hints.
pub(super) const STEPS: usize = 32;
/// Rows of the target in one round: a tile of 192 steps or more asks for all of its rows.
const TARGET_ROWS: usize = 2;
/// Cache lines of the left operand in one round: twelve tiles side by side ask for all of it.
const LEFT_LINES: usize = 3;

/// Where the next round of hints points.
#[derive(Clone, Copy)]
pub(super) struct Hints {
    /// A row of the tile's target; null for no hints at all.
    target: *const f32,
    target_row: usize,
    left: *const f32,
    /// From one line of a round to the next.
    left_line: usize,
    /// From one round to the next.
    left_round: usize,
}

impl Hints {
    /// For tiles whose operands are close anyway.
    pub(super) const NONE: Self = Self {
        target: std::ptr::null(),
        target_row: 0,
        left: std::ptr::null(),
        left_line: 0,
        left_round: 0,
    };

    /// For the `index`-th tile side by side of one task, whose target starts at `target`; the next
    /// task packs rows of `a` from `next_row` on and products from `first` on.
    #[inline(always)]
    pub(super) fn new(
        (target, target_row): (*const f32, usize),
        a: Mat<'_>,
        (next_row, first): (usize, usize),
        index: usize,
    ) -> Self {
        let (row, product, left_line, left_round) = if a.col_stride == 1 {
            // One row a tile, and beyond the twelfth again the last.
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

    /// Gives one round of hints and moves on.
    #[inline(always)]
    pub(super) fn give<S: Simd>(&mut self, s: S) {
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

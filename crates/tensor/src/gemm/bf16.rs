//! A product in bf16: blocks that fit the caches around products of tiles.
//!
//! As in `f32`, the right operand is packed for as many columns as the second-level cache holds,
//! then tasks pack 64 rows of the left operand each and sweep the panels. Products run so much
//! faster here that packing and the trips of the target between blocks of k matter: blocks of k are
//! long, and while tiles are multiplied the caches are told to fetch the next piece of the target
//! and a share of the rows that the next task packs.

use super::tiles::pack::{self, Side};
use super::tiles::{Engine, LINES, STEP, TILE, panel_words};
use super::{Mat, Target, Write};
use crate::Cpu;
use crate::amx::{HINT_ROWS, Hint};
use crate::simd::{Kernel, LANES, Simd};
use std::mem::MaybeUninit;

/// Products of the longest block: with them a panel of either operand is a few percent of the
/// second-level cache, and the target makes few trips. Only speed depends on it.
const BLOCK: usize = 1024;
/// Rows of one task.
const ROWS: usize = 2 * LINES;
/// Words of its left panels.
const LEFT_WORDS: usize = ROWS / LINES * panel_words(BLOCK);
/// Words of the packed columns that one sweep takes. Only speed depends on it.
const CACHED_WORDS: usize = 256 * 1024;

/// `target (= or +=) a b`, then plus `bias`; shapes are checked.
pub(super) fn product(
    cpu: &Cpu,
    a: Mat<'_>,
    b: Mat<'_>,
    target: Target,
    write: Write,
    bias: Option<&[f32]>,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let num_panels = n.div_ceil(LINES);
    // As few blocks as the caches allow, all alike.
    let block_len = k.div_ceil(k.div_ceil(BLOCK)).next_multiple_of(STEP);
    let longest = panel_words(block_len.min(k));
    let num_sweeps = num_panels.div_ceil(CACHED_WORDS / longest);
    let sweep_panels = num_panels.div_ceil(num_sweeps);
    // Columns that lie side by side are packed a few panels at a time, which reads longer runs of
    // memory; of columns that are contiguous, so many at once would only be in each other's way.
    let together = if b.col_stride == 1 { 4 } else { 1 };
    cpu.with_packing_buffer(sweep_panels * longest, |packed| {
        for p in (0..k).step_by(block_len) {
            let block = (p, block_len.min(k - p));
            let words = panel_words(block.1);
            let add = p > 0 || write == Write::Add;
            let bias = bias.filter(|_| p + block_len >= k);
            for first_panel in (0..num_panels).step_by(sweep_panels) {
                let num = sweep_panels.min(num_panels - first_panel);
                let packed = &mut packed[..num * words];
                cpu.for_each_part(packed, together * words, |i, out| {
                    let panel = first_panel + i * together;
                    cpu.run_tiles(PackRight { b, block, panel, out });
                });
                let (packed, first_col) = (&*packed, first_panel * LINES);
                let cols = (first_col, (num * LINES).min(n - first_col));
                cpu.for_each(m.div_ceil(ROWS), |task| {
                    let rows = (task * ROWS, ROWS.min(m - task * ROWS));
                    cpu.run_tiles(Sweep { a, packed, rows, cols, block, target, add, bias });
                });
            }
        }
    });
}

/// Packs a few panels of the right operand.
struct PackRight<'a> {
    b: Mat<'a>,
    block: (usize, usize),
    panel: usize,
    out: &'a mut [f32],
}

impl Kernel for PackRight<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let first = self.panel * LINES;
        let num = self.out.len() / panel_words(self.block.1) * LINES;
        let cols = (first, num.min(self.b.cols - first));
        pack::lines(s, self.b.t(), cols, self.block, Side::Right, self.out);
    }
}

/// 64 rows of the left operand times the panels of one sweep.
struct Sweep<'a> {
    a: Mat<'a>,
    packed: &'a [f32],
    rows: (usize, usize),
    cols: (usize, usize),
    block: (usize, usize),
    target: Target,
    add: bool,
    bias: Option<&'a [f32]>,
}

/// Room for the left panels of a task, from the start of a cache line on. It is not cleared first:
/// that would cost as much as filling it.
#[repr(align(64))]
struct LeftPanels([MaybeUninit<f32>; LEFT_WORDS]);

/// One block of the target that does not cover whole tiles, or has to be added to.
#[repr(align(64))]
struct Corner([f32; LINES * LINES]);

impl Kernel for Sweep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let words = panel_words(self.block.1);
        #[expect(clippy::large_stack_arrays, reason = "128 KB that stay in the cache")]
        let mut left = LeftPanels([const { MaybeUninit::uninit() }; LEFT_WORDS]);
        let len = self.rows.1.div_ceil(LINES) * words;
        // SAFETY: words are plain numbers, and packing writes all of those before any is read.
        let left: &mut [f32] =
            unsafe { std::slice::from_raw_parts_mut(left.0.as_mut_ptr().cast(), len) };
        pack::lines(s, self.a, self.rows, self.block, Side::Left, left);
        let engine = Engine::new(s);
        let (first_col, num_cols) = self.cols;
        for (index, right) in self.packed.chunks_exact(words).enumerate() {
            let j = first_col + index * LINES;
            let n = LINES.min(first_col + num_cols - j);
            for (i, left) in left.chunks_exact(words).enumerate() {
                let hint = self.hint(index, i);
                self.one(&engine, s, (i, left), right, (j, n), hint);
            }
        }
    }
}

impl Sweep<'_> {
    /// What the next task packs, a share for each panel of the sweep: some rows where products are
    /// contiguous, some products of each step where rows are.
    #[inline(always)]
    fn hint(&self, index: usize, left: usize) -> Hint {
        let Mat { data, row_stride, col_stride, .. } = self.a;
        let (next_row, first) = (self.rows.0 + ROWS + left * LINES, self.block.0);
        let size = data.size();
        let share = HINT_ROWS * index.min(LINES / HINT_ROWS);
        let (row, product, between) = if col_stride == 1 {
            (next_row + share, first, row_stride)
        } else {
            (next_row, first + share, col_stride)
        };
        let start = data.address(row * row_stride + product * col_stride);
        Hint { start, row: between * size, step: STEP * col_stride * size }
    }

    /// One panel of the rows of this task and one of columns.
    #[inline(always)]
    fn one<S: Simd>(
        &self,
        engine: &Engine<S>,
        s: S,
        (i, left): (usize, &[f32]),
        right: &[f32],
        (j, n): (usize, usize),
        hint: Hint,
    ) {
        let first_row = self.rows.0 + i * LINES;
        let m = LINES.min(self.rows.1 - i * LINES);
        let (both, row) = (m > TILE, self.target.row_stride);
        let whole = n == LINES && m.is_multiple_of(TILE) && self.bias.is_none();
        // SAFETY: rows first_row..first_row + m and columns j..j + n lie inside the target
        // (`product` checked m, n and the stride), and no other task has this pair of ranges.
        unsafe {
            let c = self.target.data.add(first_row * row + j);
            if whole {
                return engine.multiply_into(both, left, right, c, row, self.add, hint);
            }
            let rows = |r: usize| std::slice::from_raw_parts_mut(c.add(r * row), n);
            let mut corner = Corner([0.0; LINES * LINES]);
            if self.add {
                for (r, corner) in corner.0.chunks_exact_mut(LINES).enumerate().take(m) {
                    corner[..n].copy_from_slice(rows(r));
                }
            }
            engine.multiply(both, left, right, &mut corner.0, LINES, self.add);
            for (r, corner) in corner.0.chunks_exact(LINES).enumerate().take(m) {
                let target = rows(r);
                match self.bias {
                    Some(bias) => add_row(s, corner, &bias[j..j + n], target),
                    None => target.copy_from_slice(&corner[..n]),
                }
            }
        }
    }
}

/// `out = a + b` for a row of a corner.
#[inline(always)]
fn add_row<S: Simd>(s: S, a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((a, b), out) in a.chunks(LANES).zip(b.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let sum = s.add(s.load_partial(&a[..b.len()]), s.load_partial(b));
        s.store_partial(sum, out);
    }
}

#[cfg(test)]
mod tests;

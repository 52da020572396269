//! Matrix product in bf16: cache blocking around products of tiles.
//!
//! As in `f32`, the right operand is packed for as many columns as the second-level cache holds,
//! then tasks pack some rows of the left operand each and sweep the panels, 32 rows at a time.
//! Products are fast enough to be memory-bound: by loads and stores of the target between blocks of
//! k (so these are long), by stores that straddle cache lines (so panels are aligned to them), and
//! by interleaved rows (so many are packed at a time).

use super::tiles::pack::{self, Side};
use super::tiles::{Engine, LINES, STEP, TILE, panel_len};
use super::{Mat, Target, Write};
use crate::Cpu;
use crate::simd::{Kernel, Simd, VECTOR_LEN};
use std::mem::MaybeUninit;

/// Products of the longest block: a panel of either operand is then a few percent of the
/// second-level cache, and the target is loaded few times. Affects only speed.
const BLOCK: usize = 1024;
/// Panels of left rows in the largest task.
const LEFT_PANELS: usize = 4;
/// Elements of these panels.
const LEFT_PANELS_LEN: usize = LEFT_PANELS * panel_len(BLOCK);
/// Elements of the packed columns of one sweep. Affects only speed.
const CACHED_ELEMENTS: usize = 256 * 1024;

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
    let columns = Columns { num: n, shift: shift(target, n, k) };
    let num_panels = columns.num_panels();
    // As few blocks as the caches allow, all of equal size.
    let block_len = k.div_ceil(k.div_ceil(BLOCK)).next_multiple_of(STEP);
    let longest = panel_len(block_len.min(k));
    let num_sweeps = num_panels.div_ceil(CACHED_ELEMENTS / longest);
    let sweep_panels = num_panels.div_ceil(num_sweeps);
    // Interleaved columns are packed a few panels at a time, which reads longer runs of memory;
    // contiguous columns would evict each other from the cache.
    let together = if b.col_stride == 1 { 4 } else { 1 };
    let num_rows = LINES * if a.col_stride == 1 { 1 } else { left_panels(m) };
    cpu.with_packing_buffer(sweep_panels * longest, |packed| {
        for p in (0..k).step_by(block_len) {
            let block = (p, block_len.min(k - p));
            let per_panel = panel_len(block.1);
            let add = p > 0 || write == Write::Add;
            let bias = bias.filter(|_| p + block_len >= k);
            for first_panel in (0..num_panels).step_by(sweep_panels) {
                let num = sweep_panels.min(num_panels - first_panel);
                let packed = &mut packed[..num * per_panel];
                cpu.for_each_part(packed, together * per_panel, |i, out| {
                    let panel = first_panel + i * together;
                    cpu.run_tiles(PackRight { b, block, columns, panel, out });
                });
                let packed = &*packed;
                cpu.for_each(m.div_ceil(num_rows), |task| {
                    let first_row = task * num_rows;
                    let rows = (first_row, num_rows.min(m - first_row));
                    let panels = (packed, columns, first_panel);
                    cpu.run_tiles(Sweep { a, panels, rows, block, target, add, bias });
                });
            }
        }
    });
}

/// Panels of a task whose rows are interleaved: more panels read longer runs of memory, but fewer
/// tasks remain to distribute.
fn left_panels(m: usize) -> usize {
    (m / LINES / 4).clamp(1, LEFT_PANELS)
}

/// Division of the target's columns into panels: after the first, all are aligned to a cache line
/// of the target, where its rows allow that.
#[derive(Clone, Copy)]
struct Columns {
    num: usize,
    /// Columns by which the first panel is narrower than the others.
    shift: usize,
}

impl Columns {
    fn num_panels(self) -> usize {
        (self.num + self.shift).div_ceil(LINES)
    }

    /// The first column of a panel, or one behind the last.
    #[inline(always)]
    fn start(self, panel: usize) -> usize {
        (panel * LINES).saturating_sub(self.shift).min(self.num)
    }

    /// First column of a panel, and its number of columns.
    #[inline(always)]
    fn of(self, panel: usize) -> (usize, usize) {
        (self.start(panel), self.start(panel + 1) - self.start(panel))
    }
}

/// Columns by which to narrow the first panel. Stores that straddle two cache lines cost more than
/// an extra partial panel, unless the product is long.
fn shift(target: Target, n: usize, k: usize) -> usize {
    let straddles = target.data.addr() / size_of::<f32>() % VECTOR_LEN;
    if target.row_stride.is_multiple_of(VECTOR_LEN) && 4 * n > k { straddles } else { 0 }
}

/// Packs a few panels of the right operand.
struct PackRight<'a> {
    b: Mat<'a>,
    block: (usize, usize),
    columns: Columns,
    panel: usize,
    out: &'a mut [f32],
}

impl Kernel for PackRight<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let per_panel = panel_len(self.block.1);
        // A narrower first panel is packed separately.
        let num_first = usize::from(self.panel == 0 && self.columns.shift > 0);
        let (first, rest) = self.out.split_at_mut(num_first * per_panel);
        for (panel, out) in [(self.panel, first), (self.panel + num_first, rest)] {
            if !out.is_empty() {
                let start = self.columns.start(panel);
                let num = self.columns.start(panel + out.len() / per_panel) - start;
                pack::lines(s, self.b.t(), (start, num), self.block, Side::Right, out);
            }
        }
    }
}

/// Some rows of the left operand times the panels of one sweep.
struct Sweep<'a> {
    a: Mat<'a>,
    /// Packed columns, their division, and the first panel.
    panels: (&'a [f32], Columns, usize),
    rows: (usize, usize),
    block: (usize, usize),
    target: Target,
    add: bool,
    bias: Option<&'a [f32]>,
}

/// Left panels of a task, aligned to a cache line. Not cleared first: that would cost as much as
/// filling them.
#[repr(align(64))]
struct LeftPanels([MaybeUninit<f32>; LEFT_PANELS_LEN]);

/// A block of the target that does not cover whole tiles.
#[repr(align(64))]
struct Corner([f32; LINES * LINES]);

impl Kernel for Sweep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let per_panel = panel_len(self.block.1);
        #[expect(clippy::large_stack_arrays, reason = "256 KiB that stay in the cache")]
        let mut left = LeftPanels([const { MaybeUninit::uninit() }; LEFT_PANELS_LEN]);
        let len = self.rows.1.div_ceil(LINES) * per_panel;
        // SAFETY: every bit pattern is a valid `f32`, and packing writes each element before any is
        // read.
        let left: &mut [f32] =
            unsafe { std::slice::from_raw_parts_mut(left.0.as_mut_ptr().cast(), len) };
        pack::lines(s, self.a, self.rows, self.block, Side::Left, left);
        let engine = Engine::new(s);
        let (packed, columns, first_panel) = self.panels;
        for (i, left) in left.chunks_exact(per_panel).enumerate() {
            for (index, right) in packed.chunks_exact(per_panel).enumerate() {
                self.one(&engine, s, (i, left), right, columns.of(first_panel + index));
            }
        }
    }
}

impl Sweep<'_> {
    /// One panel of the rows of this task and one of columns.
    #[inline(always)]
    fn one<S: Simd>(
        &self,
        engine: &Engine<S>,
        s: S,
        (i, left): (usize, &[f32]),
        right: &[f32],
        (j, n): (usize, usize),
    ) {
        let first_row = self.rows.0 + i * LINES;
        let m = LINES.min(self.rows.1 - i * LINES);
        let (both, row) = (m > TILE, self.target.row_stride);
        let whole = n == LINES && m.is_multiple_of(TILE) && self.bias.is_none();
        // SAFETY: rows first_row..first_row + m and columns j..j + n are inside the target
        // (`product` checked m, n and the stride), and no other task has this pair of ranges.
        unsafe {
            let c = self.target.data.add(first_row * row + j);
            if whole {
                return engine.multiply_into(both, left, right, c, row, self.add);
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
    for ((a, b), out) in
        a.chunks(VECTOR_LEN).zip(b.chunks(VECTOR_LEN)).zip(out.chunks_mut(VECTOR_LEN))
    {
        let sum = s.add(s.load_partial(&a[..b.len()]), s.load_partial(b));
        s.store_partial(sum, out);
    }
}

//! Rounds operands to bf16 and packs them into panels, in one pass.
//!
//! A *line* is a row of the left operand or a column of the right one. Where a line is contiguous
//! in memory, one instruction rounds 32 numbers of it to sixteen pairs; where lines are interleaved
//! instead, it pairs sixteen lines of one product with those of the next. Either gives a square of
//! pairs, by line or by pair; the left operand needs the former, the right operand the latter, and
//! the other case is transposed.

use super::{LINES, STEP, STEP_LEN, TILE, TILE_LEN, panel_len};
use crate::gemm::Mat;
use crate::gemm::elements::{Element, of_any_type};
use crate::simd::{Kernel, Simd, VECTOR_LEN};

/// Steps by which a contiguous line is prefetched.
const AHEAD: usize = 4;
/// Products by which interleaved lines are prefetched.
const PRODUCTS_AHEAD: usize = 8;

/// Operand of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Tiles have a row for each line.
    Left,
    /// Tiles have a column for each line.
    Right,
}

/// Packs lines `first..first + num` and products `p..p + k` of `x`, a matrix of lines by products,
/// into the panels of `panels`; missing lines and products become zero.
///
/// All callers share one function per instruction set: its code, for three types of elements and
/// every layout, is large.
#[inline(always)]
pub(crate) fn lines<S: Simd>(
    s: S,
    x: Mat<'_>,
    (first, num): (usize, usize),
    (p, k): (usize, usize),
    side: Side,
    panels: &mut [f32],
) {
    s.call(Pack { x, lines: (first, num), products: (p, k), side, panels });
}

/// Kernel of [`lines`].
struct Pack<'a> {
    x: Mat<'a>,
    /// First line, and number of lines.
    lines: (usize, usize),
    /// First product, and number of products.
    products: (usize, usize),
    side: Side,
    panels: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, lines: (first, num), products: (p, k), side, panels } = self;
        let (lines, products) = (x.row_stride, x.col_stride);
        let per_panel = panel_len(k);
        debug_assert!(num <= panels.len() / per_panel * LINES);
        of_any_type!(x.data, data => {
            let data = &data[first * lines + p * products..];
            // Steps outside, panels inside: interleaved lines are read in long runs.
            for step in 0..per_panel / STEP_LEN {
                let k = (step * STEP, STEP.min(k - step * STEP));
                let is_full = k.1 == STEP && num == panels.len() / per_panel * LINES;
                if lines == 1 && products > 1 && is_full {
                    let data = (&data[k.0 * products..], products);
                    interleaved(s, data, (step, per_panel), side, panels);
                    continue;
                }
                for (i, panel) in panels.chunks_exact_mut(per_panel).enumerate() {
                    let (tiles, _) = panel[step * STEP_LEN..].as_chunks_mut::<TILE_LEN>();
                    for (tile, out) in tiles[..2].iter_mut().enumerate() {
                        let first = i * LINES + tile * TILE;
                        let lines = Lines { data, first, strides: (lines, products), k };
                        lines.pack(s, num.saturating_sub(first).min(TILE), side, out);
                    }
                }
            }
        });
    }
}

/// Packs one whole step of panels whose lines are complete and interleaved, `stride` from product
/// to product: pairs outside, so that memory is read in the longest runs and does not depend on the
/// first-level cache, where such strides collide.
#[inline(always)]
fn interleaved<S: Simd, T: Element>(
    s: S,
    (data, stride): (&[T], usize),
    (step, per_panel): (usize, usize),
    side: Side,
    panels: &mut [f32],
) {
    for pair in 0..VECTOR_LEN {
        let (even, odd) = (&data[2 * pair * stride..], &data[(2 * pair + 1) * stride..]);
        for (i, panel) in panels.chunks_exact_mut(per_panel).enumerate() {
            let (tiles, _) = panel[step * STEP_LEN..].as_chunks_mut::<TILE_LEN>();
            for (half, out) in tiles[..2].iter_mut().enumerate() {
                let line = i * LINES + half * TILE;
                s.prefetch(even.as_ptr().wrapping_add(PRODUCTS_AHEAD * stride + line).cast());
                s.prefetch(odd.as_ptr().wrapping_add(PRODUCTS_AHEAD * stride + line).cast());
                let even = T::load(s, even[line..].first_chunk().expect("sixteen lines"));
                let odd = T::load(s, odd[line..].first_chunk().expect("sixteen lines"));
                let (out, _) = out.as_chunks_mut::<VECTOR_LEN>();
                s.store(s.from_bits(s.pair_elements(even, odd)), &mut out[pair]);
            }
        }
    }
    if side == Side::Left {
        for panel in panels.chunks_exact_mut(per_panel) {
            let (tiles, _) = panel[step * STEP_LEN..].as_chunks_mut::<TILE_LEN>();
            for tile in &mut tiles[..2] {
                transpose(s, tile.as_chunks_mut().0.first_chunk_mut().expect("rows of a tile"));
            }
        }
    }
}

/// Transposes a square.
#[inline(always)]
fn transpose<S: Simd>(s: S, tile: &mut [[f32; VECTOR_LEN]; TILE]) {
    let mut square = [s.zero(); VECTOR_LEN];
    for (row, elements) in square.iter_mut().zip(&*tile) {
        *row = s.load(elements);
    }
    for (row, elements) in s.transpose(square).into_iter().zip(tile) {
        s.store(row, elements);
    }
}

/// Source of one tile.
struct Lines<'a, T> {
    data: &'a [T],
    first: usize,
    /// Strides between lines, and between products.
    strides: (usize, usize),
    k: (usize, usize),
}

impl<T: Element> Lines<'_, T> {
    #[inline(always)]
    fn pack<S: Simd>(self, s: S, num: usize, side: Side, out: &mut [f32; TILE_LEN]) {
        let (out, _) = out.as_chunks_mut::<VECTOR_LEN>();
        let out = out.first_chunk_mut().expect("the rows of a tile");
        if num < TILE || self.k.1 < STEP {
            *out = [[0.0; VECTOR_LEN]; TILE];
        }
        let found = if self.strides.1 == 1 {
            self.by_line(s, num, out);
            Side::Left
        } else if self.strides.0 == 1 {
            self.by_pair(s, num, out);
            Side::Right
        } else {
            self.strided(s, num, out);
            Side::Left
        };
        if found != side {
            transpose(s, out);
        }
    }

    /// Packs line i into row i, one pair per element.
    #[inline(always)]
    fn by_line<S: Simd>(&self, s: S, num: usize, out: &mut [[f32; VECTOR_LEN]; TILE]) {
        let (p, k) = self.k;
        let start = |line: usize| (self.first + line) * self.strides.0 + p;
        if num == TILE && k == STEP {
            for (line, row) in out.iter_mut().enumerate() {
                let numbers: &[T; STEP] = self.data[start(line)..].first_chunk().expect("a step");
                s.prefetch(numbers.as_ptr().wrapping_add(AHEAD * STEP).cast());
                s.prefetch(numbers.as_ptr().wrapping_add(AHEAD * STEP + VECTOR_LEN).cast());
                let (halves, _) = numbers.as_chunks::<VECTOR_LEN>();
                // No closures: one that is not inlined loses the kernel's target features.
                let (a, b) = (T::load(s, &halves[0]), T::load(s, &halves[1]));
                s.store(s.from_bits(s.pair_neighbours(a, b)), row);
            }
        } else {
            for (line, row) in out.iter_mut().enumerate().take(num) {
                let (a, b) = self.data[start(line)..][..k].split_at(k.min(VECTOR_LEN));
                let (a, b) = (T::load_partial(s, a), T::load_partial(s, b));
                s.store(s.from_bits(s.pair_neighbours(a, b)), row);
            }
        }
    }

    /// Packs pair i into row i, one line per element.
    #[inline(always)]
    fn by_pair<S: Simd>(&self, s: S, num: usize, out: &mut [[f32; VECTOR_LEN]; TILE]) {
        if num == TILE && self.k.1 == STEP {
            for (pair, row) in out.iter_mut().enumerate() {
                let (even, odd) = (self.interleaved(2 * pair), self.interleaved(2 * pair + 1));
                s.prefetch(even.as_ptr().wrapping_add(STEP * self.strides.1).cast());
                s.prefetch(odd.as_ptr().wrapping_add(STEP * self.strides.1).cast());
                s.store(s.from_bits(s.pair_elements(T::load(s, even), T::load(s, odd))), row);
            }
        } else if num > 0 {
            for (pair, row) in out.iter_mut().enumerate().take(self.k.1.div_ceil(2)) {
                let (even, odd) = (self.partial(2 * pair, num), self.partial(2 * pair + 1, num));
                let (even, odd) = (T::load_partial(s, even), T::load_partial(s, odd));
                s.store(s.from_bits(s.pair_elements(even, odd)), row);
            }
        }
    }

    /// Sixteen lines of one product.
    #[inline(always)]
    fn interleaved(&self, product: usize) -> &[T; VECTOR_LEN] {
        let start = (self.k.0 + product) * self.strides.1 + self.first;
        self.data[start..].first_chunk().expect("sixteen lines")
    }

    /// The first `num` lines of one product, none of a product beyond the last.
    #[inline(always)]
    fn partial(&self, product: usize, num: usize) -> &[T] {
        let start = (self.k.0 + product) * self.strides.1 + self.first;
        if product < self.k.1 { &self.data[start..start + num] } else { &[] }
    }

    /// Packs line i into row i, of a matrix that is contiguous in neither direction.
    #[inline(always)]
    fn strided<S: Simd>(&self, s: S, num: usize, out: &mut [[f32; VECTOR_LEN]; TILE]) {
        let (p, k) = self.k;
        for (line, row) in out.iter_mut().enumerate().take(num) {
            let start = (self.first + line) * self.strides.0;
            let mut numbers = [[self.data[0]; VECTOR_LEN]; 2];
            for (i, number) in numbers.as_flattened_mut()[..k].iter_mut().enumerate() {
                *number = self.data[start + (p + i) * self.strides.1];
            }
            let (a, b) = numbers.as_flattened()[..k].split_at(k.min(VECTOR_LEN));
            let (a, b) = (T::load_partial(s, a), T::load_partial(s, b));
            s.store(s.from_bits(s.pair_neighbours(a, b)), row);
        }
    }
}

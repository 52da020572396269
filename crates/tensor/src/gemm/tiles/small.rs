//! Products of a few tiles whose operands are packed on the way, for attention.
//!
//! Packing 64 x 64 numbers costs about as much as multiplying them here, and both together a
//! quarter of the product in `f32`; so nothing is kept in packed form between products.

use super::pack::{self, Side};
use super::{Engine, LINES, TILE, panel_words};
use crate::gemm::{Elements, Mat, Write};
use crate::simd::{Kernel, LANES, Simd};

/// Words of room for a product of up to `size` rows, columns and products each.
pub(crate) const fn room_len(size: usize) -> usize {
    2 * size.div_ceil(LINES) * panel_words(size) + LANES
}

/// `c (= or +=) a b`: element `a[i][p]` is at `i * a_strides.0 + p * a_strides.1`; the rows of `b`
/// and `c` are contiguous, `b_row` and `c_row` apart.
pub(crate) struct Product<'a> {
    /// Rows, columns and products.
    pub(crate) dims: (usize, usize, usize),
    pub(crate) a: &'a [f32],
    pub(crate) a_strides: (usize, usize),
    pub(crate) b: &'a [f32],
    pub(crate) b_row: usize,
    pub(crate) c: &'a mut [f32],
    pub(crate) c_row: usize,
    pub(crate) write: Write,
    /// At least [`room_len`] words, which hold whatever was left there.
    pub(crate) room: &'a mut [f32],
}

impl Kernel for Product<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (m, n, k) = self.dims;
        if m == 0 || n == 0 {
            return;
        }
        assert!(k > 0, "a product over nothing has no chain");
        let words = panel_words(k);
        let start = self.room.as_ptr().align_offset(LANES * size_of::<f32>());
        let (left, right) = self.room[start..].split_at_mut(m.div_ceil(LINES) * words);
        let right = &mut right[..n.div_ceil(LINES) * words];
        let (row_stride, col_stride) = self.a_strides;
        let a = Mat { data: Elements::F32(self.a), rows: m, cols: k, row_stride, col_stride };
        let b = Mat::strided(self.b, k, n, self.b_row);
        pack::lines(s, a, (0, m), (0, k), Side::Left, left);
        pack::lines(s, b.t(), (0, n), (0, k), Side::Right, right);

        let (engine, add) = (Engine::new(s), self.write == Write::Add);
        for (i, left) in left.chunks_exact(words).enumerate() {
            let m = LINES.min(m - i * LINES);
            for (j, right) in right.chunks_exact(words).enumerate() {
                let n = LINES.min(n - j * LINES);
                let c = &mut self.c[i * LINES * self.c_row + j * LINES..];
                if n == LINES && m.is_multiple_of(TILE) {
                    engine.multiply(m > TILE, left, right, c, self.c_row, add);
                } else {
                    corner(&engine, (m, n), (left, right), c, self.c_row, add);
                }
            }
        }
    }
}

/// A block that does not cover whole tiles.
#[inline(always)]
fn corner<S: Simd>(
    engine: &Engine<S>,
    (m, n): (usize, usize),
    (left, right): (&[f32], &[f32]),
    c: &mut [f32],
    c_row: usize,
    add: bool,
) {
    let mut block = [0.0; LINES * LINES];
    if add {
        for (block, c) in block.chunks_exact_mut(LINES).zip(c.chunks(c_row)).take(m) {
            block[..n].copy_from_slice(&c[..n]);
        }
    }
    engine.multiply(m > TILE, left, right, &mut block, LINES, add);
    for (block, c) in block.chunks_exact(LINES).zip(c.chunks_mut(c_row)).take(m) {
        c[..n].copy_from_slice(&block[..n]);
    }
}

//! Who multiplies the tiles of attention: the vector units in `f32`, or the matrix units in bf16.

use crate::gemm::tiles::small;
use crate::gemm::{Write, tile};
use crate::simd::Simd;

/// Small products, `c (= or +=) a b`, see [`tile::multiply`].
pub(super) trait Products {
    fn multiply(
        &mut self,
        dims: (usize, usize, usize),
        a: &[f32],
        a_strides: (usize, usize),
        b: &[f32],
        b_row: usize,
        c: &mut [f32],
        c_row: usize,
        write: Write,
    );
}

/// In `f32`.
pub(super) struct InF32<S>(pub(super) S);

impl<S: Simd> Products for InF32<S> {
    #[inline(always)]
    fn multiply(
        &mut self,
        dims: (usize, usize, usize),
        a: &[f32],
        a_strides: (usize, usize),
        b: &[f32],
        b_row: usize,
        c: &mut [f32],
        c_row: usize,
        write: Write,
    ) {
        tile::multiply(self.0, dims, a, a_strides, b, b_row, c, c_row, write);
    }
}

/// With operands rounded to bf16.
pub(super) struct InBf16<'a, S> {
    pub(super) s: S,
    pub(super) room: &'a mut [f32],
}

impl<S: Simd> Products for InBf16<'_, S> {
    #[inline(always)]
    fn multiply(
        &mut self,
        dims: (usize, usize, usize),
        a: &[f32],
        a_strides: (usize, usize),
        b: &[f32],
        b_row: usize,
        c: &mut [f32],
        c_row: usize,
        write: Write,
    ) {
        let room = &mut *self.room;
        self.s.call(small::Product { dims, a, a_strides, b, b_row, c, c_row, write, room });
    }
}

//! Register tile: a small product whose sums stay in registers.
//!
//! Each element of the tile is one chain of fused multiply-adds over k, from zero, ascending; the
//! finished sum is then stored or added once. The numbers of rows and columns depend on the
//! instruction set and do not affect results: chains of different elements are independent.

use super::Write;
use super::blocking::PANEL_STRIDE;
use super::prefetch::{self, Prefetch};
use crate::simd::{Isa, Kernel, Simd, VECTOR_LEN};

/// Rows by which a panel is prefetched into the first-level cache: about a hundred cycles, several
/// times the latency of the second level.
const AHEAD: usize = 8;
/// Distance between the rows of a square tile of attention scores.
pub(crate) const SCORE_STRIDE: usize = 64;

/// `c[i][j] (= or +=) sum over p of a[i][p] * b[p][j]` for m rows, n columns and k products.
///
/// Element `a[i][p]` is at `i * a_row + p * a_col`; the rows of `b` and `c` are contiguous, `b_row`
/// and `c_row` apart.
#[inline(always)]
pub(crate) fn multiply<S: Simd>(
    s: S,
    (m, n, k): (usize, usize, usize),
    a: &[f32],
    (a_row, a_col): (usize, usize),
    b: &[f32],
    b_row: usize,
    c: &mut [f32],
    c_row: usize,
    write: Write,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(k > 0, "a product over nothing has no chain");
    assert!((m - 1) * a_row + (k - 1) * a_col < a.len(), "a is too short");
    assert!((m - 1) * c_row + n <= c.len(), "c is too short");
    let (a, c) = (a.as_ptr(), c.as_mut_ptr());
    // SAFETY: the assertions are the requirements of the function, and `c` is borrowed exclusively.
    unsafe {
        multiply_into(s, (m, n, k), a, (a_row, a_col), b, b_row, c, c_row, write, Prefetch::NONE);
    }
}

/// As [`multiply`], from a panel of which only the m x k elements need be initialised, into a
/// target whose other elements other threads write.
///
/// All callers use this one function, so that the large code of the register tiles is compiled once
/// per instruction set.
///
/// # Safety
/// m, n and k are not zero. The m x k elements of `a` must be valid for reads, the m x n elements
/// of `c` for reads and writes, and no other thread may touch the latter meanwhile.
#[inline(always)]
pub(super) unsafe fn multiply_into<S: Simd>(
    s: S,
    (m, n, k): (usize, usize, usize),
    a: *const f32,
    (a_row, a_col): (usize, usize),
    b: &[f32],
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    write: Write,
    prefetch: Prefetch,
) {
    assert!((k - 1) * b_row + n <= b.len(), "b is too short");
    let tile = Tile { k, a_row, a_col, b_row, c_row, add: write == Write::Add, prefetch };
    // SAFETY: the assertion and the caller bound every index that the product touches.
    let product = unsafe { Product::new(tile, m, n, a, b.as_ptr(), c) };
    s.call(product);
}

/// A product whose buffers were checked.
struct Product {
    tile: Tile,
    m: usize,
    n: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
}

impl Product {
    /// # Safety
    /// Every element of the m x n x k product must be inside its buffer until it has run, and no
    /// other thread may touch those of `c`.
    unsafe fn new(
        tile: Tile,
        m: usize,
        n: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) -> Self {
        Self { tile, m, n, a, b, c }
    }
}

impl Kernel for Product {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, m, n, a, b, c } = self;
        // A constant row stride becomes part of the address of each load; the three constants are
        // packed panels of either layout and tiles of attention scores.
        // SAFETY: the caller of `new` guaranteed the requirements of the tiles.
        unsafe {
            match tile.a_row {
                1 => tile.multiply_all::<S, 1>(s, m, n, a, b, c),
                SCORE_STRIDE => tile.multiply_all::<S, SCORE_STRIDE>(s, m, n, a, b, c),
                PANEL_STRIDE => tile.multiply_all::<S, PANEL_STRIDE>(s, m, n, a, b, c),
                _ => tile.multiply_all::<S, 0>(s, m, n, a, b, c),
            }
        }
    }
}

/// Strides and mode shared by all tiles of one product.
#[derive(Clone, Copy)]
struct Tile {
    k: usize,
    a_row: usize,
    a_col: usize,
    b_row: usize,
    c_row: usize,
    add: bool,
    prefetch: Prefetch,
}

impl Tile {
    /// Cuts the product into register tiles that fit this instruction set.
    ///
    /// # Safety
    /// Every element of the m x n x k product must be inside its buffer.
    #[inline(always)]
    unsafe fn multiply_all<S: Simd, const A_ROW: usize>(
        self,
        s: S,
        m: usize,
        n: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match S::ISA {
                Isa::Avx512 => self.multiply_rows::<S, A_ROW, 12, 2>(s, m, n, a, b, c),
                Isa::Avx2 => self.multiply_rows::<S, A_ROW, 6, 1>(s, m, n, a, b, c),
                Isa::Portable => self.multiply_rows::<S, A_ROW, 4, 1>(s, m, n, a, b, c),
            }
        }
    }

    /// Full tiles of R rows, then of four, then of one.
    ///
    /// # Safety
    /// As for [`Tile::multiply_all`].
    #[inline(always)]
    unsafe fn multiply_rows<S: Simd, const A_ROW: usize, const R: usize, const V: usize>(
        self,
        s: S,
        m: usize,
        n: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        let a_row = if A_ROW == 0 { self.a_row } else { A_ROW };
        let mut i = 0;
        while i < m {
            // SAFETY: row i is below m, and each branch takes at most m - i rows.
            unsafe {
                let (a, c) = (a.add(i * a_row), c.add(i * self.c_row));
                if m - i >= R {
                    self.multiply_columns::<S, A_ROW, R, V>(s, n, a, b, c);
                    i += R;
                } else if m - i >= 4 {
                    self.multiply_columns::<S, A_ROW, 4, V>(s, n, a, b, c);
                    i += 4;
                } else {
                    self.multiply_columns::<S, A_ROW, 1, V>(s, n, a, b, c);
                    i += 1;
                }
            }
        }
    }

    /// R rows times all n columns: V vectors at a time, then one, then a partial one.
    ///
    /// # Safety
    /// As for [`Tile::multiply_all`], with R rows.
    #[inline(always)]
    unsafe fn multiply_columns<S: Simd, const A_ROW: usize, const R: usize, const V: usize>(
        self,
        s: S,
        n: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        let mut j = 0;
        // SAFETY: each branch takes at most n - j columns.
        unsafe {
            while n - j >= V * VECTOR_LEN {
                self.multiply_tile::<S, A_ROW, R, V>(s, VECTOR_LEN, a, b.add(j), c.add(j));
                j += V * VECTOR_LEN;
            }
            while n - j >= VECTOR_LEN {
                self.multiply_tile::<S, A_ROW, R, 1>(s, VECTOR_LEN, a, b.add(j), c.add(j));
                j += VECTOR_LEN;
            }
            if j < n {
                self.multiply_tile::<S, A_ROW, R, 1>(s, n - j, a, b.add(j), c.add(j));
            }
        }
    }

    /// One tile of R rows and V vectors; `len` below sixteen only with V = 1.
    ///
    /// # Safety
    /// As for [`Tile::multiply_all`], with R rows and V vectors (the last `len` wide).
    #[inline(always)]
    unsafe fn multiply_tile<S: Simd, const A_ROW: usize, const R: usize, const V: usize>(
        self,
        s: S,
        len: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        let a_row = if A_ROW == 0 { self.a_row } else { A_ROW };
        let mut sums = [[s.zero(); V]; R];
        let mut prefetch = self.prefetch;
        for first in (0..self.k).step_by(prefetch::STEPS) {
            prefetch.issue(s);
            for p in first..self.k.min(first + prefetch::STEPS) {
                // SAFETY: p < k, so row p of b and column p of a are inside (caller).
                unsafe {
                    let b = b.add(p * self.b_row);
                    let a = a.add(p * self.a_col);
                    for v in 0..V {
                        s.prefetch(b.wrapping_add(AHEAD * self.b_row + v * VECTOR_LEN));
                    }
                    let mut right = [s.zero(); V];
                    for (v, right) in right.iter_mut().enumerate() {
                        *right = load(s, b.add(v * VECTOR_LEN), len);
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let left = s.splat(*a.add(r * a_row));
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum = s.fma(left, right, *sum);
                        }
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                // SAFETY: row r and vector v of c are inside (caller).
                unsafe {
                    let c = c.add(r * self.c_row + v * VECTOR_LEN);
                    let sum = if self.add { s.add(load(s, c, len), sum) } else { sum };
                    store(s, sum, c, len);
                }
            }
        }
    }
}

/// # Safety
/// `len` elements from `x` on must be readable.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, x: *const f32, len: usize) -> S::V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if len == VECTOR_LEN {
            s.load(&*x.cast::<[f32; VECTOR_LEN]>())
        } else {
            s.load_partial(std::slice::from_raw_parts(x, len))
        }
    }
}

/// # Safety
/// `len` elements from `x` on must be writable.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, v: S::V, x: *mut f32, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if len == VECTOR_LEN {
            s.store(v, &mut *x.cast::<[f32; VECTOR_LEN]>());
        } else {
            s.store_partial(v, std::slice::from_raw_parts_mut(x, len));
        }
    }
}

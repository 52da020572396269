//! The register tile: a small product whose sums never leave the registers.
//!
//! Each element of the tile is one chain of fused multiply-adds over k, from zero, ascending; the
//! finished sum is then stored or added once. How many rows and columns share the registers is
//! chosen per instruction set and cannot change a bit: chains of different elements never meet.

use super::Write;
use super::hints::{self, Hints};
use crate::simd::{Isa, Kernel, VECTOR_LEN, Simd};

/// Rows of the tallest tile; packed panels have this many rows.
pub(super) const TILE_ROWS: usize = 12;
/// Columns of the widest tile; packed panels have this many columns.
pub(super) const TILE_COLS: usize = 32;
/// Distance between the rows of a packed left panel: a block of k plus one cache line, so that
/// the rows do not fall into the same sets of the first-level cache.
pub(super) const PANEL_STRIDE: usize = super::K_BLOCK + VECTOR_LEN;
/// How many rows ahead of the products a panel is fetched into the first-level cache: about a
/// hundred cycles' worth, several times what the second level takes to answer.
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
    // SAFETY: the assertions are what the function asks for, and `c` is ours alone.
    unsafe {
        multiply_into(s, (m, n, k), a, (a_row, a_col), b, b_row, c, c_row, write, Hints::NONE);
    }
}

/// The same from a panel of which only the m x k elements need be initialised, into a target that
/// other threads write other elements of.
///
/// The register tiles are a lot of code: every user reaches them through this one function, so
/// that they are compiled once for each instruction set.
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
    hints: Hints,
) {
    assert!((k - 1) * b_row + n <= b.len(), "b is too short");
    let tile = Tile { k, a_row, a_col, b_row, c_row, add: write == Write::Add, hints };
    // SAFETY: the assertion and the caller bound every index that the product touches.
    let product = unsafe { Product::new(tile, m, n, a, b.as_ptr(), c) };
    s.call(product);
}

/// A product whose buffers are known to hold it.
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
    /// Every element of the m x n x k product must lie inside its buffer until it has run, and
    /// nobody else may touch those of `c`.
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
        // The row distance as a constant lets the compiler put it into the address of each load;
        // the three constants are packed panels of either layout and tiles of attention scores.
        // SAFETY: whoever made the product promised what the tiles ask for.
        unsafe {
            match tile.a_row {
                1 => tile.all::<S, 1>(s, m, n, a, b, c),
                SCORE_STRIDE => tile.all::<S, SCORE_STRIDE>(s, m, n, a, b, c),
                PANEL_STRIDE => tile.all::<S, PANEL_STRIDE>(s, m, n, a, b, c),
                _ => tile.all::<S, 0>(s, m, n, a, b, c),
            }
        }
    }
}

/// What is the same for all tiles of one product.
#[derive(Clone, Copy)]
struct Tile {
    k: usize,
    a_row: usize,
    a_col: usize,
    b_row: usize,
    c_row: usize,
    add: bool,
    hints: Hints,
}

impl Tile {
    /// Cuts the product into register tiles that fit this instruction set.
    ///
    /// # Safety
    /// Every element of the m x n x k product must lie inside its buffer.
    #[inline(always)]
    unsafe fn all<S: Simd, const A_ROW: usize>(
        self,
        s: S,
        m: usize,
        n: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            match S::ISA {
                Isa::Avx512 => self.rows::<S, A_ROW, 12, 2>(s, m, n, a, b, c),
                Isa::Avx2 => self.rows::<S, A_ROW, 6, 1>(s, m, n, a, b, c),
                Isa::Portable => self.rows::<S, A_ROW, 4, 1>(s, m, n, a, b, c),
            }
        }
    }

    /// Full tiles of R rows, then of four, then of one.
    ///
    /// # Safety
    /// As for [`Tile::all`].
    #[inline(always)]
    unsafe fn rows<S: Simd, const A_ROW: usize, const R: usize, const V: usize>(
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
                    self.columns::<S, A_ROW, R, V>(s, n, a, b, c);
                    i += R;
                } else if m - i >= 4 {
                    self.columns::<S, A_ROW, 4, V>(s, n, a, b, c);
                    i += 4;
                } else {
                    self.columns::<S, A_ROW, 1, V>(s, n, a, b, c);
                    i += 1;
                }
            }
        }
    }

    /// R rows times all n columns: V vectors at a time, then one, then what is left of one.
    ///
    /// # Safety
    /// As for [`Tile::all`], with R rows.
    #[inline(always)]
    unsafe fn columns<S: Simd, const A_ROW: usize, const R: usize, const V: usize>(
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
                self.one::<S, A_ROW, R, V>(s, VECTOR_LEN, a, b.add(j), c.add(j));
                j += V * VECTOR_LEN;
            }
            while n - j >= VECTOR_LEN {
                self.one::<S, A_ROW, R, 1>(s, VECTOR_LEN, a, b.add(j), c.add(j));
                j += VECTOR_LEN;
            }
            if j < n {
                self.one::<S, A_ROW, R, 1>(s, n - j, a, b.add(j), c.add(j));
            }
        }
    }

    /// One tile of R rows and V vectors; `lanes` below sixteen only with V = 1.
    ///
    /// # Safety
    /// As for [`Tile::all`], with R rows and V vectors (the last `lanes` wide).
    #[inline(always)]
    unsafe fn one<S: Simd, const A_ROW: usize, const R: usize, const V: usize>(
        self,
        s: S,
        lanes: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
    ) {
        let a_row = if A_ROW == 0 { self.a_row } else { A_ROW };
        let mut sums = [[s.zero(); V]; R];
        let mut hints = self.hints;
        for first in (0..self.k).step_by(hints::STEPS) {
            hints.give(s);
            for p in first..self.k.min(first + hints::STEPS) {
                // SAFETY: p < k, so row p of b and column p of a are inside (caller).
                unsafe {
                    let b = b.add(p * self.b_row);
                    let a = a.add(p * self.a_col);
                    for v in 0..V {
                        s.prefetch(b.wrapping_add(AHEAD * self.b_row + v * VECTOR_LEN));
                    }
                    let mut right = [s.zero(); V];
                    for (v, right) in right.iter_mut().enumerate() {
                        *right = load(s, b.add(v * VECTOR_LEN), lanes);
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
                    let sum = if self.add { s.add(load(s, c, lanes), sum) } else { sum };
                    store(s, sum, c, lanes);
                }
            }
        }
    }
}

/// # Safety
/// `lanes` elements from `x` on must be readable.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, x: *const f32, lanes: usize) -> S::V {
    // SAFETY: passed on from the caller.
    unsafe {
        if lanes == VECTOR_LEN {
            s.load(&*x.cast::<[f32; VECTOR_LEN]>())
        } else {
            s.load_partial(std::slice::from_raw_parts(x, lanes))
        }
    }
}

/// # Safety
/// `lanes` elements from `x` on must be writable.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, v: S::V, x: *mut f32, lanes: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        if lanes == VECTOR_LEN {
            s.store(v, &mut *x.cast::<[f32; VECTOR_LEN]>());
        } else {
            s.store_partial(v, std::slice::from_raw_parts_mut(x, lanes));
        }
    }
}

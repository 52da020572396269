//! Emulation of the matrix units on vector units, for CPUs without AMX.
//!
//! Fused multiply-adds of sixteen columns at a time do the operations of the matrix units, except
//! for subnormal results, which the matrix units flush to zero. None can occur where the smallest
//! factors of two tiles are large enough: a product of two bf16 is a multiple of the product of
//! their last places, so is every sum of such products, rounded or not; if that unit is a normal
//! number, no nonzero result is subnormal. Other tiles, which are rare, are computed element by
//! element.

use super::{STEP_LEN, TILE, TILE_LEN, VECTOR_LEN, scalar};
use crate::simd::{Isa, Kernel, Simd, flush, widen_bf16};

/// A product of two panels whose buffers were checked.
pub(super) struct Multiply {
    num_tiles: usize,
    num_steps: usize,
    left: *const f32,
    right: *const f32,
    c: *mut f32,
    c_row: usize,
    add: bool,
}

impl Multiply {
    /// # Safety
    /// Until it has run, the panels must be readable for all steps, the sixteen rows a tile of `c`
    /// readable and writable for 32 elements each, and no other thread may touch the latter.
    pub(super) unsafe fn new(
        (num_tiles, num_steps): (usize, usize),
        left: *const f32,
        right: *const f32,
        c: *mut f32,
        c_row: usize,
        add: bool,
    ) -> Self {
        Self { num_tiles, num_steps, left, right, c, c_row, add }
    }
}

impl Kernel for Multiply {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            if row >= self.num_tiles {
                break;
            }
            // SAFETY: the caller of `new` guaranteed the rows, exclusively.
            let mut rows: [&mut [f32; VECTOR_LEN]; TILE] = std::array::from_fn(|r| unsafe {
                let start = (row * TILE + r) * self.c_row + column * TILE;
                &mut *self.c.add(start).cast()
            });
            if !self.add {
                for row in &mut rows {
                    **row = [0.0; VECTOR_LEN];
                }
            }
            for step in 0..self.num_steps {
                // SAFETY: as above, for the panels.
                let [left, right] = unsafe {
                    [(self.left, row), (self.right, column)].map(|(panel, tile)| {
                        &*panel.add(step * STEP_LEN + tile * TILE_LEN).cast::<Tile>()
                    })
                };
                one_step(s, left, right, &mut rows);
            }
        }
    }
}

/// Sixteen rows of sixteen pairs of bf16.
type Tile = [[f32; VECTOR_LEN]; TILE];

/// A tile of a left operand widened: for each row its even numbers, then its odd ones.
type Wide = [[[f32; VECTOR_LEN]; 2]; TILE];

/// One step of one tile of the target.
#[inline(always)]
fn one_step<S: Simd>(s: S, left: &Tile, right: &Tile, target: &mut [&mut [f32; VECTOR_LEN]; TILE]) {
    let mut wide: Wide = [[[0.0; VECTOR_LEN]; 2]; TILE];
    for (wide, row) in wide.iter_mut().zip(left) {
        let numbers = widen_bf16(s, s.bits(s.load(row)));
        for (wide, numbers) in wide.iter_mut().zip(numbers) {
            s.store(numbers, wide);
        }
    }
    // For two factors with eight significant bits, the last place of the product is 2^-14 of its
    // power of two.
    if smallest_exponent(s, left) + smallest_exponent(s, right) - 14 < f32::MIN_EXP - 1 {
        return element_by_element(left, right, target);
    }
    match S::ISA {
        Isa::Avx512 => chains::<S, 8>(s, &wide, right, target),
        Isa::Avx2 | Isa::Portable => chains::<S, 2>(s, &wide, right, target),
    }
}

/// Exponent of the smallest nonzero number of a tile; large if all are zero.
#[inline(always)]
fn smallest_exponent<S: Simd>(s: S, tile: &Tile) -> i32 {
    let none = s.splat(f32::INFINITY);
    let mut smallest = none;
    for row in tile {
        for numbers in widen_bf16(s, s.bits(s.load(row))) {
            let size = s.abs(numbers);
            let size = s.select_lt(size, s.splat(f32::MIN_POSITIVE), none, size);
            smallest = s.min(size, smallest);
        }
    }
    let smallest = s.to_array(smallest).into_iter().fold(f32::INFINITY, f32::min);
    (smallest.to_bits() >> 23).cast_signed() - 127
}

/// R rows at a time, all sixteen columns each.
#[inline(always)]
fn chains<S: Simd, const R: usize>(
    s: S,
    left: &Wide,
    right: &Tile,
    target: &mut [&mut [f32; VECTOR_LEN]; TILE],
) {
    for (left, target) in left.chunks_exact(R).zip(target.chunks_exact_mut(R)) {
        let mut sums = [[s.zero(); 2]; R];
        for (p, pairs) in right.iter().enumerate() {
            let right = widen_bf16(s, s.bits(s.load(pairs)));
            for (sums, left) in sums.iter_mut().zip(left) {
                for (parity, sum) in sums.iter_mut().enumerate() {
                    *sum = s.fma(s.splat(left[parity][p]), right[parity], *sum);
                }
            }
        }
        for ([even, odd], target) in sums.into_iter().zip(target) {
            let sum = s.add(flush(s, s.load(target)), s.add(even, odd));
            s.store(flush(s, sum), target);
        }
    }
}

/// As [`chains`], with subnormal results flushed to zero.
#[inline(never)]
fn element_by_element(left: &Tile, right: &Tile, target: &mut [&mut [f32; VECTOR_LEN]; TILE]) {
    let half = |pair: f32, k: usize| match k % 2 {
        0 => f32::from_bits(pair.to_bits() << 16),
        _ => f32::from_bits(pair.to_bits() & 0xFFFF_0000),
    };
    for (row, target) in left.iter().zip(target) {
        for (column, target) in target.iter_mut().enumerate() {
            let (a, b) = (|k: usize| half(row[k / 2], k), |k: usize| half(right[k / 2][column], k));
            *target = scalar::step(*target, a, b);
        }
    }
}

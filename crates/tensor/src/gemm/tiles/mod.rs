//! bf16 products in tiles of sixteen rows, sixteen columns and 32 products.
//!
//! # Order of additions
//! The arithmetic is that of AMX's `tdpbf16ps` on every CPU. One step takes 32 products, `k`
//! ascending from the start of the whole product: those with even k are one chain of fused
//! multiply-adds from zero, those with odd k another; the two sums are added, and their sum is
//! added to the target. Every operation rounds to nearest even, flushes subnormal operands and
//! results to zero (one that is subnormal *after* rounding as if the exponent had no bounds). A
//! chain that is shorter than its tile is padded with zeros.
//!
//! The target is a chain of such steps, so a product may be split between any two of them: the bits
//! depend on neither blocks nor threads. Unlike in an `f32` product, the value in the target
//! *starts* the chain: a product that is added is not rounded to one number first.
//!
//! # Panels
//! A panel holds two tiles side by side for each step: rows of pairs for the left operand, pairs of
//! rows for the right one. An element of a panel is two bf16, the lower half first; it is stored as
//! an `f32` so that all scratch memory has one type, and never used in arithmetic.

pub(crate) mod emulation;
pub(crate) mod pack;
pub(crate) mod scalar;

use crate::amx::Tiles;
use crate::simd::{Simd, VECTOR_LEN};

/// Rows, and columns, of one tile.
pub(crate) const TILE: usize = VECTOR_LEN;
/// Products of one step.
pub(crate) const STEP: usize = 2 * VECTOR_LEN;
/// Elements of one tile.
pub(crate) const TILE_LEN: usize = TILE * VECTOR_LEN;
/// Rows, or columns, of a panel.
pub(crate) const LINES: usize = 2 * TILE;
/// Elements of one step of a panel.
pub(crate) const STEP_LEN: usize = 2 * TILE_LEN;

/// Elements of a panel over `k` products.
pub(crate) const fn panel_len(k: usize) -> usize {
    k.div_ceil(STEP) * STEP_LEN
}

/// Multiplies the tiles of one task, on matrix units or by emulation.
pub(crate) struct Engine<S> {
    s: S,
    /// Only with matrix units.
    tiles: Option<Tiles>,
}

impl<S: Simd> Engine<S> {
    /// Prepares the calling thread for products; a thread has one engine at a time.
    #[inline(always)]
    pub(crate) fn new(s: S) -> Self {
        // SAFETY: `S::AMX` proves that there are matrix units and the permission to use them, and
        // a task, which runs on one thread from start to end, makes one engine.
        let tiles = S::AMX.then(|| unsafe { Tiles::new() });
        Self { s, tiles }
    }

    /// `c (= or +=) left right`, where `left` has 32 rows, of which only the first sixteen are used
    /// without `both`, and `right` has 32 columns.
    ///
    /// # Safety
    /// The rows of `c`, 32 or 16 of 32 elements each and `c_row` apart, must be readable and
    /// writable, and no other thread may touch them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn multiply_into(
        &self,
        both: bool,
        left: &[f32],
        right: &[f32],
        c: *mut f32,
        c_row: usize,
        add: bool,
    ) {
        let num_steps = left.len() / STEP_LEN;
        assert!(num_steps > 0 && left.len() == right.len(), "panels over the same products");
        let (left, right) = (left.as_ptr(), right.as_ptr());
        // SAFETY: both panels hold the steps, and the caller guarantees the target.
        unsafe {
            if let Some(tiles) = &self.tiles {
                tiles.multiply(both, num_steps, left, right, c, c_row, add);
            } else {
                let num_tiles = if both { 2 } else { 1 };
                let steps = (num_tiles, num_steps);
                self.s.call(emulation::Multiply::new(steps, left, right, c, c_row, add));
            }
        }
    }

    /// As [`Self::multiply_into`], into a slice.
    #[inline(always)]
    pub(crate) fn multiply(
        &self,
        both: bool,
        left: &[f32],
        right: &[f32],
        c: &mut [f32],
        c_row: usize,
        add: bool,
    ) {
        let num_rows = if both { LINES } else { TILE };
        assert!((num_rows - 1) * c_row + LINES <= c.len(), "c is too short");
        // SAFETY: the assertion is the requirement of the function, and `c` is borrowed
        // exclusively.
        unsafe { self.multiply_into(both, left, right, c.as_mut_ptr(), c_row, add) };
    }

    /// Runs four products of tiles `num_rounds` times without touching memory; returns the
    /// operations done.
    #[inline(always)]
    pub(crate) fn burst(&self, num_rounds: usize) -> u64 {
        const NUM_TILES: usize = 4;
        let Some(tiles) = &self.tiles else { return 0 };
        tiles.burst(num_rounds);
        (2 * num_rounds * NUM_TILES * TILE * TILE * STEP) as u64
    }
}

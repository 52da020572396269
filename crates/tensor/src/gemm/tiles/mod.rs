//! Products of bf16 in tiles of sixteen rows, sixteen columns and 32 products.
//!
//! # Order of additions
//! The arithmetic is that of one instruction of the CPU's matrix units, wherever it is computed.
//! One step takes 32 products, `k` ascending from the start of the whole product: those with even
//! k are one chain of fused multiply-adds from zero, those with odd k another; the two sums are
//! added, and their sum is added to the target. Every operation rounds to nearest even, takes a
//! subnormal operand for zero, and gives zero instead of a subnormal result (one that is subnormal
//! *after* rounding as if the exponent had no bounds). A chain that is shorter than its tile goes
//! on with zeros.
//!
//! The target is a plain chain of such steps, so a product may be cut between any two of them: the
//! bits depend on neither blocks nor threads. Unlike in an `f32` product, whatever was in the
//! target *starts* the chain: a product that is added is not one number before it is.
//!
//! # Panels
//! A panel holds two tiles side by side for each step: rows of pairs for the left operand, pairs
//! of rows for the right one. A word of a panel is two bf16, the lower half first; it is kept as an
//! `f32` so that all scratch is of one type, and never computed with as such.

pub(crate) mod emulated;
pub(crate) mod exact;
pub(crate) mod pack;

use crate::amx::Tiles;
use crate::simd::{VECTOR_LEN, Simd};

/// Rows, and columns, of one tile.
pub(crate) const TILE: usize = VECTOR_LEN;
/// Products of one step.
pub(crate) const STEP: usize = 2 * VECTOR_LEN;
/// Words of one tile.
pub(crate) const TILE_WORDS: usize = TILE * VECTOR_LEN;
/// Rows, or columns, of a panel.
pub(crate) const LINES: usize = 2 * TILE;
/// Words of one step of a panel.
pub(crate) const STEP_WORDS: usize = 2 * TILE_WORDS;

/// Words of a panel over `k` products.
pub(crate) const fn panel_words(k: usize) -> usize {
    k.div_ceil(STEP) * STEP_WORDS
}

/// Who multiplies the tiles of one task.
pub(crate) struct Engine<S> {
    s: S,
    /// Only with matrix units.
    tiles: Option<Tiles>,
}

impl<S: Simd> Engine<S> {
    /// Makes the calling thread ready for products; a thread has one engine at a time.
    #[inline(always)]
    pub(crate) fn new(s: S) -> Self {
        // SAFETY: `S::AMX` proves that there are matrix units and the permission to use them, and
        // a task, which runs on one thread from start to end, makes one engine.
        let tiles = S::AMX.then(|| unsafe { Tiles::new() });
        Self { s, tiles }
    }

    /// `c (= or +=) left right`, where `left` has 32 rows, of which only the first sixteen count
    /// without `both`, and `right` 32 columns.
    ///
    /// # Safety
    /// The rows of `c`, 32 or 16 of 32 words each and `c_row` apart, must be readable and writable,
    /// and nobody else may touch them meanwhile.
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
        let num_steps = left.len() / STEP_WORDS;
        assert!(num_steps > 0 && left.len() == right.len(), "panels over the same products");
        let (left, right) = (left.as_ptr(), right.as_ptr());
        // SAFETY: both panels hold the steps, and the caller promises the target.
        unsafe {
            if let Some(tiles) = &self.tiles {
                tiles.multiply(both, num_steps, left, right, c, c_row, add);
            } else {
                let num_tiles = if both { 2 } else { 1 };
                let steps = (num_tiles, num_steps);
                self.s.call(emulated::Multiply::new(steps, left, right, c, c_row, add));
            }
        }
    }

    /// The same into a slice.
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
        // SAFETY: the assertion is what the function asks for, and `c` is ours alone.
        unsafe { self.multiply_into(both, left, right, c.as_mut_ptr(), c_row, add) };
    }

    /// `num_rounds` times four products of tiles that touch no memory; the operations done.
    #[inline(always)]
    pub(crate) fn burst(&self, num_rounds: usize) -> u64 {
        const NUM_TILES: usize = 4;
        let Some(tiles) = &self.tiles else { return 0 };
        tiles.burst(num_rounds);
        (2 * num_rounds * NUM_TILES * TILE * TILE * STEP) as u64
    }
}

#[cfg(test)]
pub(crate) mod tests;

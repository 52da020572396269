//! Block sizes of the `f32` product.

use crate::simd::VECTOR_LEN;

/// Products in one chain of additions.
pub const K_BLOCK: usize = 512;
/// Rows of the tallest tile; packed panels have this many rows.
pub(super) const TILE_ROWS: usize = 12;
/// Columns of the widest tile; packed panels have this many columns.
pub(super) const TILE_COLS: usize = 32;
/// Distance between the rows of a packed left panel: a block of k plus one cache line, so that
/// the rows do not fall into the same sets of the first-level cache.
pub(super) const PANEL_STRIDE: usize = K_BLOCK + VECTOR_LEN;

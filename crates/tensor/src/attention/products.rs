//! Interface of the tile products of attention, in `f32` on the vector units or in bf16 on the
//! matrix units.
//!
//! Keys, values, queries and gradients are operands of many products each, so an implementation
//! packs them once per tile.

use super::Rows;
use super::tile::Tile;
use crate::gemm::Write;
use crate::simd::Simd;

/// The products of one tile of keys and one of queries. An operand has
/// [`operand_len`](super::dispatch::operand_len) elements.
pub(super) trait Products<S: Simd> {
    /// Packs up to 64 rows as the keys of [`Self::dot`].
    fn pack_keys(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]);

    /// Packs rows as the queries of [`Self::dot`]: columns of the tile.
    fn pack_queries(&mut self, s: S, head_dim: usize, rows: Rows<'_>, tile: &Tile, out: &mut [f32]);

    /// Packs up to 64 rows as the addends of sums.
    fn pack_addends(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]);

    /// `out[key][query] = keys[key] . queries[query]` wherever a query sees a key.
    fn dot(
        &mut self,
        s: S,
        tile: &Tile,
        head_dim: usize,
        keys: &[f32],
        queries: &[f32],
        out: &mut [f32],
    );

    /// `out[query] (= or +=) sum over its keys of factors[key][query] * addends[key]`; `out` begins
    /// with the first query of the tile.
    fn sum_over_keys(
        &mut self,
        s: S,
        tile: &Tile,
        head_dim: usize,
        factors: &[f32],
        addends: &[f32],
        out: &mut [f32],
        write: Write,
    );

    /// `out[key] (= or +=) sum over its queries of factors[key][query] * addends[query]`; the
    /// queries of the tile start at column zero.
    fn sum_over_queries(
        &mut self,
        s: S,
        tile: &Tile,
        head_dim: usize,
        factors: &[f32],
        addends: &[f32],
        out: &mut [f32],
        write: Write,
    );
}

/// A task that is generic over its products.
pub(super) trait Work {
    fn run<S: Simd>(self, s: S, products: &mut impl Products<S>);
}

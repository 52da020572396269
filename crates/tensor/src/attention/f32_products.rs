//! Tile products of attention in `f32`, by the register tiles of [`tile::multiply`].
//!
//! Operands are copied to contiguous memory, so that no two rows share a set of the cache; queries
//! become columns. On the diagonal, masked elements are skipped in steps of sixteen.

use super::products::Products;
use super::tile::{Tile, pack, transpose};
use super::{Rows, TILE, VECTOR_LEN, packed_stride};
use crate::gemm::{Write, tile};
use crate::simd::Simd;
use std::ops::Range;

/// Products in `f32`.
pub(super) struct F32Products;

/// Rows and columns by which products skip masked elements.
#[inline(always)]
fn step(tile: &Tile) -> usize {
    if tile.diagonal { VECTOR_LEN } else { TILE }
}

impl<S: Simd> Products<S> for F32Products {
    #[inline(always)]
    fn pack_keys(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]) {
        pack(s, head_dim, rows, num, out, packed_stride(head_dim));
    }

    #[inline(always)]
    fn pack_queries(
        &mut self,
        s: S,
        head_dim: usize,
        rows: Rows<'_>,
        tile: &Tile,
        out: &mut [f32],
    ) {
        transpose(s, head_dim, rows, &tile.queries, out);
    }

    #[inline(always)]
    fn pack_addends(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]) {
        pack(s, head_dim, rows, num, out, packed_stride(head_dim));
    }

    #[inline(always)]
    fn dot(
        &mut self,
        s: S,
        tile: &Tile,
        head_dim: usize,
        keys: &[f32],
        queries: &[f32],
        out: &mut [f32],
    ) {
        let (stride, step) = (packed_stride(head_dim), step(tile));
        let end = tile.queries.end.next_multiple_of(VECTOR_LEN);
        for key in (0..tile.num_keys).step_by(step) {
            let start = key.max(tile.queries.start / VECTOR_LEN * VECTOR_LEN);
            if start < end {
                let dims = (step.min(tile.num_keys - key), end - start, head_dim);
                let (keys, queries) = (&keys[key * stride..], &queries[start..]);
                let out = &mut out[key * TILE + start..];
                tile::multiply(s, dims, keys, (stride, 1), queries, TILE, out, TILE, Write::Set);
            }
        }
    }

    #[inline(always)]
    fn sum_over_keys(
        &mut self,
        s: S,
        tile: &Tile,
        head_dim: usize,
        factors: &[f32],
        addends: &[f32],
        out: &mut [f32],
        write: Write,
    ) {
        let (stride, step) = (packed_stride(head_dim), step(tile));
        let Range { start, end } = tile.queries;
        for block in (0..end).step_by(step) {
            let (first, last) = (block.max(start), (block + step).min(end));
            if first < last {
                let dims = (last - first, head_dim, tile.num_keys.min(block + step));
                let (factors, strides) = (&factors[first..], (1, TILE));
                let out = &mut out[(first - start) * head_dim..];
                tile::multiply(s, dims, factors, strides, addends, stride, out, head_dim, write);
            }
        }
    }

    #[inline(always)]
    fn sum_over_queries(
        &mut self,
        s: S,
        tile: &Tile,
        head_dim: usize,
        factors: &[f32],
        addends: &[f32],
        out: &mut [f32],
        write: Write,
    ) {
        debug_assert_eq!(tile.queries.start, 0);
        let (stride, step) = (packed_stride(head_dim), step(tile));
        for key in (0..tile.num_keys).step_by(step) {
            let dims = (step.min(tile.num_keys - key), head_dim, tile.queries.end - key);
            let (factors, strides) = (&factors[key * TILE + key..], (TILE, 1));
            let (addends, out) = (&addends[key * stride..], &mut out[key * head_dim..]);
            tile::multiply(s, dims, factors, strides, addends, stride, out, head_dim, write);
        }
    }
}

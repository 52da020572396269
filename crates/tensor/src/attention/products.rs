//! Who multiplies the tiles of attention: the vector units in `f32`, or the matrix units in bf16.
//!
//! Keys, values, queries and gradients take part in many products each, so whoever multiplies says
//! in which form it wants them, and they are brought into it once a tile.

use super::plain::InF32;
use super::rounded::{self, InBf16};
use super::tile::Tile;
use super::{Rows, Shape, TILE, packed_stride};
use crate::Cpu;
use crate::gemm::{Precision, Write};
use crate::simd::{Kernel, Simd};

/// The products of one tile of keys and one of queries. An operand is [`operand_len`] words.
pub(super) trait Products<S: Simd> {
    /// Up to 64 rows, as the keys of [`Self::dot`].
    fn pack_keys(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]);

    /// Rows as the queries of [`Self::dot`]: columns of the tile.
    fn pack_queries(&mut self, s: S, head_dim: usize, rows: Rows<'_>, tile: &Tile, out: &mut [f32]);

    /// Up to 64 rows that sums are made of.
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

/// Words of one operand in whichever form.
pub(super) fn operand_len(precision: Precision, shape: Shape) -> usize {
    match precision {
        Precision::Bf16 => rounded::operand_len(shape.head_dim),
        Precision::F32 | Precision::F16 => TILE * packed_stride(shape.head_dim),
    }
}

/// Scratch of one task besides what the task itself needs, at the start of its region.
pub(super) fn room_len(precision: Precision) -> usize {
    match precision {
        Precision::Bf16 => rounded::ROOM_LEN,
        Precision::F32 | Precision::F16 => 0,
    }
}

/// A task, whoever multiplies.
pub(super) trait Work {
    fn run<S: Simd>(self, s: S, by: &mut impl Products<S>);
}

/// Runs a task with products in `precision`; `room` has [`room_len`] words.
pub(super) fn run(cpu: &Cpu, precision: Precision, work: impl Work, room: &mut [f32]) {
    match precision {
        Precision::Bf16 => cpu.run_tiles(Rounded { work, room }),
        Precision::F32 | Precision::F16 => cpu.run(Plain(work)),
    }
}

/// A task with products in `f32`.
struct Plain<W>(W);

impl<W: Work> Kernel for Plain<W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.run(s, &mut InF32);
    }
}

/// A task with operands of products rounded to bf16.
struct Rounded<'a, W> {
    work: W,
    room: &'a mut [f32],
}

impl<W: Work> Kernel for Rounded<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.work.run(s, &mut InBf16::new(s, self.room));
    }
}

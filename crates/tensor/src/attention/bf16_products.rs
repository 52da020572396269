//! Tile products of attention in bf16, by tiles of the matrix units.
//!
//! Operands are rounded into panels once per tile of keys or queries; only probabilities and score
//! gradients, which are new for every pair of tiles, are packed for each product. Chains of
//! additions run in steps of 32 from the tile's first key or query; on the diagonal, steps that are
//! masked for all of 32 rows are skipped, and other masked elements are zero.

use super::products::Products;
use super::tile::{Tile, prefetch};
use super::{Rows, TILE};
use crate::gemm::tiles::pack::{self, Side};
use crate::gemm::tiles::{self, Engine, LINES, STEP, STEP_LEN, TILE_LEN, panel_len};
use crate::gemm::{Mat, Write};
use crate::simd::{Kernel, Simd, VECTOR_LEN};
use std::ops::Range;

/// Elements of a panel over the keys or queries of a tile.
const TILE_PANEL: usize = panel_len(TILE);
/// Panels of 32 keys, or queries, of a tile.
const PANELS: usize = TILE / LINES;
/// Elements of a task's workspace: the packed tile.
pub(super) const WORKSPACE_LEN: usize = PANELS * TILE_PANEL;

/// Elements of an operand: 64 lines of `head_dim` products, or that many lines of 64 products.
pub(super) const fn operand_len(head_dim: usize) -> usize {
    PANELS * panel_len(head_dim)
}

/// Products in bf16.
pub(super) struct Bf16Products<'a, S> {
    engine: Engine<S>,
    workspace: &'a mut [f32],
}

impl<'a, S: Simd> Bf16Products<'a, S> {
    /// Prepares the calling thread; `workspace` has [`WORKSPACE_LEN`] elements.
    #[inline(always)]
    pub(super) fn new(s: S, workspace: &'a mut [f32]) -> Self {
        Self { engine: Engine::new(s), workspace: &mut workspace[..WORKSPACE_LEN] }
    }
}

impl<S: Simd> Products<S> for Bf16Products<'_, S> {
    #[inline(always)]
    fn pack_keys(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]) {
        prefetch(s, head_dim, rows, num);
        let rows = Mat::strided(rows.data, num, head_dim, rows.stride);
        let out = &mut out[..operand_len(head_dim)];
        pack::lines(s, rows, (0, num), (0, head_dim), Side::Left, out);
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
        let Range { start, end } = tile.queries;
        prefetch(s, head_dim, rows, end - start);
        let rows = Mat::strided(rows.data, end - start, head_dim, rows.stride);
        let out = &mut out[..operand_len(head_dim)];
        if start == 0 {
            pack::lines(s, rows, (0, end), (0, head_dim), Side::Right, out);
        } else {
            // Decoding: the queries are some columns in the middle of the tile.
            let mut columns = Columns([[0.0; TILE]; STEP]);
            for (step, panel_step) in (0..head_dim).step_by(STEP).enumerate() {
                let len = STEP.min(head_dim - panel_step);
                for (p, column) in columns.0[..len].iter_mut().enumerate() {
                    for (i, x) in column[start..end].iter_mut().enumerate() {
                        *x = rows.data.get(i * rows.row_stride + panel_step + p);
                    }
                }
                let part = Mat::strided(columns.0.as_flattened(), len, TILE, TILE).t();
                let per_panel = panel_len(head_dim);
                for (i, panel) in out.chunks_exact_mut(per_panel).enumerate() {
                    let at = (i * LINES, LINES);
                    let panel = &mut panel[step * STEP_LEN..][..STEP_LEN];
                    pack::lines(s, part, at, (0, len), Side::Right, panel);
                }
            }
        }
    }

    #[inline(always)]
    fn pack_addends(&mut self, s: S, head_dim: usize, rows: Rows<'_>, num: usize, out: &mut [f32]) {
        prefetch(s, head_dim, rows, num);
        let lines = Mat::strided(rows.data, num, head_dim, rows.stride).t();
        let (panels, _) = out.as_chunks_mut::<TILE_PANEL>();
        for (i, panel) in panels[..head_dim.div_ceil(LINES)].iter_mut().enumerate() {
            let at = (i * LINES, LINES.min(head_dim - i * LINES));
            // Zeros up to the last step.
            pack::lines(s, lines, at, (0, num), Side::Right, &mut panel[..panel_len(num)]);
        }
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
        let engine = &self.engine;
        s.call(Dot { engine, tile, per_panel: panel_len(head_dim), keys, queries, out });
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
        let (engine, over, workspace) = (&self.engine, Over::Keys, &mut *self.workspace);
        let add = write == Write::Add;
        s.call(Sum { engine, tile, over, head_dim, factors, addends, out, add, workspace });
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
        let (engine, over, workspace) = (&self.engine, Over::Queries, &mut *self.workspace);
        let add = write == Write::Add;
        s.call(Sum { engine, tile, over, head_dim, factors, addends, out, add, workspace });
    }
}

/// Some columns of a tile.
#[repr(align(64))]
struct Columns([[f32; TILE]; STEP]);

/// Kernel of [`Products::dot`]. Writes whole blocks of 32 by 32.
struct Dot<'a, S> {
    engine: &'a Engine<S>,
    tile: &'a Tile,
    /// Elements of a panel.
    per_panel: usize,
    keys: &'a [f32],
    queries: &'a [f32],
    out: &'a mut [f32],
}

impl<S: Simd> Kernel for Dot<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<T: Simd>(self, _: T) {
        let Self { engine, tile, per_panel, keys, queries, out } = self;
        for i in 0..tile.num_keys.div_ceil(LINES) {
            let first = if tile.diagonal { i } else { 0 };
            for j in first.max(tile.queries.start / LINES)..tile.queries.end.div_ceil(LINES) {
                let (keys, queries) =
                    (&keys[i * per_panel..][..per_panel], &queries[j * per_panel..][..per_panel]);
                let both = tile.num_keys - i * LINES > tiles::TILE;
                let out = &mut out[i * LINES * TILE + j * LINES..];
                engine.multiply(both, keys, queries, out, TILE, false);
            }
        }
    }
}

/// Dimension of a sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Keys,
    Queries,
}

/// A sum over the keys, or the queries, of a tile.
struct Sum<'a, S> {
    engine: &'a Engine<S>,
    tile: &'a Tile,
    over: Over,
    head_dim: usize,
    factors: &'a [f32],
    addends: &'a [f32],
    out: &'a mut [f32],
    add: bool,
    workspace: &'a mut [f32],
}

/// A block of the target that does not cover whole tiles.
#[repr(align(64))]
struct Corner([f32; LINES * LINES]);

impl<S: Simd> Kernel for Sum<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<T: Simd>(mut self, s: T) {
        let (lines, num_products) = match self.over {
            Over::Keys => (self.tile.queries.clone(), self.tile.num_keys),
            Over::Queries => (0..self.tile.num_keys, self.tile.queries.end),
        };
        for i in lines.start / LINES..lines.end.div_ceil(LINES) {
            let steps = match self.over {
                _ if !self.tile.diagonal => 0..num_products.div_ceil(STEP),
                Over::Keys => 0..num_products.div_ceil(STEP).min(i + 1),
                Over::Queries => i..num_products.div_ceil(STEP),
            };
            for step in steps.clone() {
                let at = i * TILE_PANEL + step * STEP_LEN;
                let (out, _) = self.workspace[at..].as_chunks_mut::<TILE_LEN>();
                for (half, out) in out[..2].iter_mut().enumerate() {
                    let line = i * LINES + half * tiles::TILE;
                    match self.over {
                        Over::Keys => by_query(s, self.tile, self.factors, line, step, out),
                        Over::Queries => by_key(s, self.tile, self.factors, line, step, out),
                    }
                }
            }
            let rows = lines.start.max(i * LINES)..lines.end.min((i + 1) * LINES);
            self.multiply(i, steps, rows, lines.start);
        }
    }
}

impl<S: Simd> Sum<'_, S> {
    /// Multiplies panel i of the tile by all panels of addends; uses `rows` of it, and the target
    /// begins with row `first`.
    #[inline(always)]
    fn multiply(&mut self, i: usize, steps: Range<usize>, rows: Range<usize>, first: usize) {
        let at = steps.start * STEP_LEN..steps.end * STEP_LEN;
        let left = &self.workspace[i * TILE_PANEL..][at.clone()];
        let (num, stride) = (rows.len(), self.head_dim);
        for j in (0..stride).step_by(LINES) {
            let right = &self.addends[j / LINES * TILE_PANEL..][at.clone()];
            let n = LINES.min(stride - j);
            let out = &mut self.out[(rows.start - first) * stride + j..];
            if n == LINES && num.is_multiple_of(tiles::TILE) && rows.start == i * LINES {
                self.engine.multiply(num > tiles::TILE, left, right, out, stride, self.add);
                continue;
            }
            let mut corner = Corner([0.0; LINES * LINES]);
            let skipped = (rows.start - i * LINES) * LINES;
            if self.add {
                let corner = corner.0[skipped..].chunks_exact_mut(LINES);
                for (corner, out) in corner.zip(out.chunks(stride)).take(num) {
                    corner[..n].copy_from_slice(&out[..n]);
                }
            }
            self.engine.multiply(true, left, right, &mut corner.0, LINES, self.add);
            let corner = corner.0[skipped..].chunks_exact(LINES);
            for (corner, out) in corner.zip(out.chunks_mut(stride)).take(num) {
                out[..n].copy_from_slice(&corner[..n]);
            }
        }
    }
}

/// Sixteen queries from `line` on as rows, 32 keys of one step as products; masked keys are zero.
#[inline(always)]
fn by_query<S: Simd>(
    s: S,
    tile: &Tile,
    factors: &[f32],
    line: usize,
    step: usize,
    out: &mut [f32; TILE_LEN],
) {
    let [_, visible] = tile.rows(line);
    let mut square = [s.zero(); VECTOR_LEN];
    for (pair, row) in square.iter_mut().enumerate() {
        let key = step * STEP + 2 * pair;
        let even = load_if(s, key < visible, factors, key * TILE + line);
        let odd = load_if(s, key + 1 < visible, factors, (key + 1) * TILE + line);
        *row = s.from_bits(s.pair_elements(even, odd));
    }
    let (out, _) = out.as_chunks_mut::<VECTOR_LEN>();
    for (row, out) in s.transpose(square).into_iter().zip(out) {
        s.store(row, out);
    }
}

/// Sixteen keys from `line` on as rows, 32 queries of one step as products; masked and missing
/// queries are zero.
#[inline(always)]
fn by_key<S: Simd>(
    s: S,
    tile: &Tile,
    factors: &[f32],
    line: usize,
    step: usize,
    out: &mut [f32; TILE_LEN],
) {
    let first = if tile.diagonal { line } else { 0 };
    let (out, _) = out.as_chunks_mut::<VECTOR_LEN>();
    for (row, out) in out.iter_mut().enumerate() {
        let factors = &factors[(line + row) * TILE..][..tile.queries.end];
        let query = step * STEP;
        let a = load_partial_if(s, first <= query, factors, query);
        let b = load_partial_if(s, first <= query + VECTOR_LEN, factors, query + VECTOR_LEN);
        s.store(s.from_bits(s.pair_neighbours(a, b)), out);
    }
}

/// Loads sixteen elements, or zeros.
#[inline(always)]
fn load_if<S: Simd>(s: S, is_valid: bool, x: &[f32], at: usize) -> S::V {
    if is_valid { s.load(x[at..].first_chunk().expect("sixteen columns")) } else { s.zero() }
}

/// Loads up to sixteen elements, or zeros.
#[inline(always)]
fn load_partial_if<S: Simd>(s: S, is_valid: bool, x: &[f32], at: usize) -> S::V {
    match x.get(at..) {
        Some(x) if is_valid => match x.first_chunk() {
            Some(x) => s.load(x),
            None => s.load_partial(x),
        },
        _ => s.zero(),
    }
}

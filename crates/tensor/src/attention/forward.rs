//! Forward pass: online softmax over key tiles.

use super::dispatch::{self, operand_len, workspace_len};
use super::dropout::HeadMask;
use super::options::{HeadOptions, Options};
use super::products::{Products, Work};
use super::tile::{Tile, element_indices};
use super::{PER_ROW, ROWS_AHEAD, Rows, Shape, TILE, check_scratch, split_aligned};
use crate::Cpu;
use crate::cpu::{Block, Blocks};
use crate::gemm::{Precision, Write};
use crate::math;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Simd, VECTOR_LEN};

/// Attends from `tokens` queries of each sequence to the keys at or before their positions.
///
/// Queries are the positions from `first_query` on: zero in training, the length of the cache when
/// decoding. Keys and values have `first_query + tokens` rows per sequence. Writes the output (rows
/// of all heads) and, by (sequence, head, query), the log-sum-exp for [`super::backward`].
pub fn forward(
    cpu: &Cpu,
    shape: Shape,
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    first_query: usize,
    options: &Options<'_>,
    out_thd: &mut [f32],
    lse_bht: &mut [f32],
    scratch: &mut [f32],
) {
    let precision = Precision::F32;
    forward_in(cpu, precision, shape, q, k, v, first_query, options, out_thd, lse_bht, scratch);
}

/// [`forward`] with products in `precision`, which also determines the size of the scratch memory.
pub fn forward_in(
    cpu: &Cpu,
    precision: Precision,
    shape: Shape,
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    first_query: usize,
    options: &Options<'_>,
    out_thd: &mut [f32],
    lse_bht: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check();
    let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
    let (num_keys, width) = (first_query + tokens, heads * head_dim);
    q.check(sequences * tokens, width, "q");
    k.check(sequences * num_keys, kv_heads * head_dim, "k");
    v.check(sequences * num_keys, kv_heads * head_dim, "v");
    assert_eq!(out_thd.len(), sequences * tokens * width, "out for {shape:?}");
    assert_eq!(lse_bht.len(), sequences * heads * tokens, "lse for {shape:?}");
    assert!(first_query == 0 || options.dropout.is_none(), "no dropout while decoding");
    options.check(&shape, first_query);

    let (workspace_len, region_len) = (workspace_len(precision), region_len(precision, shape));
    check_scratch(precision, shape, scratch);
    let outs = Blocks::new(out_thd, width, (tokens, head_dim));
    let lses = Blocks::new(lse_bht, tokens, (1, tokens));
    cpu.for_each_with_workspace(sequences * heads, scratch, region_len, |task, region| {
        let (sequence, head) = (task / heads, task % heads);
        let kv_col = shape.kv_head(head) * head_dim;
        // SAFETY: every task runs once, and its index is that of its blocks.
        let (out, mut lse) = unsafe { (outs.block(task), lses.block(task)) };
        let (workspace, region) = split_aligned(region, workspace_len);
        let head = HeadForward {
            shape,
            q: q.from(sequence * tokens, head * head_dim),
            k: k.from(sequence * num_keys, kv_col),
            v: v.from(sequence * num_keys, kv_col),
            first_query,
            options: options.of_head(&shape, first_query, sequence, head),
            mask: options.dropout.map(|dropout| dropout.of_head(&shape, sequence, head)),
            out,
            lse: lse.row(0),
            operand_len: operand_len(precision, shape),
            region,
        };
        dispatch::run(cpu, precision, head, workspace);
    });
}

/// Scratch of one task: a tile of keys, values, scores and factors of dropout each; for each tile
/// of queries these and the softmax so far; output of its head so far.
pub(super) fn region_len(precision: Precision, shape: Shape) -> usize {
    // The first query may be the last position of a tile.
    let num_tiles = (shape.tokens + TILE - 1).div_ceil(TILE);
    let operand_len = operand_len(precision, shape);
    workspace_len(precision)
        + 2 * (operand_len + TILE * TILE)
        + num_tiles * (operand_len + 2 * TILE)
        + shape.tokens * shape.head_dim
        + VECTOR_LEN
}

/// One head of one sequence.
struct HeadForward<'a> {
    shape: Shape,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    first_query: usize,
    options: HeadOptions<'a>,
    mask: Option<HeadMask>,
    out: Block<'a>,
    lse: &'a mut [f32],
    operand_len: usize,
    region: &'a mut [f32],
}

impl Work for HeadForward<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S, products: &mut impl Products<S>) {
        let Shape { tokens, head_dim, .. } = self.shape;
        let (first_query, end) = (self.first_query, self.first_query + tokens);
        let first_tile = first_query / TILE * TILE;
        let (k, rest) = self.region.split_at_mut(self.operand_len);
        let (v, rest) = rest.split_at_mut(self.operand_len);
        let (scores, rest) = rest.split_at_mut(TILE * TILE);
        let (factors, rest) = rest.split_at_mut(TILE * TILE);
        let state_len = self.operand_len + 2 * TILE;
        let num_tiles = (end - first_tile).div_ceil(TILE);
        let (by_tile, out) = rest.split_at_mut(num_tiles * state_len);

        let options = self.options;
        for first_key in (options.first_tile(first_query)..end).step_by(TILE) {
            let num_keys = TILE.min(end - first_key);
            products.pack_keys(s, head_dim, self.k.from(first_key, 0), num_keys, k);
            products.pack_addends(s, head_dim, self.v.from(first_key, 0), num_keys, v);
            for base in (first_tile.max(first_key)..end).step_by(TILE) {
                let tile = Tile {
                    queries: base.max(first_query) - base..TILE.min(end - base),
                    num_keys,
                    diagonal: base == first_key,
                };
                let len = tile.queries.len();
                let done = base + tile.queries.start - first_query;
                let first_visible = options.first_tile(first_query + done);
                if first_key < first_visible {
                    // Later queries see no earlier keys.
                    break;
                }
                let state = &mut by_tile[(base - first_tile) / TILE * state_len..];
                let (columns, softmax) = state.split_at_mut(self.operand_len);
                let mut queries = Queries {
                    columns,
                    softmax: Softmax::of(&mut softmax[..2 * TILE]),
                    out: &mut out[done * head_dim..][..len * head_dim],
                };
                if first_key == first_visible {
                    let (q, lowest) = (self.q.from(done, 0), options.lowest());
                    queries.start(s, products, head_dim, q, &tile, lowest);
                }
                let factors = self.mask.map(|mask| {
                    mask.fill(s, (base, first_key), &tile, factors);
                    &*factors
                });
                let keys = Keys { k, v };
                let write = if first_key == first_visible { Write::Set } else { Write::Add };
                let at = (&options, (base, first_key));
                queries.add(s, products, head_dim, &tile, at, keys, factors, scores, write);
                if tile.diagonal {
                    let lse = &mut self.lse[done..][..len];
                    queries.finish(s, head_dim, &tile, (&mut self.out, done), lse);
                }
            }
        }
    }
}

/// One tile of keys and values.
#[derive(Clone, Copy)]
struct Keys<'a> {
    k: &'a [f32],
    v: &'a [f32],
}

/// One tile of queries, with the softmax and the output so far.
struct Queries<'a> {
    columns: &'a mut [f32],
    softmax: Softmax<'a>,
    out: &'a mut [f32],
}

impl Queries<'_> {
    /// Prepares for the first tile of keys.
    #[inline(always)]
    fn start<S: Simd>(
        &mut self,
        s: S,
        products: &mut impl Products<S>,
        head_dim: usize,
        q: Rows<'_>,
        tile: &Tile,
        lowest: f32,
    ) {
        products.pack_queries(s, head_dim, q, tile, self.columns);
        self.softmax.max.fill([lowest; VECTOR_LEN]);
        self.softmax.sum.fill([0.0; VECTOR_LEN]);
    }

    /// Adds one tile of keys, given the positions of the first query and key; `factors` are those
    /// of dropout.
    #[inline(always)]
    fn add<S: Simd>(
        &mut self,
        s: S,
        products: &mut impl Products<S>,
        head_dim: usize,
        tile: &Tile,
        (options, first): (&HeadOptions<'_>, (usize, usize)),
        keys: Keys<'_>,
        factors: Option<&[f32]>,
        scores: &mut [f32],
        write: Write,
    ) {
        products.dot(s, tile, head_dim, keys.k, self.columns, scores);
        options.apply(s, first, tile, scores, &mut []);
        let rescale = self.softmax.add(s, tile, options.scale_after(), scores);
        if let Some(factors) = factors {
            tile.multiply_visible(s, factors, scores);
        }
        if write == Write::Add {
            scale_rows(s, head_dim, &rescale.as_flattened()[tile.queries.clone()], self.out);
        }
        products.sum_over_keys(s, tile, head_dim, scores, keys.v, self.out, write);
    }

    /// Finishes after the last tile of keys: writes the output to rows `first..` of its target.
    #[inline(always)]
    fn finish<S: Simd>(
        &self,
        s: S,
        head_dim: usize,
        tile: &Tile,
        (target, first): (&mut Block<'_>, usize),
        target_lse: &mut [f32],
    ) {
        let (inverse, lse) = self.softmax.finish(s);
        let factors = &inverse.as_flattened()[tile.queries.clone()];
        for (i, (&factor, row)) in factors.iter().zip(self.out.chunks_exact(head_dim)).enumerate() {
            target.prefetch(s, first + (i + ROWS_AHEAD).min(factors.len() - 1));
            let (factor, target) = (s.splat(factor), target.row(first + i));
            for group in 0..num_groups(row) {
                store(s, s.mul(load(s, row, group), factor), target, group);
            }
        }
        target_lse.copy_from_slice(&lse.as_flattened()[tile.queries.clone()]);
    }
}

/// Multiplies each row by its factor.
#[inline(always)]
fn scale_rows<S: Simd>(s: S, head_dim: usize, factors: &[f32], rows: &mut [f32]) {
    for (&factor, row) in factors.iter().zip(rows.chunks_exact_mut(head_dim)) {
        // Most rows keep their maximum, and multiplying by one changes no bit.
        if factor.to_bits() == 1.0f32.to_bits() {
            continue;
        }
        let factor = s.splat(factor);
        let (body, tail) = row.as_chunks_mut::<VECTOR_LEN>();
        for x in body {
            s.store(s.mul(s.load(x), factor), x);
        }
        if !tail.is_empty() {
            s.store_partial(s.mul(s.load_partial(tail), factor), tail);
        }
    }
}

/// One number per column of a tile.
type Columns = [[f32; VECTOR_LEN]; PER_ROW];

/// The softmax of a tile of queries so far.
struct Softmax<'a> {
    max: &'a mut [[f32; VECTOR_LEN]],
    sum: &'a mut [[f32; VECTOR_LEN]],
}

impl<'a> Softmax<'a> {
    fn of(state: &'a mut [f32]) -> Self {
        let (max, sum) = state.as_chunks_mut::<VECTOR_LEN>().0.split_at_mut(PER_ROW);
        Self { max, sum }
    }

    /// Turns the scores of one more tile into probabilities relative to the maximum so far. Returns
    /// the factors on the outputs so far.
    #[inline(always)]
    fn add<S: Simd>(&mut self, s: S, tile: &Tile, scale: f32, scores: &mut [f32]) -> Columns {
        let mut rescales = [[0.0; VECTOR_LEN]; PER_ROW];
        let (scores, _) = scores.as_chunks_mut::<VECTOR_LEN>();
        let scale = s.splat(scale);
        for column in tile.vectors() {
            let v = column / VECTOR_LEN;
            let rows = tile.rows(column);
            let tile_max = s.mul(column_max(s, scores, v, rows), scale);
            let old_max = s.load(&self.max[v]);
            let max = s.max(tile_max, old_max);
            let rescale = math::exp(s, s.sub(old_max, max));
            let tile_sum = exponentials(s, scores, v, rows, scale, max);
            let sum = s.fma(s.load(&self.sum[v]), rescale, tile_sum);
            s.store(max, &mut self.max[v]);
            s.store(rescale, &mut rescales[v]);
            s.store(sum, &mut self.sum[v]);
        }
        rescales
    }

    /// The last factors, and the logarithms of the sums.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S) -> (Columns, Columns) {
        let (mut last, mut lse) = ([[0.0; VECTOR_LEN]; PER_ROW], [[0.0; VECTOR_LEN]; PER_ROW]);
        for v in 0..PER_ROW {
            let sum = s.load(&self.sum[v]);
            s.store(s.div(s.splat(1.0), sum), &mut last[v]);
            s.store(s.add(s.load(&self.max[v]), math::ln(s, sum)), &mut lse[v]);
        }
        (last, lse)
    }
}

/// The largest visible score of each column of vector v.
#[inline(always)]
fn column_max<S: Simd>(
    s: S,
    scores: &[[f32; VECTOR_LEN]],
    v: usize,
    [visible_to_all, visible_to_some]: [usize; 2],
) -> S::V {
    let hidden = s.splat(f32::NEG_INFINITY);
    // Four maxima at once hide the latency; a maximum does not depend on the order.
    let mut maxima = [hidden; 4];
    for row in 0..visible_to_all {
        let max = &mut maxima[row % 4];
        *max = s.max(s.load(&scores[row * PER_ROW + v]), *max);
    }
    let mut max = s.max(s.max(maxima[0], maxima[1]), s.max(maxima[2], maxima[3]));
    let indices = element_indices(s);
    for row in visible_to_all..visible_to_some {
        let first_visible = s.splat((row - visible_to_all) as f32);
        let score = s.load(&scores[row * PER_ROW + v]);
        max = s.max(s.select_lt(indices, first_visible, hidden, score), max);
    }
    max
}

/// Replaces the scores of the columns of vector v by `exp(score * scale - max)`, hidden ones by
/// zero, and returns their sums, rows ascending.
#[inline(always)]
fn exponentials<S: Simd>(
    s: S,
    scores: &mut [[f32; VECTOR_LEN]],
    v: usize,
    [visible_to_all, visible_to_some]: [usize; 2],
    scale: S::V,
    max: S::V,
) -> S::V {
    let minus_max = s.neg(max);
    let mut sum = s.zero();
    for row in 0..visible_to_all {
        let score = &mut scores[row * PER_ROW + v];
        let p = math::exp(s, s.fma(s.load(score), scale, minus_max));
        sum = s.add(sum, p);
        s.store(p, score);
    }
    let indices = element_indices(s);
    for row in visible_to_all..visible_to_some {
        let score = &mut scores[row * PER_ROW + v];
        let p = math::exp(s, s.fma(s.load(score), scale, minus_max));
        let p = s.select_lt(indices, s.splat((row - visible_to_all) as f32), s.zero(), p);
        sum = s.add(sum, p);
        s.store(p, score);
    }
    sum
}

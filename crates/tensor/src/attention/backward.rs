//! Backward pass: recomputes every tile of probabilities and uses it for all three gradients.

use super::dispatch::{self, operand_len, workspace_len};
use super::dropout::HeadMask;
use super::options::{HeadOptions, Options};
use super::products::{Products, Work};
use super::tile::{Tile, copy, element_indices};
use super::{PER_ROW, ROWS_AHEAD, Rows, Shape, TILE, check_scratch, split_aligned};
use crate::Cpu;
use crate::cpu::{Block, Blocks};
use crate::gemm::{Precision, Write};
use crate::math;
use crate::simd::{Kernel, Simd, VECTOR_LEN};

/// Computes the gradients of q, k and v from the gradient of the output.
///
/// `q`, `k`, `v`, `options` are those of [`super::forward`] with `first_query` zero, `out_thd` and
/// `lse_bht` its results. Sets `dqkv`, a row of which holds the heads of q, then of k, then of v.
pub fn backward(
    cpu: &Cpu,
    shape: Shape,
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    out_thd: &[f32],
    lse_bht: &[f32],
    dout_thd: &[f32],
    options: &Options<'_>,
    dqkv: &mut [f32],
    scratch: &mut [f32],
) {
    let precision = Precision::F32;
    backward_in(cpu, precision, shape, q, k, v, out_thd, lse_bht, dout_thd, options, dqkv, scratch);
}

/// [`backward`] with products in `precision`, which also determines the size of the scratch memory.
pub fn backward_in(
    cpu: &Cpu,
    precision: Precision,
    shape: Shape,
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    out_thd: &[f32],
    lse_bht: &[f32],
    dout_thd: &[f32],
    options: &Options<'_>,
    dqkv: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check();
    let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
    let (num_rows, width, kv_width) = (sequences * tokens, heads * head_dim, kv_heads * head_dim);
    q.check(num_rows, width, "q");
    k.check(num_rows, kv_width, "k");
    v.check(num_rows, kv_width, "v");
    assert_eq!(out_thd.len(), num_rows * width, "out for {shape:?}");
    assert_eq!(dout_thd.len(), num_rows * width, "dout for {shape:?}");
    assert_eq!(lse_bht.len(), num_rows * heads, "lse for {shape:?}");
    assert_eq!(dqkv.len(), num_rows * (width + 2 * kv_width), "dqkv for {shape:?}");
    options.check(&shape, 0);

    let (workspace_len, region_len) = (workspace_len(precision), region_len(precision, shape));
    let gradients_at = work_len(precision, shape);
    check_scratch(precision, shape, scratch);
    let blocks_per_row = heads + 2 * kv_heads;
    let blocks = Blocks::new(dqkv, blocks_per_row * head_dim, (tokens, head_dim));
    cpu.for_each_with_workspace(sequences * kv_heads, scratch, region_len, |task, region| {
        let (sequence, kv_head) = (task / kv_heads, task % kv_heads);
        let (row, head) = (sequence * tokens, kv_head * shape.group());
        let (workspace, region) = split_aligned(region, workspace_len);
        let group = GroupBackward {
            shape,
            q: q.from(row, head * head_dim),
            k: k.from(row, kv_head * head_dim),
            v: v.from(row, kv_head * head_dim),
            out: Rows { data: out_thd, stride: width }.from(row, head * head_dim),
            lse: &lse_bht[(sequence * heads + head) * tokens..][..shape.group() * tokens],
            dout: Rows { data: dout_thd, stride: width }.from(row, head * head_dim),
            options,
            sequence,
            first_head: head,
            operand_len: operand_len(precision, shape),
            region: &mut *region,
        };
        dispatch::run(cpu, precision, group, workspace);
        // A region ends with dQ of its query heads, then dK, then dV.
        let gradients = &region[gradients_at..];
        let query_heads = head..head + shape.group();
        let columns = query_heads.chain([heads + kv_head, heads + kv_heads + kv_head]);
        for (column, gradient) in columns.zip(gradients.chunks_exact(tokens * head_dim)) {
            // SAFETY: every task runs once, and no other has its key head or its query heads.
            let target = unsafe { blocks.block(sequence * blocks_per_row + column) };
            cpu.run(CopyOut { gradient, target });
        }
    });
}

/// Copies the gradient of one head, row by row, into its columns.
struct CopyOut<'a> {
    gradient: &'a [f32],
    target: Block<'a>,
}

impl Kernel for CopyOut<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let head_dim = self.target.row(0).len();
        let num_rows = self.gradient.len() / head_dim;
        for (i, row) in self.gradient.chunks_exact(head_dim).enumerate() {
            self.target.prefetch(s, (i + ROWS_AHEAD).min(num_rows - 1));
            copy(s, row, self.target.row(i));
        }
    }
}

/// Scratch memory of one task: its tiles, and the gradients of its heads.
pub(super) fn region_len(precision: Precision, shape: Shape) -> usize {
    workspace_len(precision)
        + work_len(precision, shape)
        + (shape.group() + 2) * shape.tokens * shape.head_dim
        + VECTOR_LEN
}

/// A tile of keys in two forms, of values, of probabilities, kept probabilities and score gradients
/// each; the output of [`prepare`] for each tile of queries.
fn work_len(precision: Precision, shape: Shape) -> usize {
    let operand_len = operand_len(precision, shape);
    let num_tiles = shape.group() * shape.tokens.div_ceil(TILE);
    3 * (operand_len + TILE * TILE) + num_tiles * prepared_len(operand_len)
}

/// One key head of one sequence, with all query heads that read it.
struct GroupBackward<'a> {
    shape: Shape,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    out: Rows<'a>,
    lse: &'a [f32],
    dout: Rows<'a>,
    options: &'a Options<'a>,
    sequence: usize,
    first_head: usize,
    operand_len: usize,
    region: &'a mut [f32],
}

impl Work for GroupBackward<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S, products: &mut impl Products<S>) {
        let Shape { tokens, head_dim, .. } = self.shape;
        let (group, head_len) = (self.shape.group(), tokens * head_dim);
        let prepared_len = prepared_len(self.operand_len);
        let head_prepared_len = tokens.div_ceil(TILE) * prepared_len;
        let (operands, rest) = self.region.split_at_mut(3 * self.operand_len);
        let (tiles, rest) = rest.split_at_mut(3 * TILE * TILE);
        let (prepared, gradients) = rest.split_at_mut(group * head_prepared_len);
        let (k, operands) = operands.split_at_mut(self.operand_len);
        let (v, k_addends) = operands.split_at_mut(self.operand_len);

        let (dq, dkv) = gradients.split_at_mut(group * head_len);
        let (dk, dv) = dkv.split_at_mut(head_len);
        for (head, prepared) in prepared.chunks_exact_mut(head_prepared_len).enumerate() {
            let [q, out, dout] =
                [self.q, self.out, self.dout].map(|rows| rows.from(0, head * head_dim));
            let lse = &self.lse[head * tokens..][..tokens];
            prepare(s, products, head_dim, q, out, dout, lse, prepared, self.operand_len);
        }
        for first_key in (0..tokens).step_by(TILE) {
            let num_keys = TILE.min(tokens - first_key);
            let at_keys = first_key * head_dim..(first_key + num_keys) * head_dim;
            products.pack_keys(s, head_dim, self.k.from(first_key, 0), num_keys, k);
            products.pack_keys(s, head_dim, self.v.from(first_key, 0), num_keys, v);
            products.pack_addends(s, head_dim, self.k.from(first_key, 0), num_keys, k_addends);
            let mut keys = Keys {
                k,
                v,
                k_addends,
                dk: &mut dk[at_keys.clone()],
                dv: &mut dv[at_keys],
                write: Write::Set,
            };
            for (head, prepared) in prepared.chunks_exact(head_prepared_len).enumerate() {
                let (shape, sequence, head_of_all) =
                    (&self.shape, self.sequence, self.first_head + head);
                let options = self.options.of_head(shape, 0, sequence, head_of_all);
                let dropout = self.options.dropout;
                let mask = dropout.map(|dropout| dropout.of_head(shape, sequence, head_of_all));
                let tiles_of_queries = prepared.chunks_exact(prepared_len);
                for (i, prepared) in tiles_of_queries.enumerate().skip(first_key / TILE) {
                    let first = i * TILE;
                    let first_visible = options.first_tile(first);
                    if first_key < first_visible {
                        // Later queries see no earlier keys.
                        break;
                    }
                    let write_dq = if first_key == first_visible { Write::Set } else { Write::Add };
                    let queries = 0..TILE.min(tokens - first);
                    let at_queries = head * head_len + first * head_dim;
                    let dq = &mut dq[at_queries..][..queries.len() * head_dim];
                    let tile = Tile { queries, num_keys, diagonal: first == first_key };
                    let (at, dq) = ((first, first_key), (dq, write_dq));
                    let (keys, changes) = (&mut keys, (&options, mask.as_ref()));
                    step(s, products, head_dim, &tile, at, keys, prepared, dq, changes, tiles);
                    keys.write = Write::Add;
                }
            }
        }
    }
}

/// One tile of keys and its gradients.
struct Keys<'a> {
    k: &'a [f32],
    v: &'a [f32],
    k_addends: &'a [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    write: Write,
}

/// Elements that [`prepare`] writes for one tile of queries.
fn prepared_len(operand_len: usize) -> usize {
    4 * operand_len + 2 * TILE
}

/// Prepares the operands of the tiles of queries of one head: queries and output gradients as
/// columns, both as addends, lse and D, tile after tile.
#[inline(always)]
fn prepare<S: Simd>(
    s: S,
    products: &mut impl Products<S>,
    head_dim: usize,
    q: Rows<'_>,
    out: Rows<'_>,
    dout: Rows<'_>,
    lse: &[f32],
    prepared: &mut [f32],
    operand_len: usize,
) {
    let tiles = prepared.chunks_exact_mut(prepared_len(operand_len)).zip(lse.chunks(TILE));
    for (i, (prepared, lse)) in tiles.enumerate() {
        let [q, out, dout] = [q, out, dout].map(|rows| rows.from(i * TILE, 0));
        let (columns, rest) = prepared.split_at_mut(2 * operand_len);
        let (addends, rest) = rest.split_at_mut(2 * operand_len);
        let (q_columns, dout_columns) = columns.split_at_mut(operand_len);
        let (q_addends, dout_addends) = addends.split_at_mut(operand_len);
        let (padded_lse, delta) = rest.split_at_mut(TILE);
        let tile = Tile { queries: 0..lse.len(), num_keys: TILE, diagonal: false };
        products.pack_queries(s, head_dim, q, &tile, q_columns);
        products.pack_queries(s, head_dim, dout, &tile, dout_columns);
        products.pack_addends(s, head_dim, q, lse.len(), q_addends);
        products.pack_addends(s, head_dim, dout, lse.len(), dout_addends);
        padded_lse[lse.len()..].fill(0.0);
        padded_lse[..lse.len()].copy_from_slice(lse);
        delta[lse.len()..].fill(0.0);
        for (t, delta) in delta[..lse.len()].iter_mut().enumerate() {
            *delta = dot(s, dout.row(t, head_dim), out.row(t, head_dim));
        }
    }
}

/// Computes all products of one tile; `first` holds the positions of its first query and key.
#[inline(always)]
fn step<S: Simd>(
    s: S,
    products: &mut impl Products<S>,
    head_dim: usize,
    tile: &Tile,
    first: (usize, usize),
    keys: &mut Keys<'_>,
    prepared: &[f32],
    (dq, write_dq): (&mut [f32], Write),
    (options, mask): (&HeadOptions<'_>, Option<&HeadMask>),
    tiles: &mut [f32],
) {
    let operand_len = (prepared.len() - 2 * TILE) / 4;
    let (columns, rest) = prepared.split_at(2 * operand_len);
    let (addends, rest) = rest.split_at(2 * operand_len);
    let (q_columns, dout_columns) = columns.split_at(operand_len);
    let (q, dout) = addends.split_at(operand_len);
    let (lse, delta) = rest.split_at(TILE);
    let (p, rest) = tiles.split_at_mut(TILE * TILE);
    let (kept, ds) = rest.split_at_mut(TILE * TILE);

    products.dot(s, tile, head_dim, keys.k, q_columns, p);
    // Until their gradients are computed, their place holds the derivatives of capped scores.
    options.apply(s, first, tile, p, ds);
    probabilities(s, tile, options.scale_after(), lse, p);
    if let Some(mask) = mask {
        mask.fill(s, first, tile, kept);
        tile.multiply_visible(s, p, kept);
    }
    let of_output = if mask.is_some() { &*kept } else { &*p };
    products.sum_over_queries(s, tile, head_dim, of_output, dout, keys.dv, keys.write);
    if options.is_capped() {
        tile.multiply_visible(s, ds, p);
        if mask.is_some() {
            tile.multiply_visible(s, ds, kept);
        }
    }
    products.dot(s, tile, head_dim, keys.v, dout_columns, ds);
    let kept = if mask.is_some() { &*kept } else { &*p };
    score_gradients(s, tile, options.scale, delta, p, kept, ds);
    products.sum_over_queries(s, tile, head_dim, ds, q, keys.dk, keys.write);
    products.sum_over_keys(s, tile, head_dim, ds, keys.k_addends, dq, write_dq);
}

/// Turns scores into probabilities, hidden ones into zero.
#[inline(always)]
fn probabilities<S: Simd>(s: S, tile: &Tile, scale: f32, lse: &[f32], p: &mut [f32]) {
    let ((p, _), (lse, _)) = (p.as_chunks_mut::<VECTOR_LEN>(), lse.as_chunks::<VECTOR_LEN>());
    let (scale, indices) = (s.splat(scale), element_indices(s));
    for column in tile.vectors() {
        let v = column / VECTOR_LEN;
        let [visible_to_all, visible_to_some] = tile.rows(column);
        let minus_lse = s.neg(s.load(&lse[v]));
        for row in 0..visible_to_all {
            let p = &mut p[row * PER_ROW + v];
            s.store(math::exp(s, s.fma(s.load(p), scale, minus_lse)), p);
        }
        for row in visible_to_all..visible_to_some {
            let p = &mut p[row * PER_ROW + v];
            let one = math::exp(s, s.fma(s.load(p), scale, minus_lse));
            let first_visible = s.splat((row - visible_to_all) as f32);
            s.store(s.select_lt(indices, first_visible, s.zero(), one), p);
        }
    }
}

/// Turns `dout V^T` into `(kept * it - p * D) * scale`, which is zero where hidden.
#[inline(always)]
fn score_gradients<S: Simd>(
    s: S,
    tile: &Tile,
    scale: f32,
    delta: &[f32],
    p: &[f32],
    kept: &[f32],
    ds: &mut [f32],
) {
    let ((p, _), (kept, _)) = (p.as_chunks::<VECTOR_LEN>(), kept.as_chunks::<VECTOR_LEN>());
    let ((ds, _), (delta, _)) = (ds.as_chunks_mut::<VECTOR_LEN>(), delta.as_chunks::<VECTOR_LEN>());
    let scale = s.splat(scale);
    for column in tile.vectors() {
        let v = column / VECTOR_LEN;
        let [_, visible_to_some] = tile.rows(column);
        let delta = s.load(&delta[v]);
        for at in (0..visible_to_some).map(|row| row * PER_ROW + v) {
            let minus_mean = s.neg(s.mul(s.load(&p[at]), delta));
            let gradient = s.fma(s.load(&kept[at]), s.load(&ds[at]), minus_mean);
            s.store(s.mul(gradient, scale), &mut ds[at]);
        }
    }
}

/// Inner product of two rows by sixteen accumulators.
#[inline(always)]
fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<VECTOR_LEN>(), b.as_chunks::<VECTOR_LEN>());
    let mut sum = s.fma(s.load_partial(a_tail), s.load_partial(b_tail), s.zero());
    for (a, b) in a.iter().zip(b) {
        sum = s.fma(s.load(a), s.load(b), sum);
    }
    s.reduce_add(sum)
}

//! Token and position embeddings.
//!
//! Forward copies rows. Backward adds the gradient of every token to the row of its id, tokens
//! ascending; many tokens share a row, so the order matters. Each task owns a run of table rows,
//! reads all ids and takes those of its rows: no atomics, no locks, and an order of additions that
//! does not depend on the number of threads. The gradient of a token is added directly to the
//! table, as one more link of that row's chain; a micro-batch has no sum of its own.
//!
//! Position p of all sequences shares one row of the position table; its gradient is summed from
//! zero with sequences ascending, then added once. Where positions restart with each document of a
//! sequence, gradients are added directly to the table, tokens ascending.
//!
//! Shapes: t tokens, v vocabulary, s positions, c width.

use crate::Cpu;
use crate::reduce::add_into;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Rows of a task that writes rows of tokens or of positions.
const ROWS: usize = 16;

/// Tasks over the table's rows. Every task reads all ids, which bounds their number from above;
/// text uses few rows very often, which bounds it from below.
const TABLE_TASKS: usize = 64;

/// Sets each row of `out_tc` to the table's row of its id.
pub fn forward(cpu: &Cpu, ids: &[u32], table_vc: &[f32], width: usize, out_tc: &mut [f32]) {
    check_ids(ids, table_vc, width);
    forward_part(cpu, ids, table_vc, 0, width, out_tc);
}

/// As [`forward`] with a shard of a table that starts at row `first_row`. A token whose row is
/// outside the shard gets −0, which changes no addend, not even a zero's sign.
pub fn forward_part(
    cpu: &Cpu,
    ids: &[u32],
    table_vc: &[f32],
    first_row: usize,
    width: usize,
    out_tc: &mut [f32],
) {
    assert_eq!(out_tc.len(), ids.len() * width, "one row of {width} for each token");
    cpu.for_each_part(out_tc, ROWS * width, |i, out_tc| {
        for (out, &id) in out_tc.chunks_exact_mut(width).zip(&ids[i * ROWS..]) {
            let row = (id as usize).checked_sub(first_row);
            match row.and_then(|row| table_vc.get(row * width..(row + 1) * width)) {
                Some(row) => out.copy_from_slice(row),
                None => out.fill(-0.0),
            }
        }
    });
}

/// Adds the gradient of each token to the table's row of its id, tokens ascending.
pub fn backward(cpu: &Cpu, ids: &[u32], dout_tc: &[f32], width: usize, dtable_vc: &mut [f32]) {
    check_ids(ids, dtable_vc, width);
    backward_part(cpu, ids, dout_tc, 0, width, dtable_vc);
}

/// As [`backward`] for a shard of a table that starts at row `first_row`; tokens whose rows are
/// outside are skipped.
pub fn backward_part(
    cpu: &Cpu,
    ids: &[u32],
    dout_tc: &[f32],
    first_row: usize,
    width: usize,
    dtable_vc: &mut [f32],
) {
    assert_eq!(dout_tc.len(), ids.len() * width, "one row of {width} for each token");
    let task_rows = (dtable_vc.len() / width).div_ceil(TABLE_TASKS).max(1);
    cpu.for_each_part(dtable_vc, task_rows * width, |i, dtable_vc| {
        let first_row = first_row + i * task_rows;
        let ids = ids.iter().copied();
        cpu.run(Scatter { ids, dout_tc, width, first_row, dtable_vc });
    });
}

/// Adds to each row of `x_tc` the table's row of its position.
///
/// Row t is position `first_position + t % tokens_per_sequence`, less the first position of its
/// document, if `documents` are given by row.
pub fn add_positions(
    cpu: &Cpu,
    table_sc: &[f32],
    (tokens_per_sequence, documents): (usize, Option<&[u32]>),
    first_position: usize,
    width: usize,
    x_tc: &mut [f32],
) {
    check_positions(x_tc, table_sc, first_position + tokens_per_sequence, width);
    check_sequences(x_tc, tokens_per_sequence, width);
    check_documents(x_tc, documents, width);
    cpu.for_each_part(x_tc, ROWS * width, |i, x_tc| {
        let first_token = i * ROWS;
        let table_sc = &table_sc[first_position * width..];
        let documents = documents.map(|documents| &documents[first_token..]);
        let tokens = tokens_per_sequence;
        cpu.run(AddPositions { table_sc, tokens, documents, first_token, width, x_tc });
    });
}

/// Adds the gradient of the first `tokens_per_sequence` rows of the position table.
pub fn positions_backward(
    cpu: &Cpu,
    dx_tc: &[f32],
    (tokens_per_sequence, documents): (usize, Option<&[u32]>),
    width: usize,
    dtable_sc: &mut [f32],
) {
    check_positions(dx_tc, dtable_sc, tokens_per_sequence, width);
    check_sequences(dx_tc, tokens_per_sequence, width);
    check_documents(dx_tc, documents, width);
    let sequence_len = tokens_per_sequence * width;
    cpu.for_each_part(&mut dtable_sc[..sequence_len], ROWS * width, |i, dtable_sc| {
        let (first_row, start) = (i * ROWS, i * ROWS * width);
        match documents {
            None => cpu.run(SumSequences { dx_tc, sequence_len, start, dtable_sc }),
            Some(documents) => {
                let position =
                    |(row, first): (usize, &u32)| (row % tokens_per_sequence) as u32 - first;
                let ids = documents.iter().enumerate().map(position);
                cpu.run(Scatter { ids, dout_tc: dx_tc, width, first_row, dtable_vc: dtable_sc });
            }
        }
    });
}

/// Panics with the first id that has no row.
fn check_ids(ids: &[u32], table_vc: &[f32], width: usize) {
    assert!(width > 0 && table_vc.len().is_multiple_of(width), "whole rows of {width} columns");
    let vocab = table_vc.len() / width;
    if let Some(at) = ids.iter().position(|&id| id as usize >= vocab) {
        panic!("token {at} has id {}, but the table has {vocab} rows", ids[at]);
    }
}

fn check_positions(x_tc: &[f32], table_sc: &[f32], num_positions: usize, width: usize) {
    assert!(width > 0 && x_tc.len().is_multiple_of(width), "whole rows of {width} columns");
    let rows = table_sc.len() / width;
    assert!(num_positions <= rows, "{num_positions} positions, but the table has {rows} rows");
}

fn check_sequences(x_tc: &[f32], tokens_per_sequence: usize, width: usize) {
    assert!(
        tokens_per_sequence > 0 && x_tc.len().is_multiple_of(tokens_per_sequence * width),
        "whole sequences of {tokens_per_sequence} tokens"
    );
}

fn check_documents(x_tc: &[f32], documents: Option<&[u32]>, width: usize) {
    let fits = documents.is_none_or(|documents| documents.len() == x_tc.len() / width);
    assert!(fits, "one document for each row");
}

/// Adds the tokens whose ids are in one run of table rows.
struct Scatter<'a, I> {
    ids: I,
    dout_tc: &'a [f32],
    width: usize,
    first_row: usize,
    dtable_vc: &'a mut [f32],
}

impl<I: Iterator<Item = u32>> Kernel for Scatter<'_, I> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.width;
        for (token, id) in self.ids.enumerate() {
            let Some(row) = (id as usize).checked_sub(self.first_row) else { continue };
            if let Some(target) = self.dtable_vc.get_mut(row * width..(row + 1) * width) {
                add_into(s, &self.dout_tc[token * width..][..width], target);
            }
        }
    }
}

struct AddPositions<'a> {
    table_sc: &'a [f32],
    tokens: usize,
    /// From the first token on.
    documents: Option<&'a [u32]>,
    first_token: usize,
    width: usize,
    x_tc: &'a mut [f32],
}

impl Kernel for AddPositions<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, x) in self.x_tc.chunks_exact_mut(self.width).enumerate() {
            let first = self.documents.map_or(0, |documents| documents[i] as usize);
            let position = (self.first_token + i) % self.tokens - first;
            add_into(s, &self.table_sc[position * self.width..][..self.width], x);
        }
    }
}

/// Sums one run of elements over sequences.
struct SumSequences<'a> {
    dx_tc: &'a [f32],
    sequence_len: usize,
    start: usize,
    dtable_sc: &'a mut [f32],
}

impl Kernel for SumSequences<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let len = self.dtable_sc.len();
        for i in 0..num_groups(self.dtable_sc) {
            let mut sum = s.zero();
            for sequence in self.dx_tc.chunks_exact(self.sequence_len) {
                sum = s.add(sum, load(s, &sequence[self.start..][..len], i));
            }
            store(s, s.add(load(s, self.dtable_sc, i), sum), self.dtable_sc, i);
        }
    }
}

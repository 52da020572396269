//! Weights in 4-bit `NormalFloat` (NF4, Dettmers et al. 2023, "QLoRA"), for a frozen base beside
//! trained adapters.
//!
//! A tensor is a sequence of blocks of 64 elements in row-major order. An element is the nearest of
//! the sixteen values of the paper's appendix E, times the scale of its block, which is the largest
//! magnitude of the block. Double quantisation keeps scales in eight bits: their mean over the
//! tensor is subtracted, and groups of 256 of them are coded by the dynamic tree
//! ([`crate::adamw_8bit`] has a similar one), each with its largest magnitude.
//!
//! Codes and scales are those of `bitsandbytes`: an element is multiplied by the reciprocal of its
//! block's largest magnitude, of two values as near the smaller is taken, and the first element of
//! a byte is in its upper half. Only the mean may differ in its last bit: it is a sum in `f64`.
//!
//! All of it is a function of the whole tensor. A shard keeps some of its blocks, with their scales
//! ([`Nf4::push`]). Dequantisation is one product of two `f32`, on every instruction set.

use crate::Cpu;
use crate::device::{Device, Epilogue, Matrix, MatrixMut, Result, View, ViewMut};
use crate::dynamic_map::{Map, Smallest};
use crate::fp8::Role;
use crate::gemm::{Precision, Write};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Elements of a block.
pub const BLOCK_LEN: usize = 64;

/// Blocks of a group, whose scales have one scale in turn.
pub const GROUP_LEN: usize = 256;

/// Bytes of a block's codes.
const BLOCK_BYTES: usize = BLOCK_LEN / 2;

/// Values of the codes: quantiles of the normal distribution, of which zero is one.
pub const VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Upper end of each code but the last: values above it have a larger code.
const ENDS: [f32; 15] = {
    let mut ends = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        ends[code] = VALUES[code].midpoint(VALUES[code + 1]);
        code += 1;
    }
    ends
};

/// Values of the two codes of a byte.
static PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [VALUES[byte >> 4], VALUES[byte & 15]];
        byte += 1;
    }
    pairs
};

static SCALES: Map = Map::new(Smallest::AboveMinusOne);

/// Largest magnitudes below it count as this one, so that their reciprocal is finite.
const MIN_LARGEST: f32 = 1e-38;

/// Largest magnitude of a block; no number if an element is none.
pub fn largest(block: &[f32]) -> f32 {
    let at_most = |most: f32, x: &f32| if x.abs() > most || x.is_nan() { x.abs() } else { most };
    block.iter().fold(0.0, at_most)
}

/// Code of a value between minus one and one.
fn code(value: f32) -> u8 {
    ENDS.iter().map(|end| u8::from(*end < value)).sum()
}

/// Scales of the blocks of a whole tensor.
#[derive(Clone, Debug)]
pub struct TensorScales {
    largest: Vec<f32>,
    /// Codes of all scales, with double quantisation.
    double: Option<DoubleScales>,
}

/// Scales in eight bits.
#[derive(Clone, Debug)]
struct DoubleScales {
    codes: Vec<u8>,
    /// Scale of each group.
    groups: Vec<f32>,
    offset: f32,
}

impl TensorScales {
    /// Scales of a tensor with these largest magnitudes of its blocks, in eight bits if `double`.
    pub fn new(largest: Vec<f32>, double: bool) -> Self {
        let double = double.then(|| {
            let sum: f64 = largest.iter().map(|x| f64::from(*x)).sum();
            let offset = (sum / largest.len() as f64) as f32;
            let (mut codes, mut groups) = (Vec::with_capacity(largest.len()), Vec::new());
            for group in largest.chunks(GROUP_LEN) {
                let magnitudes = group.iter().map(|x| (x - offset).abs());
                let most = magnitudes.fold(0.0, f32::max);
                let factor = 1.0 / most.max(MIN_LARGEST);
                codes.extend(group.iter().map(|x| SCALES.code((x - offset) * factor)));
                groups.push(most);
            }
            DoubleScales { codes, groups, offset }
        });
        Self { largest, double }
    }
}

/// Some blocks of a tensor, in four bits.
#[derive(Clone, Debug)]
pub struct Nf4 {
    codes: Vec<u8>,
    scales: Scales,
}

#[derive(Clone, Debug)]
enum Scales {
    Single(Vec<f32>),
    Double {
        codes: Vec<u8>,
        /// Blocks from the first one on, in order, that are of one group, with its scale.
        runs: Vec<(u32, f32)>,
        offset: f32,
    },
}

impl Nf4 {
    /// No block, with memory for `num_blocks` in `num_runs` ([`Self::planned_bytes`]).
    pub fn with_capacity(num_blocks: usize, num_runs: usize, double: bool) -> Self {
        let codes = Vec::with_capacity(num_blocks * BLOCK_BYTES);
        let scales = if double {
            let (codes, runs) = (Vec::with_capacity(num_blocks), Vec::with_capacity(num_runs));
            Scales::Double { codes, runs, offset: 0.0 }
        } else {
            Scales::Single(Vec::with_capacity(num_blocks))
        };
        Self { codes, scales }
    }

    /// Appends block number `index` of a tensor with these scales.
    ///
    /// # Panics
    /// When the block has another length, or the scales are of the other kind.
    pub fn push(&mut self, tensor: &TensorScales, index: usize, block: &[f32]) {
        let block = block.as_array::<BLOCK_LEN>().expect("a whole block");
        let number = u32::try_from(self.num_blocks()).expect("fewer than 2^32 blocks");
        let factor = 1.0 / tensor.largest[index].max(MIN_LARGEST);
        let (pairs, _) = block.as_chunks::<2>();
        let bytes = pairs.iter().map(|pair| {
            let [high, low] = pair.map(|x| code(x * factor));
            high << 4 | low
        });
        self.codes.extend(bytes);
        match (&mut self.scales, &tensor.double) {
            (Scales::Single(scales), None) => scales.push(tensor.largest[index]),
            (Scales::Double { codes, runs, offset }, Some(double)) => {
                codes.push(double.codes[index]);
                *offset = double.offset;
                let scale = double.groups[index / GROUP_LEN];
                if runs.last().is_none_or(|(_, last)| last.to_bits() != scale.to_bits()) {
                    runs.push((number, scale));
                }
            }
            _ => panic!("scales of the other kind"),
        }
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.codes.len() / BLOCK_BYTES
    }

    /// Bytes of memory.
    pub fn num_bytes(&self) -> usize {
        let scales = match &self.scales {
            Scales::Single(scales) => scales.capacity() * size_of::<f32>(),
            Scales::Double { codes, runs, .. } => codes.capacity() + runs.capacity() * RUN_BYTES,
        };
        self.codes.capacity() + scales
    }

    /// Bytes that blocks need, where `num_runs` times the next block is of another group.
    pub const fn planned_bytes(num_blocks: usize, num_runs: usize, double: bool) -> usize {
        let scales =
            if double { num_blocks + num_runs * RUN_BYTES } else { num_blocks * size_of::<f32>() };
        num_blocks * BLOCK_BYTES + scales
    }

    /// Codes of the elements, two a byte.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scale of a block.
    pub fn scale(&self, block: usize) -> f32 {
        match &self.scales {
            Scales::Single(scales) => scales[block],
            Scales::Double { codes, runs, offset } => {
                let after = runs.partition_point(|(first, _)| *first as usize <= block);
                SCALES.values[usize::from(codes[block])] * runs[after - 1].1 + offset
            }
        }
    }

    /// Sets `out` to all blocks, on the calling thread.
    pub fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.num_blocks() * BLOCK_LEN, "all elements");
        decode_blocks(self, 0, out);
    }

    /// Number that differs where a code or a scale does: FNV-1a.
    pub fn fingerprint(&self) -> u64 {
        let step = |state: u64, x: u64| (state ^ x).wrapping_mul(0x0100_0000_01b3);
        let codes = self.codes.iter().map(|byte| u64::from(*byte));
        let scales = (0..self.num_blocks()).map(|block| u64::from(self.scale(block).to_bits()));
        codes.chain(scales).fold(0xcbf2_9ce4_8422_2325, step)
    }
}

/// Bytes of a run of blocks of one group.
const RUN_BYTES: usize = size_of::<(u32, f32)>();

/// Tensors that one linear layer has at most: those of queries, keys and values.
pub const MAX_PARTS: usize = 3;

/// Weight of a linear layer: tensors with equally long rows, one below the other.
#[derive(Clone, Copy, Debug)]
pub struct Nf4Rows<'a> {
    /// The tensors.
    pub parts: [Option<&'a Nf4>; MAX_PARTS],
    /// Elements of a row: a multiple of [`BLOCK_LEN`].
    pub width: usize,
}

impl<'a> Nf4Rows<'a> {
    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        let blocks: usize = self.parts.iter().flatten().map(|part| part.num_blocks()).sum();
        blocks * BLOCK_LEN / self.width
    }

    /// The tensor that has a row, and the first block of that row.
    fn find(&self, row: usize) -> (&'a Nf4, usize) {
        let mut block = row * (self.width / BLOCK_LEN);
        for part in self.parts.into_iter().flatten() {
            if block < part.num_blocks() {
                return (part, block);
            }
            block -= part.num_blocks();
        }
        panic!("the weight has no row {row}")
    }
}

/// Elements of a task of dequantisation, at least.
const TASK_LEN: usize = 4096;

/// Sets `out` to dense rows of a weight: these rows, and of each these columns, which begin and end
/// with blocks.
///
/// # Panics
/// When `out` has another length, or the range is no range of blocks.
pub fn dequantise(
    cpu: &Cpu,
    weight: Nf4Rows<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [f32],
) {
    assert_eq!(out.len(), rows.len() * cols.len(), "a tile of the weight");
    let is_block = |at: usize| at.is_multiple_of(BLOCK_LEN);
    assert!(is_block(cols.start) && is_block(cols.end) && is_block(weight.width), "whole blocks");
    if out.is_empty() {
        return;
    }
    let rows_of_task = TASK_LEN.div_ceil(cols.len());
    cpu.for_each_part(out, rows_of_task * cols.len(), |task, out| {
        let first_row = rows.start + task * rows_of_task;
        for (row, out) in (first_row..).zip(out.chunks_mut(cols.len())) {
            let (weight, block) = weight.find(row);
            cpu.run(Dequantise { weight, first: block + cols.start / BLOCK_LEN, out });
        }
    });
}

/// Dequantises blocks one after the other.
struct Dequantise<'a> {
    weight: &'a Nf4,
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for Dequantise<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        decode_blocks(self.weight, self.first, self.out);
    }
}

/// Sets `out` to blocks from `first` on.
#[inline(always)]
fn decode_blocks(weight: &Nf4, first: usize, out: &mut [f32]) {
    let (blocks, _) = out.as_chunks_mut::<BLOCK_LEN>();
    let (codes, _) = weight.codes.as_chunks::<BLOCK_BYTES>();
    for (index, (out, codes)) in blocks.iter_mut().zip(&codes[first..]).enumerate() {
        let scale = weight.scale(first + index);
        let (pairs, _) = out.as_chunks_mut::<2>();
        for (out, byte) in pairs.iter_mut().zip(codes) {
            let [high, low] = PAIRS[usize::from(*byte)];
            *out = [high * scale, low * scale];
        }
    }
}

/// Elements of a tile that is dequantised at a time, about: 4 MiB.
const TILE_LEN: usize = 1 << 20;

/// Rows or columns of a tile are a multiple of it, so that blocks of eight-bit operands
/// ([`crate::fp8`]) are those of the whole weight.
const TILE_MULTIPLE: usize = 128;

/// Rows of a tile with whole rows of this length, or columns of one with whole columns.
const fn tile_rows(len: usize, num: usize) -> usize {
    let fitting = TILE_LEN / len / TILE_MULTIPLE * TILE_MULTIPLE;
    let rows = if fitting > TILE_MULTIPLE { fitting } else { TILE_MULTIPLE };
    if rows < num { rows } else { num }
}

/// Elements of the largest tile of both products with a weight of this shape.
pub const fn tile_len(num_rows: usize, width: usize) -> usize {
    let (forward, backward) =
        (tile_rows(width, num_rows) * width, tile_rows(num_rows, width) * num_rows);
    if forward > backward { forward } else { backward }
}

/// `y (= or +=) x wᵀ`, with the bits of the product with the dequantised weight, of which a tile of
/// rows exists at a time, in `tile`.
pub fn product(
    device: &dyn Device,
    precision: Precision,
    x: Matrix<'_>,
    weight: Nf4Rows<'_>,
    mut y: MatrixMut<'_>,
    write: Write,
    tile: &mut [f32],
) -> Result<()> {
    let (num_rows, width) = (weight.num_rows(), weight.width);
    let step = tile_rows(width, num_rows);
    for first in (0..num_rows).step_by(step) {
        let rows = first..num_rows.min(first + step);
        let tile = &mut tile[..rows.len() * width];
        device.dequantise(weight, rows.clone(), 0..width, ViewMut::of(tile))?;
        let w = Matrix::new(View::of(tile), rows.len(), width).in_role(Role::Weight);
        let out = columns(&mut y, rows);
        device.product(precision, x, w.t(), out, write, Epilogue::None)?;
    }
    Ok(())
}

/// `dx (= or +=) dy w`, by tiles of columns.
pub fn input_product(
    device: &dyn Device,
    precision: Precision,
    dy: Matrix<'_>,
    weight: Nf4Rows<'_>,
    mut dx: MatrixMut<'_>,
    write: Write,
    tile: &mut [f32],
) -> Result<()> {
    let (num_rows, width) = (weight.num_rows(), weight.width);
    let step = tile_rows(num_rows, width);
    for first in (0..width).step_by(step) {
        let cols = first..width.min(first + step);
        let tile = &mut tile[..num_rows * cols.len()];
        device.dequantise(weight, 0..num_rows, cols.clone(), ViewMut::of(tile))?;
        let w = Matrix::new(View::of(tile), num_rows, cols.len()).in_role(Role::Weight);
        device.product(precision, dy, w, columns(&mut dx, cols), write, Epilogue::None)?;
    }
    Ok(())
}

/// Some columns of a target.
fn columns<'a>(out: &'a mut MatrixMut<'_>, cols: Range<usize>) -> MatrixMut<'a> {
    let (rows, row_stride, end) = (out.rows, out.row_stride, out.data.len());
    MatrixMut::strided(out.data.reborrow().range(cols.start..end), rows, cols.len(), row_stride)
}

//! Attention on a CUDA device.
//!
//! cuDNN computes the shapes that it has a plan for; our kernels on tensor cores the other two-byte
//! types, dropout and decoding; those on the vector units the rest.

use super::Cuda;
use super::attention_plans::{Addresses, GradientAddresses};
use super::commands::KernelArg;
use super::launch::launch;
use super::programs::{Grid, Program, Source};
use crate::attention::{Dropout, Heads, Options, Shape};
use crate::device::error::{DeviceError, Result};
use crate::device::operands::{HeadRows, check_rows};
use crate::device::view::{Dtype, View, ViewMut};
use crate::dropout::DropoutMask;
use crate::gemm::Precision;

/// Rows that a block holds, and rows of a tile that it streams.
const ROWS: usize = 64;
const COLS: usize = 32;
/// Threads of a block.
const THREADS: usize = 256;
/// On tensor cores: threads of a block, rows of a streamed tile of keys in forward, and the padding
/// of a row in shared memory.
const MMA_THREADS: usize = 128;
const MMA_KEYS: usize = 64;
const MMA_PADDING: usize = 8;
/// Queries of all heads of a call while decoding, whose finished blocks are counted.
pub(super) const MAX_COUNTED: usize = 4096;
/// Largest head dimension whose sums fit registers.
const MMA_MAX_HEAD_DIM: usize = 128;
/// Queries up to which decoding has blocks of one query.
const DECODE_QUERIES: usize = 8;
/// Largest head dimension whose tiles fit shared memory.
pub(super) const MAX_HEAD_DIM: usize = 256;

/// `Shape` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelShape {
    pub(super) tokens: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
}

// SAFETY: no padding.
unsafe impl KernelArg for KernelShape {}

/// `Dropout` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelDropout {
    seed: [u32; 2],
    stream: u64,
    threshold: u32,
    kept: f32,
    first_sample: u64,
    heads: u32,
    first_head: u32,
    sequences: u32,
    padding: u32,
}

// SAFETY: no padding but that which is named.
unsafe impl KernelArg for KernelDropout {}

impl KernelDropout {
    fn new(dropout: Option<&Dropout>) -> Self {
        let Some(dropout) = dropout else {
            let (seed, sequences) = ([0; 2], 1);
            return Self {
                seed,
                stream: 0,
                threshold: 0,
                kept: 1.0,
                first_sample: 0,
                heads: 1,
                first_head: 0,
                sequences,
                padding: 0,
            };
        };
        let mask = DropoutMask { key: dropout.key, rate: dropout.rate };
        let (seed, stream) = dropout.key.parts();
        let Heads { num, first, sequences } = dropout.heads;
        Self {
            seed,
            stream,
            threshold: mask.threshold(),
            kept: mask.scale(),
            first_sample: dropout.first_sample,
            heads: num as u32,
            first_head: first as u32,
            sequences: sequences as u32,
            padding: 0,
        }
    }
}

/// Elements of scratch memory: D of every query.
pub(super) const fn scratch_len(shape: Shape) -> usize {
    shape.sequences * shape.heads * shape.tokens
}

/// The dropout of a call, which is the only option of the kernels.
pub(super) fn dropout_alone<'a>(options: &Options<'a, View<'_>>) -> Result<Option<&'a Dropout>> {
    if options.is_plain() {
        return Ok(options.dropout);
    }
    let reason = "windows, capped or biased scores and packed documents run on the CPU only";
    Err(DeviceError::Unsupported { operation: "attention", reason: reason.to_owned() })
}

/// Checked operands of a call.
struct Operands {
    shape: KernelShape,
    program: Program,
    /// Addresses and strides of queries, keys and values.
    addresses: [u64; 3],
    strides: [u64; 3],
}

impl Cuda {
    fn operands(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: [HeadRows<'_>; 3],
        first_query: usize,
    ) -> Result<Operands> {
        shape.check();
        let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
        let dtype = qkv[0].data.dtype();
        if head_dim > MAX_HEAD_DIM || (precision == Precision::F32 && dtype != Dtype::F32) {
            let reason = format!("head dimension {head_dim}, {dtype}, products in {precision}");
            return Err(DeviceError::Unsupported { operation: "attention", reason });
        }
        let num_rows = [tokens, first_query + tokens, first_query + tokens];
        let (mut addresses, mut strides) = ([0; 3], [0; 3]);
        for (i, rows) in qkv.iter().enumerate() {
            let width = if i == 0 { heads } else { kv_heads } * head_dim;
            check_rows(rows.data.len(), sequences * num_rows[i], width, rows.stride);
            addresses[i] = self.read(&rows.data, dtype)?;
            strides[i] = rows.stride as u64;
        }
        let [tokens, heads, kv_heads] = [tokens, heads, kv_heads].map(|count| count as u32);
        let shape = KernelShape { tokens, heads, kv_heads };
        let program = Program { source: Source::Attention, dtype, head_dim };
        Ok(Operands { shape, program, addresses, strides })
    }

    pub(super) fn attend(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: [HeadRows<'_>; 3],
        first_query: usize,
        dropout: Option<&Dropout>,
        out: &ViewMut<'_>,
        lse: &ViewMut<'_>,
    ) -> Result<()> {
        let operands = self.operands(precision, shape, qkv, first_query)?;
        let Shape { sequences, tokens, heads, head_dim, .. } = shape;
        assert_eq!(out.len(), sequences * tokens * heads * head_dim, "out for {shape:?}");
        assert_eq!(lse.len(), sequences * heads * tokens, "lse for {shape:?}");
        assert!(first_query == 0 || dropout.is_none(), "no dropout while decoding");
        let Operands { shape: kernel_shape, program, addresses, strides } = operands;
        let out = self.write(out, program.dtype)?;
        let lse = self.write(lse, Dtype::F32)?;
        let ([q, k, v], [q_stride, k_stride, v_stride]) = (addresses, strides);
        let (first, scale) = (first_query as u32, shape.scale());
        let queries = sequences * tokens;
        if first_query > 0 && tokens <= DECODE_QUERIES && queries * heads <= MAX_COUNTED {
            let (rows, sizes) = ((queries, first_query + tokens), (heads, head_dim));
            return self.with_partials(rows, sizes, |partials, grid| {
                launch!(
                    self,
                    Program { source: Source::AttentionDecode, ..program },
                    "attention_queries",
                    grid,
                    q,
                    q_stride,
                    k,
                    k_stride,
                    v,
                    v_stride,
                    kernel_shape,
                    first,
                    scale,
                    partials,
                    out,
                    lse,
                )
            });
        }
        let mask = KernelDropout::new(dropout);
        let blocks = (tokens.div_ceil(ROWS), heads, sequences);
        let uses_mma = fits_tensor_cores(program, addresses, strides, &[out]);
        if uses_mma && first_query == 0 && dropout.is_none() {
            let addresses = Addresses { qkv: addresses, out, lse };
            // SAFETY: operands were checked to have these shapes.
            if unsafe { self.attend_by_cudnn(program.dtype, shape, strides, &addresses, None)? } {
                return Ok(());
            }
        }
        let (program, grid) = if uses_mma {
            (tensor_cores(program), mma_grid(blocks, head_dim, ROWS + 4 * MMA_KEYS))
        } else {
            (program, grid(blocks, head_dim, ROWS + 2 * COLS, 1))
        };
        launch!(
            self,
            program,
            "attention_forward",
            grid,
            q,
            q_stride,
            k,
            k_stride,
            v,
            v_stride,
            kernel_shape,
            first,
            scale,
            mask,
            out,
            lse,
        )
    }

    pub(super) fn attend_backward(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: [HeadRows<'_>; 3],
        [out, lse, dout]: [View<'_>; 3],
        dropout: Option<&Dropout>,
        dqkv: &ViewMut<'_>,
        scratch: &ViewMut<'_>,
    ) -> Result<()> {
        let operands = self.operands(precision, shape, qkv, 0)?;
        let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
        let (rows, width, kv_width) = (sequences * tokens, heads * head_dim, kv_heads * head_dim);
        let row_len = width + 2 * kv_width;
        assert_eq!([out.len(), dout.len()], [rows * width; 2], "out and dout for {shape:?}");
        assert_eq!(lse.len(), rows * heads, "lse for {shape:?}");
        assert_eq!(dqkv.len(), rows * row_len, "dqkv for {shape:?}");
        assert!(scratch.len() >= scratch_len(shape), "scratch for {shape:?}");
        let Operands { shape: kernel_shape, program, addresses, strides } = operands;
        let ([q, k, v], [q_stride, k_stride, v_stride]) = (addresses, strides);
        let (out, dout) = (self.read(&out, program.dtype)?, self.read(&dout, program.dtype)?);
        let (lse, delta) = (self.read(&lse, Dtype::F32)?, self.write(scratch, Dtype::F32)?);
        let dq = self.write(dqkv, program.dtype)?;
        let size = program.dtype.size() as u64;
        let dk = dq + width as u64 * size;
        let dv = dk + kv_width as u64 * size;
        let uses_mma = fits_tensor_cores(program, addresses, strides, &[dout, dq, dk, dv])
            && row_len.is_multiple_of(2);
        if uses_mma && dropout.is_none() {
            let (qkv, dqkv) = (addresses, [dq, dk, dv]);
            let addresses = Addresses { qkv, out, lse };
            let gradients = Some(&GradientAddresses { dout, delta, dqkv });
            // SAFETY: operands were checked to have these shapes.
            let is_queued = unsafe {
                self.attend_by_cudnn(program.dtype, shape, strides, &addresses, gradients)?
            };
            if is_queued {
                return Ok(());
            }
        }
        let (mask, scale) = (KernelDropout::new(dropout), shape.scale());
        let (num_rows, stride) = (rows as u64, row_len as u64);
        let items = Self::by_items(rows * heads * 32);
        launch!(self, program, "attention_delta", items, out, dout, num_rows, kernel_shape, delta)?;
        let (program, by_queries, by_keys) = backward_grids(program, shape, uses_mma);
        launch!(
            self,
            program,
            "attention_backward_queries",
            by_queries,
            q,
            q_stride,
            k,
            k_stride,
            v,
            v_stride,
            kernel_shape,
            scale,
            mask,
            lse,
            delta,
            dout,
            dq,
            stride,
        )?;
        launch!(
            self,
            program,
            "attention_backward_keys",
            by_keys,
            q,
            q_stride,
            k,
            k_stride,
            v,
            v_stride,
            kernel_shape,
            scale,
            mask,
            lse,
            delta,
            dout,
            dk,
            dv,
            stride,
        )
    }
}

/// Program of backward, and its grids by queries and by keys.
fn backward_grids(program: Program, shape: Shape, uses_mma: bool) -> (Program, Grid, Grid) {
    let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
    let tiles = tokens.div_ceil(ROWS);
    let (blocks, kv_blocks) = ((tiles, heads, sequences), (tiles, kv_heads, sequences));
    if uses_mma {
        let grid = |blocks| mma_grid(blocks, head_dim, 2 * ROWS + 4 * COLS);
        return (tensor_cores(program), grid(blocks), grid(kv_blocks));
    }
    let grid = |blocks, tiles| grid(blocks, head_dim, 2 * (ROWS + COLS), tiles);
    (program, grid(blocks, 1), grid(kv_blocks, 2))
}

/// Grid of a kernel on the vector units: shared memory for `num_rows` rows of a head and
/// `num_tiles` tiles of scores, in `f32`.
fn grid(blocks: (usize, usize, usize), head_dim: usize, num_rows: usize, num_tiles: usize) -> Grid {
    let floats = num_rows * (head_dim + 1) + num_tiles * ROWS * (COLS + 1);
    Grid { blocks, threads: THREADS, shared_bytes: floats * size_of::<f32>() }
}

/// Grid of a kernel on tensor cores: shared memory for `num_rows` rows of a head, in two bytes.
fn mma_grid(blocks: (usize, usize, usize), head_dim: usize, num_rows: usize) -> Grid {
    let shared_bytes = num_rows * (head_dim + MMA_PADDING) * 2;
    Grid { blocks, threads: MMA_THREADS, shared_bytes }
}

const fn tensor_cores(program: Program) -> Program {
    Program { source: Source::AttentionMma, ..program }
}

/// Whether the kernels on tensor cores take these operands: they copy 16 bytes at a time.
fn fits_tensor_cores(
    program: Program,
    addresses: [u64; 3],
    strides: [u64; 3],
    others: &[u64],
) -> bool {
    let Program { dtype, head_dim, .. } = program;
    dtype.size() == 2
        && head_dim.is_multiple_of(16)
        && head_dim <= MMA_MAX_HEAD_DIM
        && strides.iter().all(|stride| stride.is_multiple_of(8))
        && addresses.iter().chain(others).all(|address| address.is_multiple_of(16))
}

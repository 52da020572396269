//! Products in fp8 with block scales, by cuBLASLt on Hopper.
//!
//! The library multiplies operands whose sums are contiguous in memory, so a kernel of ours
//! quantises an operand and, where its sums are not, transposes it, in one pass. Scales of pieces
//! are contiguous along the outer dimension, those of blocks along the sums, in rows of a multiple
//! of four. Accumulation is the library's slower and more exact one, which promotes partial sums to
//! `f32` ("fast accumulation" stays off).

use super::Cuda;
use super::algorithms::{Operands, WORKSPACE_BYTES};
use super::cublas_lt::{Call, Fused, Operand};
use super::launch::launch;
use super::programs::{Grid, Program, Source};
use crate::device::error::{DeviceError, Result};
use crate::device::operands::{Matrix, MatrixMut};
use crate::device::view::Dtype;
use crate::fp8::{BLOCK, MULTIPLE, Role};
use crate::gemm::{Precision, Write};

/// Threads of a block, which has a tile of [`BLOCK`] x [`BLOCK`].
const THREADS: usize = 256;
/// Compute capability whose tensor cores the library has block scales for.
const CAPABILITY: (i32, i32) = (9, 0);
/// First version of the library with block scales.
const MIN_LIBRARY: [i32; 2] = [12, 9];

/// Checks that a device and its library have products in a precision.
pub(super) fn check(
    precision: Precision,
    (major, minor): (i32, i32),
    [first, second, _]: [i32; 3],
) -> Result<()> {
    let is_known = (major, minor) == CAPABILITY && [first, second] >= MIN_LIBRARY;
    if precision != Precision::Fp8 || is_known {
        return Ok(());
    }
    let reason = format!(
        "block scales need compute capability 9.0 (Hopper) and cuBLASLt 12.9, but this device has \
         {major}.{minor} and cuBLASLt {first}.{second}; set precision.compute = \"bf16\", or \
         run.device = \"cpu\", which emulates fp8 slowly"
    );
    Err(DeviceError::Unsupported { operation: "products in fp8", reason })
}

/// Whether the library has a product of this shape with this target in fp8.
pub(super) fn fits((m, n, k): (usize, usize, usize), c: &MatrixMut<'_>) -> bool {
    let is_whole = [m, n, k].iter().all(|len| len.is_multiple_of(MULTIPLE));
    let row_bytes = c.row_stride * c.data.dtype().size();
    is_whole && (c.data.as_view().address().addr() | row_bytes).is_multiple_of(16)
}

/// The error where the library has no algorithm for a product that [`fits`].
pub(super) fn no_algorithm(c: &MatrixMut<'_>, a: Matrix<'_>) -> Result<()> {
    let (m, n, k) = (c.rows, c.cols, a.shape().1);
    let reason = format!(
        "cuBLASLt has no algorithm for {m} x {n} x {k} to {}; set precision.compute = \"bf16\"",
        c.data.dtype()
    );
    Err(DeviceError::Unsupported { operation: "product in fp8", reason })
}

impl Cuda {
    /// Quantises the operands and multiplies them; `false` if the library cannot apply the
    /// operation on the result.
    pub(super) fn multiply_quantised(
        &self,
        a: Matrix<'_>,
        b: Matrix<'_>,
        c: &MatrixMut<'_>,
        write: Write,
        (fused, residual): (Fused, Option<u64>),
    ) -> Result<bool> {
        let out_dtype = c.data.dtype();
        let is_known = match fused {
            Fused::None => true,
            Fused::Bias { .. } | Fused::GeluBackward { .. } => out_dtype == Dtype::Bf16,
            Fused::BiasGelu { .. } => false,
        };
        if !is_known {
            return Ok(false);
        }
        let ((m, k), n) = (a.shape(), c.cols);
        let target = (self.write(&c.data, out_dtype)?, c.row_stride);
        self.quantised(0, &a, a.transposed, |a_operand| {
            self.quantised(1, &b, !b.transposed, |b_operand| {
                self.with_scratch(3, WORKSPACE_BYTES, |workspace| {
                    let call = Call {
                        shape: (m, n, k),
                        operands: Operands::Fp8([a.role, b.role]),
                        out_dtype,
                        a: a_operand,
                        b: Operand { transposed: true, ..b_operand },
                        c: target,
                        add: write == Write::Add,
                        residual,
                        fused,
                    };
                    // SAFETY: operands were checked to have these shapes, and quantised ones are
                    // dense.
                    unsafe { self.submit_product(call, workspace) }
                })
            })
        })
    }

    /// Calls `body` with an operand in fp8 whose rows are the stored rows or, if `turn`, the stored
    /// columns.
    fn quantised<R>(
        &self,
        slot: usize,
        matrix: &Matrix<'_>,
        turn: bool,
        body: impl FnOnce(Operand) -> Result<R>,
    ) -> Result<R> {
        let Matrix { data, rows, cols, row_stride, role, .. } = *matrix;
        let (outer, k) = if turn { (cols, rows) } else { (rows, cols) };
        let from = data.copy_in(Dtype::Bf16).unwrap_or(data);
        let address = self.read(&from, from.dtype())?;
        let num_bytes = rows * cols;
        self.with_scratch(slot, num_bytes + num_scales(role, outer, k) * 4, |target| {
            // Elements take a multiple of 256 bytes, so the scales behind them are aligned.
            let scales = target + num_bytes as u64;
            let (num_rows, num_cols, stride) = (rows as u64, cols as u64, row_stride as u64);
            let (exponent, turned) = (role.format().max_exponent(), i32::from(turn));
            let by_block = i32::from(role == Role::Weight);
            let blocks = (cols.div_ceil(BLOCK), rows.div_ceil(BLOCK), 1);
            let grid = Grid { blocks, threads: THREADS, shared_bytes: 0 };
            let program = Program::new(Source::Fp8, from.dtype());
            launch!(
                self, program, "quantise", grid, address, num_rows, num_cols, stride, target,
                scales, exponent, by_block, turned,
            )?;
            body(Operand { address: target, row_stride: k, transposed: false, scales })
        })
    }
}

/// Scales of an outer x k operand.
const fn num_scales(role: Role, outer: usize, k: usize) -> usize {
    let pieces = k.div_ceil(BLOCK);
    match role {
        Role::Weight => outer.div_ceil(BLOCK) * pieces.next_multiple_of(4),
        Role::Activation | Role::Gradient => outer * pieces,
    }
}

//! Products in fp8 with block scales, by cuBLASLt on Hopper.
//!
//! The library multiplies operands whose sums are contiguous in memory, so a kernel of ours
//! quantises an operand and, where its sums are not, transposes it, in one pass. The gradient of a
//! layer's output, which backward needs in both forms, is read once for both. Scales of pieces are
//! contiguous along the outer dimension, those of blocks along the sums, in rows of a multiple of
//! four. Accumulation is the library's slower and more exact one, which promotes partial sums to
//! `f32` ("fast accumulation" stays off).

use super::Cuda;
use super::cublas_lt::{Fused, Operand};
use super::launch::launch;
use super::programs::{Grid, Program, Source};
use crate::device::error::{DeviceError, Result};
use crate::device::linear::{LinearGradients, OutputGradient};
use crate::device::operands::{Matrix, MatrixMut};
use crate::device::view::{Dtype, View};
use crate::fp8::{BLOCK, Form, Forms, MULTIPLE, Role};
use crate::gemm::Precision;

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

/// Whether both gradients of a layer are products in fp8.
pub(super) fn fits_both(gradients: &LinearGradients<'_>) -> bool {
    let shape = gradients.shape();
    fits(shape, &gradients.d_input.0) && fits(shape, &gradients.d_weight.0)
}

/// Whether the library can apply an operation on the result of a product in fp8.
pub(super) fn fuses(fused: Fused, out_dtype: Dtype) -> bool {
    match fused {
        Fused::None => true,
        Fused::Bias { .. } | Fused::GeluBackward { .. } => out_dtype == Dtype::Bf16,
        Fused::BiasGelu { .. } => false,
    }
}

impl Cuda {
    /// Calls `body` with an operand in fp8 whose rows are the stored rows or, if `turn`, the stored
    /// columns.
    pub(super) fn quantised<R>(
        &self,
        slot: usize,
        matrix: &Matrix<'_>,
        turn: bool,
        body: impl FnOnce(Operand) -> Result<R>,
    ) -> Result<R> {
        let Matrix { rows, cols, role, .. } = *matrix;
        let (outer, k) = if turn { (cols, rows) } else { (rows, cols) };
        let operand = |Form { elements, scales }| Operand {
            address: elements,
            row_stride: k,
            transposed: false,
            scales,
        };
        if let Some(Forms { by_rows, turned }) = matrix.forms {
            return body(operand(if turn { turned } else { by_rows }));
        }
        let num_bytes = rows * cols;
        self.with_scratch(slot, num_bytes + num_scales(role, outer, k) * 4, |elements| {
            // Elements take a multiple of 256 bytes, so the scales behind them are aligned.
            let form = Form { elements, scales: elements + num_bytes as u64 };
            let forms = if turn { [ABSENT, form] } else { [form, ABSENT] };
            self.quantise(matrix, forms)?;
            body(operand(form))
        })
    }

    /// Calls `body` with the gradient of a layer's output in both forms, which one pass writes.
    pub(super) fn quantised_once<R>(
        &self,
        dy: OutputGradient<'_>,
        (rows, cols): (usize, usize),
        body: impl FnOnce(Matrix<'_>) -> Result<R>,
    ) -> Result<R> {
        let (role, num_bytes) = (Role::Gradient, rows * cols);
        let scales = [num_scales(role, rows, cols), num_scales(role, cols, rows)];
        let [of_rows, of_cols] = scales.map(|scales| (scales * 4).next_multiple_of(256));
        self.with_scratch(0, 2 * num_bytes + of_rows + of_cols, |first| {
            let at = |bytes: usize| first + bytes as u64;
            let by_rows = Form { elements: first, scales: at(2 * num_bytes) };
            let turned = Form { elements: at(num_bytes), scales: at(2 * num_bytes + of_rows) };
            let forms = Forms { by_rows, turned };
            let matrix = |data| Matrix::new(data, rows, cols).in_role(role);
            let dy = match dy {
                OutputGradient::SwiGlu { gate_up, ffn, d_act, place }
                    if [gate_up, d_act].iter().all(|view| has_whole_tiles(view, ffn)) =>
                {
                    self.quantise_swiglu(gate_up, ffn, d_act, forms)?;
                    matrix(place.into_view())
                }
                dy => {
                    let dy = matrix(dy.compute(self)?);
                    self.quantise(&dy, [by_rows, turned])?;
                    dy
                }
            };
            body(Matrix { forms: Some(forms), ..dy })
        })
    }

    /// Writes both forms of SwiGLU's gradient.
    fn quantise_swiglu(
        &self,
        gate_up: View<'_>,
        ffn: usize,
        d_act: View<'_>,
        Forms { by_rows, turned }: Forms,
    ) -> Result<()> {
        assert_eq!(gate_up.len(), 2 * d_act.len(), "a gate and an up for each activation");
        let (rows, dtype) = (d_act.len() / ffn, d_act.dtype());
        let (program, grid) = (Program::new(Source::Fp8, dtype), by_tiles(rows, ffn));
        let (gate_up, d_act) = (self.read(&gate_up, dtype)?, self.read(&d_act, dtype)?);
        self.recorder.moves((3 * dtype.size() + 4) * rows * ffn);
        let [rows, ffn] = [rows, ffn].map(|count| count as u64);
        let exponent = Role::Gradient.format().max_exponent();
        let Form { elements: to, scales } = by_rows;
        let Form { elements: turned_to, scales: turned_scales } = turned;
        launch!(
            self,
            program,
            "quantise_swiglu",
            grid,
            gate_up,
            d_act,
            rows,
            ffn,
            to,
            scales,
            turned_to,
            turned_scales,
            exponent,
        )
    }

    /// Writes a matrix in fp8, by rows and turned, where these forms are not absent.
    fn quantise(&self, matrix: &Matrix<'_>, [by_rows, turned]: [Form; 2]) -> Result<()> {
        let Matrix { data, rows, cols, row_stride, role, .. } = *matrix;
        let from = data.copy_in(Dtype::Bf16).unwrap_or(data);
        let address = self.read(&from, from.dtype())?;
        let num_forms = [by_rows, turned].iter().filter(|form| form.elements != 0).count();
        self.recorder.moves(rows * cols * (from.dtype().size() + num_forms));
        let [num_rows, num_cols, stride] = [rows, cols, row_stride].map(|count| count as u64);
        let (exponent, by_block) = (role.format().max_exponent(), i32::from(role == Role::Weight));
        let (program, grid) = (Program::new(Source::Fp8, from.dtype()), by_tiles(rows, cols));
        let Form { elements: to, scales } = by_rows;
        let Form { elements: turned_to, scales: turned_scales } = turned;
        launch!(
            self,
            program,
            "quantise",
            grid,
            address,
            stride,
            num_rows,
            num_cols,
            to,
            scales,
            turned_to,
            turned_scales,
            exponent,
            by_block,
        )
    }
}

/// A form that is not written.
const ABSENT: Form = Form { elements: 0, scales: 0 };

/// Whether our kernel reads rows of this many elements, or twice as many, in whole tiles of bf16.
fn has_whole_tiles(view: &View<'_>, len: usize) -> bool {
    let is_aligned = view.address().addr().is_multiple_of(16);
    view.dtype() == Dtype::Bf16 && len.is_multiple_of(BLOCK) && is_aligned
}

/// A block of threads for each tile of a matrix.
const fn by_tiles(rows: usize, cols: usize) -> Grid {
    let blocks = (cols.div_ceil(BLOCK), rows.div_ceil(BLOCK), 1);
    Grid { blocks, threads: THREADS, shared_bytes: 0 }
}

/// Scales of an outer x k operand.
const fn num_scales(role: Role, outer: usize, k: usize) -> usize {
    let pieces = k.div_ceil(BLOCK);
    match role {
        Role::Weight => outer.div_ceil(BLOCK) * pieces.next_multiple_of(4),
        Role::Activation | Role::Gradient => outer * pieces,
    }
}

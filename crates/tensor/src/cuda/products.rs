//! Matrix products on a CUDA device.
//!
//! cuBLASLt multiplies operands of one type; an operand of another type is rounded to it first. Our
//! own kernel takes shapes that cuBLASLt has no algorithm for.

use super::algorithms::{Operands, WORKSPACE_BYTES};
use super::attention_plans::AttentionPlans;
use super::cublas_lt::{Call, Fused, Operand};
use super::launch::{launch, type_code};
use super::programs::{Grid, Program, Source};
use super::{Cuda, attention, attention_plans, fp8};
use crate::attention::{Options, Shape};
use crate::device::error::{DeviceError, Result};
use crate::device::flat::FlatBuffers;
use crate::device::layers::Layers;
use crate::device::linear::{LinearGradients, OutputGradient};
use crate::device::operands::{
    Activation, Epilogue, HeadRows, Matrix, MatrixMut, RowProduct, check_rows,
};
use crate::device::products::{Products, multiply_both, multiply_stored};
use crate::device::view::{Dtype, View, ViewMut};
use crate::gemm::{Precision, Write};

/// Rows and columns of a tile of our own product.
const TILE: usize = 32;

impl Products for Cuda {
    fn product(
        &self,
        precision: Precision,
        a: Matrix<'_>,
        b: Matrix<'_>,
        mut c: MatrixMut<'_>,
        write: Write,
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        let ((m, k), (b_rows, n)) = (a.shape(), b.shape());
        assert_eq!(b_rows, k, "the operands share k");
        assert_eq!((c.rows, c.cols), (m, n), "the target is m x n");
        assert!(k > 0, "a product over nothing has no chain");
        check_rows(a.data.len(), a.rows, a.cols, a.row_stride);
        check_rows(b.data.len(), b.rows, b.cols, b.row_stride);
        check_rows(c.data.len(), m, n, c.row_stride);
        if m == 0 || n == 0 {
            return Ok(());
        }
        let fits_fp8 = fp8::fits((m, n, k), &c);
        let precision = if fits_fp8 { precision } else { precision.unquantised() };
        let addend = match &epilogue {
            Epilogue::None => Some(None),
            Epilogue::Residual { bias: None, residual } => Some(Some(residual)),
            _ => None,
        };
        if let (Some(addend), Write::Set) = (addend, write) {
            let fits = |addend: &View<'_>| addend.len() == m * n && c.row_stride == n;
            assert!(addend.is_none_or(fits), "the residual is m x n");
            if self.try_few_rows(precision, &a, &b, &c, addend)? {
                return Ok(());
            }
        }
        match epilogue {
            Epilogue::None => self.multiply(precision, a, b, &mut c, write, Fused::None)?,
            Epilogue::Bias(bias) => {
                assert_eq!(bias.len(), n, "a bias has a number for each column");
                // The library has the bias in the type of the result.
                let dtype = c.data.dtype();
                if bias.dtype() != dtype || is_aligned(&bias) {
                    self.rounded(2, dtype, &bias, |bias| {
                        self.multiply(precision, a, b, &mut c, write, Fused::Bias { bias })
                    })?;
                } else {
                    self.multiply(precision, a, b, &mut c, write, Fused::None)?;
                    self.add_bias(&mut c, bias)?;
                }
            }
            Epilogue::Residual { bias, residual } => {
                assert_eq!(residual.len(), m * n, "the residual is m x n");
                assert!(write == Write::Set && c.row_stride == n, "a residual is added once");
                self.add_residual(precision, (a, b), c, bias, residual)?;
            }
            Epilogue::GeluBackward { before } => {
                assert_eq!(before.len(), m * n, "the input of the activation is m x n");
                assert!(write == Write::Set && c.row_stride == n, "a gradient is overwritten");
                self.gelu_backward(precision, (a, b), c, before)?;
            }
            Epilogue::BiasGelu { bias, before } => {
                assert_eq!(bias.len(), n, "a bias has a number for each column");
                assert_eq!(before.len(), m * n, "the input of the activation is m x n");
                assert!(write == Write::Set && c.row_stride == n, "an activation overwrites");
                self.bias_gelu(precision, a, b, c, bias, before)?;
            }
        }
        Ok(())
    }

    fn linear_backward(
        &self,
        precision: Precision,
        dy: OutputGradient<'_>,
        gradients: LinearGradients<'_>,
    ) -> Result<()> {
        if precision == Precision::Fp8 && fp8::fits_both(&gradients) {
            let (rows, _, outputs) = gradients.shape();
            let body = |dy: Matrix<'_>| multiply_both(self, precision, dy, gradients);
            return self.quantised_once(dy, (rows, outputs), body);
        }
        multiply_stored(self, precision, dy, gradients)
    }

    fn product_algorithms(&self) -> Result<String> {
        let plans = self.attention_plans.as_ref().map_or_else(String::new, AttentionPlans::list);
        Ok(self.blas.algorithms() + &plans)
    }

    fn set_product_algorithms(&self, algorithms: &str) -> Result<()> {
        self.lock_replay().forget();
        let (products, plans) = attention_plans::split_list(algorithms);
        self.blas.set_algorithms(products)?;
        if products.is_empty() {
            return Ok(());
        }
        attention_plans::set_list(self.attention_plans.as_ref(), plans)
    }

    fn attention_scratch_len(&self, _precision: Precision, shape: Shape) -> usize {
        attention::scratch_len(shape)
    }

    fn attention_forward(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: [HeadRows<'_>; 3],
        first_query: usize,
        options: &Options<'_, View<'_>>,
        out_thd: ViewMut<'_>,
        lse_bht: ViewMut<'_>,
        _scratch: ViewMut<'_>,
    ) -> Result<()> {
        let dropout = attention::dropout_alone(options)?;
        self.attend(precision, shape, qkv, first_query, dropout, &out_thd, &lse_bht)
    }

    fn row_product(
        &self,
        precision: Precision,
        product: RowProduct<'_>,
        y: ViewMut<'_>,
    ) -> Result<bool> {
        self.try_row_product(precision.unquantised(), &product, &y)
    }

    fn attend_token(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: View<'_>,
        angles: Option<View<'_>>,
        cache: ViewMut<'_>,
        position: usize,
        out: ViewMut<'_>,
    ) -> Result<bool> {
        self.try_attend_token(precision, shape, qkv, angles, &cache, position, &out)
    }

    fn attention_backward(
        &self,
        precision: Precision,
        shape: Shape,
        qkv: [HeadRows<'_>; 3],
        out_thd: View<'_>,
        lse_bht: View<'_>,
        dout_thd: View<'_>,
        options: &Options<'_, View<'_>>,
        dqkv: ViewMut<'_>,
        scratch: ViewMut<'_>,
    ) -> Result<()> {
        let outputs = [out_thd, lse_bht, dout_thd];
        let dropout = attention::dropout_alone(options)?;
        self.attend_backward(precision, shape, qkv, outputs, dropout, &dqkv, &scratch)
    }
}

impl Cuda {
    fn add_bias(&self, c: &mut MatrixMut<'_>, bias: View<'_>) -> Result<()> {
        let dtype = c.data.dtype();
        let (x, stride, width) = (self.write(&c.data, dtype)?, c.row_stride as u64, c.cols as u64);
        let (bias_type, bias) = (type_code(bias.dtype())?, self.read(&bias, bias.dtype())?);
        let program = Program::new(Source::Pointwise, dtype);
        let grid = Self::by_rows(c.rows, c.cols);
        launch!(self, program, "bias_add", grid, x, bias, bias_type, width, stride)
    }

    /// Turns the gradient of GELU's output into that of its input.
    fn activate_in_place(&self, x: View<'_>, dx: &ViewMut<'_>) -> Result<()> {
        let (dtype, n, grid) = (x.dtype(), x.len() as u64, self.over(x.len()));
        let (x, dx, gelu) = (self.read(&x, dtype)?, self.write(dx, dtype)?, 0i32);
        let program = Program::new(Source::Pointwise, dtype);
        launch!(self, program, "activate_backward", grid, gelu, x, dx, dx, n)
    }

    /// In one call where the library's GELU is as exact as the result's type: it approximates tanh.
    fn bias_gelu(
        &self,
        precision: Precision,
        a: Matrix<'_>,
        b: Matrix<'_>,
        mut c: MatrixMut<'_>,
        bias: View<'_>,
        mut before: ViewMut<'_>,
    ) -> Result<()> {
        let (m, n, dtype) = (c.rows, c.cols, c.data.dtype());
        let fits = dtype != Dtype::F32
            && before.dtype() == dtype
            && n.is_multiple_of(8)
            && (bias.dtype() != dtype || is_aligned(&bias))
            && is_aligned(&before.as_view());
        if fits {
            let before = self.write(&before, dtype)?;
            let is_done = self.rounded(2, dtype, &bias, |bias| {
                let fused = (Fused::BiasGelu { bias, before }, None);
                self.try_library(precision, a, b, &mut c, Write::Set, fused)
            })?;
            if is_done {
                return Ok(());
            }
        }
        let target = MatrixMut::new(before.reborrow(), m, n);
        self.product(precision, a, b, target, Write::Set, Epilogue::Bias(bias))?;
        let out = c.data.range(0..m * n);
        self.activate(Activation::Gelu, before.as_view(), out)
    }

    /// In one call where the library takes the addend.
    fn add_residual(
        &self,
        precision: Precision,
        (a, b): (Matrix<'_>, Matrix<'_>),
        mut c: MatrixMut<'_>,
        bias: Option<View<'_>>,
        residual: View<'_>,
    ) -> Result<()> {
        let dtype = c.data.dtype();
        let addend = Some(self.read(&residual, dtype)?);
        let fits = is_aligned(&residual)
            && bias.as_ref().is_none_or(|bias| bias.dtype() != dtype || is_aligned(bias));
        let is_done = match &bias {
            _ if !fits => false,
            None => self.try_library(precision, a, b, &mut c, Write::Set, (Fused::None, addend))?,
            Some(bias) => self.rounded(2, dtype, bias, |bias| {
                let fused = (Fused::Bias { bias }, addend);
                self.try_library(precision, a, b, &mut c, Write::Set, fused)
            })?,
        };
        if is_done {
            return Ok(());
        }
        self.multiply(precision, a, b, &mut c, Write::Set, Fused::None)?;
        if let Some(bias) = bias {
            self.add_bias(&mut c, bias)?;
        }
        self.add_assign(c.data, residual)
    }

    /// In one call where the library's GELU is as exact as the result's type.
    fn gelu_backward(
        &self,
        precision: Precision,
        (a, b): (Matrix<'_>, Matrix<'_>),
        mut c: MatrixMut<'_>,
        before: View<'_>,
    ) -> Result<()> {
        let (n, dtype) = (c.cols, c.data.dtype());
        if dtype != Dtype::F32
            && before.dtype() == dtype
            && n.is_multiple_of(8)
            && is_aligned(&before)
        {
            let fused = Fused::GeluBackward { before: self.read(&before, dtype)? };
            if self.try_library(precision, a, b, &mut c, Write::Set, (fused, None))? {
                return Ok(());
            }
        }
        self.multiply(precision, a, b, &mut c, Write::Set, Fused::None)?;
        self.activate_in_place(before, &c.data)
    }

    fn multiply(
        &self,
        precision: Precision,
        a: Matrix<'_>,
        b: Matrix<'_>,
        c: &mut MatrixMut<'_>,
        write: Write,
        fused: Fused,
    ) -> Result<()> {
        if self.try_library(precision, a, b, c, write, (fused, None))? {
            return Ok(());
        }
        let dtype = Dtype::of_operands(precision);
        if precision == Precision::Fp8 {
            let is_done = fused != Fused::None
                && self.try_library(precision, a, b, c, write, (Fused::None, None))?;
            return if is_done { self.add_fused_bias(c, fused) } else { fp8::no_algorithm(c, a) };
        }
        self.rounded(0, dtype, &a.data, |a_address| {
            self.rounded(1, dtype, &b.data, |b_address| {
                self.multiply_by_kernel(dtype, (&a, a_address), (&b, b_address), c, write)
            })
        })?;
        self.add_fused_bias(c, fused)
    }

    /// Adds the bias that a product would have added, in the type of the result.
    fn add_fused_bias(&self, c: &MatrixMut<'_>, fused: Fused) -> Result<()> {
        match fused {
            Fused::None => Ok(()),
            Fused::Bias { bias } => {
                let (dtype, width) = (c.data.dtype(), c.cols as u64);
                let (x, stride) = (self.write(&c.data, dtype)?, c.row_stride as u64);
                let (program, code) = (Program::new(Source::Pointwise, dtype), type_code(dtype)?);
                let grid = Self::by_rows(c.rows, c.cols);
                launch!(self, program, "bias_add", grid, x, bias, code, width, stride)
            }
            Fused::BiasGelu { .. } | Fused::GeluBackward { .. } => {
                unreachable!("its caller falls back itself")
            }
        }
    }

    /// Multiplies by cuBLASLt; `false` if it has no algorithm.
    fn try_library(
        &self,
        precision: Precision,
        a: Matrix<'_>,
        b: Matrix<'_>,
        c: &mut MatrixMut<'_>,
        write: Write,
        (fused, residual): (Fused, Option<u64>),
    ) -> Result<bool> {
        let (dtype, out_dtype) = (Dtype::of_operands(precision), c.data.dtype());
        if out_dtype != Dtype::F32 && out_dtype != dtype {
            let reason = format!("operands in {dtype}, but the result in {out_dtype}");
            return Err(DeviceError::Unsupported { operation: "product", reason });
        }
        let is_quantised = precision == Precision::Fp8;
        if is_quantised && !fp8::fuses(fused, out_dtype) {
            return Ok(false);
        }
        let ((m, k), n) = (a.shape(), c.cols);
        let target = (self.write(&c.data, out_dtype)?, c.row_stride);
        let submit = |operands, a_operand, b_operand| {
            self.with_scratch(3, WORKSPACE_BYTES, |workspace| {
                let call = Call {
                    shape: (m, n, k),
                    operands,
                    out_dtype,
                    a: a_operand,
                    b: b_operand,
                    c: target,
                    add: write == Write::Add,
                    residual,
                    fused,
                };
                // SAFETY: operands were checked to have these shapes, and quantised ones are dense.
                unsafe { self.submit_product(call, workspace) }
            })
        };
        if is_quantised {
            let operands = Operands::Fp8([a.role, b.role]);
            // An operand that is quantised already has the first slot.
            let slot = usize::from(b.forms.is_some());
            return self.quantised(slot, &a, a.transposed, |left| {
                self.quantised(1, &b, !b.transposed, |right| {
                    submit(operands, left, Operand { transposed: true, ..right })
                })
            });
        }
        let operand = |matrix: &Matrix<'_>, address| Operand {
            address,
            row_stride: matrix.row_stride,
            transposed: matrix.transposed,
            scales: 0,
        };
        self.rounded(0, dtype, &a.data, |a_address| {
            self.rounded(1, dtype, &b.data, |b_address| {
                let (a, b) = (operand(&a, a_address), operand(&b, b_address));
                submit(Operands::Same(dtype), a, b)
            })
        })
    }

    /// Calls `body` with the address of numbers in `dtype`, rounded to it if they have another and
    /// no copy.
    fn rounded<R>(
        &self,
        slot: usize,
        dtype: Dtype,
        data: &View<'_>,
        body: impl FnOnce(u64) -> Result<R>,
    ) -> Result<R> {
        if let Some(copy) = data.copy_in(dtype) {
            return body(self.read(&copy, dtype)?);
        }
        let address = self.read(data, data.dtype())?;
        if data.dtype() == dtype {
            return body(address);
        }
        self.with_scratch(slot, data.len() * dtype.size(), |target| {
            let program = Program::new(Source::Convert, data.dtype());
            let (n, none, code) = (data.len() as u64, 0u64, type_code(dtype)?);
            let grid = self.over(data.len());
            launch!(self, program, "convert", grid, address, target, code, n, none)?;
            body(target)
        })
    }

    fn multiply_by_kernel(
        &self,
        dtype: Dtype,
        (a, a_address): (&Matrix<'_>, u64),
        (b, b_address): (&Matrix<'_>, u64),
        c: &mut MatrixMut<'_>,
        write: Write,
    ) -> Result<()> {
        let strides = |matrix: &Matrix<'_>| {
            let stride = matrix.row_stride as u64;
            if matrix.transposed { (1, stride) } else { (stride, 1u64) }
        };
        let ((a_row, a_col), (b_row, b_col)) = (strides(a), strides(b));
        let (m, n, k) = (c.rows as u64, c.cols as u64, a.shape().1 as u64);
        let (target, code) = (self.write(&c.data, c.data.dtype())?, type_code(c.data.dtype())?);
        let (c_row, add) = (c.row_stride as u64, i32::from(write == Write::Add));
        let blocks = (c.cols.div_ceil(TILE), c.rows.div_ceil(TILE), 1);
        let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
        let program = Program::new(Source::Product, dtype);
        launch!(
            self, program, "product", grid, a_address, a_row, a_col, b_address, b_row, b_col,
            target, code, c_row, m, n, k, add,
        )
    }
}

/// Whether 16-byte accesses are aligned.
fn is_aligned(view: &View<'_>) -> bool {
    view.address().addr().is_multiple_of(16)
}

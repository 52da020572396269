//! Products and attention on the CPU.

use crate::attention::{self, Options, Rows, Shape};
use crate::device::error::{DeviceError, Result};
use crate::device::flat::FlatBuffers;
use crate::device::layers::Layers;
use crate::device::operands::{Epilogue, HeadRows, Matrix, MatrixMut};
use crate::device::products::Products;
use crate::device::view::{Dtype, View, ViewMut};
use crate::gemm::{self, Elements, Mat, MatMut, Precision, Write};
use crate::nf4::{self, Nf4Rows};
use crate::{Cpu, fp8, gelu};
use half::{bf16, f16};
use std::ops::Range;

impl Products for Cpu {
    fn product(
        &self,
        precision: Precision,
        a: Matrix<'_>,
        b: Matrix<'_>,
        c: MatrixMut<'_>,
        write: Write,
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        let (roles, a, b) = ([a.role, b.role], mat(&a)?, mat(&b)?);
        if precision == Precision::Fp8 {
            let [left, right] = [(a, roles[0]), (b.t(), roles[1])]
                .map(|(operand, role)| fp8::round_trip(operand, role));
            let (a, b) = (Mat::new(&left, a.rows, a.cols), Mat::new(&right, b.cols, b.rows).t());
            return self.multiply(Precision::F32, a, b, c, write, epilogue);
        }
        self.multiply(precision, a, b, c, write, epilogue)
    }

    fn dequantise(
        &self,
        weight: Nf4Rows<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
        out: ViewMut<'_>,
    ) -> Result<()> {
        nf4::dequantise(self, weight, rows, cols, out.into_slice()?);
        Ok(())
    }

    fn product_algorithms(&self) -> Result<String> {
        Ok(String::new())
    }

    fn set_product_algorithms(&self, algorithms: &str) -> Result<()> {
        if algorithms.is_empty() {
            return Ok(());
        }
        let operation = "stored algorithms of products";
        let reason = "the CPU has none; resume on the device that chose them".to_owned();
        Err(DeviceError::Unsupported { operation, reason })
    }

    fn attention_scratch_len(&self, precision: Precision, shape: Shape) -> usize {
        attention::scratch_len_in(precision, shape)
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
        scratch: ViewMut<'_>,
    ) -> Result<()> {
        let [q, k, v] = [head_rows(&qkv[0])?, head_rows(&qkv[1])?, head_rows(&qkv[2])?];
        let (out, lse) = (out_thd.into_slice()?, lse_bht.into_slice()?);
        let (options, scratch) = (&host_options(options)?, scratch.into_slice()?);
        attention::forward_in(
            self,
            precision,
            shape,
            q,
            k,
            v,
            first_query,
            options,
            out,
            lse,
            scratch,
        );
        Ok(())
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
        let [q, k, v] = [head_rows(&qkv[0])?, head_rows(&qkv[1])?, head_rows(&qkv[2])?];
        let (out, lse, dout) = (out_thd.as_slice()?, lse_bht.as_slice()?, dout_thd.as_slice()?);
        let (dqkv, scratch) = (dqkv.into_slice()?, scratch.into_slice()?);
        let options = &host_options(options)?;
        attention::backward_in(
            self, precision, shape, q, k, v, out, lse, dout, options, dqkv, scratch,
        );
        Ok(())
    }
}

/// Options of attention with documents in the host's memory.
fn host_options<'a>(options: &Options<'a, View<'a>>) -> Result<Options<'a>> {
    let documents = options.documents.map(|documents| documents.as_slice()).transpose()?;
    Ok(options.with_documents(documents))
}

impl Cpu {
    fn multiply(
        &self,
        precision: Precision,
        a: Mat<'_>,
        b: Mat<'_>,
        c: MatrixMut<'_>,
        write: Write,
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        let MatrixMut { data, rows, cols, row_stride } = c;
        let out = data.into_slice::<f32>()?;
        let target = |data| MatMut { data, rows, cols, row_stride };
        match epilogue {
            Epilogue::None => gemm::product(self, precision, a, b, target(out), write, None),
            Epilogue::Bias(bias) => {
                let bias = bias.as_slice()?;
                gemm::product(self, precision, a, b, target(out), write, Some(bias));
            }
            Epilogue::Residual { bias, residual } => {
                assert!(write == Write::Set && row_stride == cols, "a residual is added once");
                gemm::product(self, precision, a, b, target(out), write, None);
                if let Some(bias) = bias {
                    self.bias_add(ViewMut::of(out), bias)?;
                }
                self.add_assign(ViewMut::of(out), residual)?;
            }
            Epilogue::GeluBackward { before } => {
                assert!(write == Write::Set && row_stride == cols, "a gradient is overwritten");
                gemm::product(self, precision, a, b, target(out), write, None);
                let dy = out.to_vec();
                gelu::backward(self, before.as_slice()?, &dy, out);
            }
            Epilogue::BiasGelu { bias, before } => {
                let (bias, before) = (bias.as_slice()?, before.into_slice()?);
                assert!(write == Write::Set && row_stride == cols, "an activation overwrites");
                let dense = MatMut::new(before, rows, cols);
                gemm::product(self, precision, a, b, dense, write, Some(bias));
                gelu::forward(self, before, out);
            }
        }
        Ok(())
    }
}

/// Elements of a matrix on the host.
fn mat<'a>(matrix: &Matrix<'a>) -> Result<Mat<'a>> {
    let Matrix { ref data, rows, cols, row_stride, transposed, .. } = *matrix;
    let elements = match data.dtype() {
        Dtype::Bf16 => Elements::Bf16(data.as_slice::<bf16>()?),
        Dtype::F16 => Elements::F16(data.as_slice::<f16>()?),
        _ => Elements::F32(data.as_slice::<f32>()?),
    };
    let mat = Mat::strided_of(elements, rows, cols, row_stride);
    Ok(if transposed { mat.t() } else { mat })
}

fn head_rows<'a>(rows: &HeadRows<'a>) -> Result<Rows<'a>> {
    Ok(Rows { data: rows.data.as_slice()?, stride: rows.stride })
}

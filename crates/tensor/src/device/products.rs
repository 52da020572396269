//! Matrix products and attention.

use super::error::Result;
use super::layers::{Layers, on_cpu_only};
use super::linear::{LinearGradients, OutputGradient};
use super::operands::{Epilogue, HeadRows, Matrix, MatrixMut, RowProduct};
use super::view::{View, ViewMut};
use crate::attention::{Options, Shape};
use crate::fp8::Role;
use crate::gemm::{Precision, Write};
use crate::nf4::Nf4Rows;
use std::ops::Range;

/// Matrix products and attention.
pub trait Products: Layers {
    /// `c (= or +=) a b` with operands rounded to `precision` and sums in `f32`; then the epilogue.
    ///
    /// In fp8, operands are quantised by their roles, in blocks along the sums. An accelerator
    /// multiplies in bf16 where it has no fp8 product: where a dimension is no multiple of
    /// [`crate::fp8::MULTIPLE`], or the result is not aligned to 16 bytes.
    fn product(
        &self,
        precision: Precision,
        a: Matrix<'_>,
        b: Matrix<'_>,
        c: MatrixMut<'_>,
        write: Write,
        epilogue: Epilogue<'_>,
    ) -> Result<()>;

    /// Both gradients of a linear layer, with the bits of one [`Self::product`] after the other. A
    /// device may prepare the gradient of the output once for both, without storing it.
    fn linear_backward(
        &self,
        precision: Precision,
        dy: OutputGradient<'_>,
        gradients: LinearGradients<'_>,
    ) -> Result<()> {
        multiply_stored(self, precision, dy, gradients)
    }

    /// Sets `out` to dense rows of a weight in four bits ([`crate::nf4`]): these rows, and of each
    /// these columns.
    fn dequantise(
        &self,
        _weight: Nf4Rows<'_>,
        _rows: Range<usize>,
        _cols: Range<usize>,
        _out: ViewMut<'_>,
    ) -> Result<()> {
        Err(on_cpu_only("a weight in four bits"))
    }

    /// The list of the algorithms that products were given or have chosen so far, sorted by
    /// product, and of the plans of attention: a part of a run, for its checkpoint and its other
    /// ranks. Empty where the shape alone determines the order of additions.
    fn product_algorithms(&self) -> Result<String>;

    /// Uses the algorithms of another process of the run: their products never choose again. A
    /// list of another library or device class, or a damaged one, is an error.
    fn set_product_algorithms(&self, algorithms: &str) -> Result<()>;

    /// Elements of `f32` scratch memory of the two calls below, which take fp8 as bf16.
    fn attention_scratch_len(&self, precision: Precision, shape: Shape) -> usize;

    /// Attends from `tokens` queries of each sequence, the positions from `first_query` on, to the
    /// keys at or before them that the options let them see; writes the output and the log-sum-exp
    /// by (sequence, head, query).
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
    ) -> Result<()>;

    /// Sets `y` to a product of one row; `false`, and nothing is done, where the device has no such
    /// operation for these operands.
    ///
    /// The weight and the parameters of the norm may be read before the operation queued ahead of
    /// this one is done: it must not have written them.
    fn row_product(
        &self,
        _precision: Precision,
        _product: RowProduct<'_>,
        _y: ViewMut<'_>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Attends from one new token of one sequence; `false`, and nothing is done, where the device
    /// has no such operation for these operands.
    ///
    /// `qkv` is the row of the token. Its query and key are rotated by the RoPE angles of
    /// `position`, if there are any. Row `position` of the cache is set to its key heads and its
    /// value heads; `out` is set to the attention to all positions up to it. Earlier rows of the
    /// cache may be read before the operation queued ahead of this one is done: it must not have
    /// written them.
    fn attend_token(
        &self,
        _precision: Precision,
        _shape: Shape,
        _qkv: View<'_>,
        _angles: Option<View<'_>>,
        _cache: ViewMut<'_>,
        _position: usize,
        _out: ViewMut<'_>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Sets `dqkv` (rows of query, key and value heads) to the gradients of a forward pass with
    /// `first_query` zero.
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
    ) -> Result<()>;
}

/// Computes the gradient of a linear layer's output where it is not stored, then
/// [`multiply_both`].
pub(crate) fn multiply_stored<D: Products + ?Sized>(
    device: &D,
    precision: Precision,
    dy: OutputGradient<'_>,
    gradients: LinearGradients<'_>,
) -> Result<()> {
    let (rows, _, outputs) = gradients.shape();
    let dy = Matrix::new(dy.compute(device)?, rows, outputs).in_role(Role::Gradient);
    multiply_both(device, precision, dy, gradients)
}

/// The two products of backward of a linear layer, one after the other.
pub(crate) fn multiply_both<D: Products + ?Sized>(
    device: &D,
    precision: Precision,
    dy: Matrix<'_>,
    gradients: LinearGradients<'_>,
) -> Result<()> {
    let LinearGradients { weight, d_input: (dx, write, epilogue), input, d_weight } = gradients;
    device.product(precision, dy, weight, dx, write, epilogue)?;
    let [left, right] = if weight.transposed { [input.t(), dy] } else { [dy.t(), input] };
    device.product(precision, left, right, d_weight.0, d_weight.1, Epilogue::None)
}

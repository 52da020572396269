//! Operations that adapters of both kinds of sharded layer share.

use crate::block::ProductPlan;
use crate::dropout::RowMask;
use crate::formats::Formats;
use crate::param::{Init, ParamList};
use crate::scratch::Frame;
use crate::tensor_shards::TensorShards;
use lockstep_config::{Lora, Model};
use lockstep_tensor::device::{Device, Epilogue, Matrix, MatrixMut, Result, View, ViewMut};
use lockstep_tensor::fp8::Role;
use lockstep_tensor::gemm::{Precision, Write};
use std::ops::Range;

/// Parameters of a layer, to which those of its adapters are appended.
pub(crate) struct AdapterParams<'a> {
    pub(crate) model: &'a Model,
    pub(crate) tp_shards: &'a TensorShards,
    pub(crate) formats: Formats,
    pub(crate) params: &'a mut ParamList,
}

/// Properties that all adapters of a model share.
#[derive(Clone, Copy, Debug)]
pub(super) struct LowRank {
    pub(super) rank: usize,
    scale: f32,
    has_dropout: bool,
    formats: Formats,
}

impl LowRank {
    pub(super) fn new(lora: &Lora, formats: Formats) -> Self {
        let formats = formats.unquantised();
        Self { rank: lora.rank, scale: lora.scale(), has_dropout: lora.dropout > 0.0, formats }
    }

    pub(super) fn multiply(
        &self,
        device: &dyn Device,
        left: Matrix<'_>,
        right: Matrix<'_>,
        out: MatrixMut<'_>,
        write: Write,
    ) -> Result<()> {
        device.product(self.formats.products, left, right, out, write, Epilogue::None)
    }

    /// Multiplies hidden vectors, or their gradients, by the scale.
    pub(super) fn scale(&self, device: &dyn Device, hidden: ViewMut<'_>) -> Result<()> {
        device.scale(hidden, self.scale, Precision::F32, ViewMut::of::<u64>(&mut []))
    }

    /// Adds the input gradient of `rows` hidden gradients to dense rows of `dx`.
    pub(super) fn add_input_gradient(
        &self,
        device: &dyn Device,
        d_hidden: Matrix<'_>,
        a: Matrix<'_>,
        mask: Option<RowMask>,
        dx: ViewMut<'_>,
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let (rows, width) = (d_hidden.rows, a.cols);
        let Some(mask) = mask else {
            return self.multiply(device, d_hidden, a, MatrixMut::new(dx, rows, width), Write::Add);
        };
        let mut addend = frame.take_as(dx.dtype(), rows * width);
        let out = MatrixMut::new(addend.reborrow(), rows, width);
        self.multiply(device, d_hidden, a, out, Write::Set)?;
        mask.apply(device, addend.reborrow())?;
        device.add_assign(dx, addend.as_view())
    }

    /// Elements of the memory of masked rows of this width; none without dropout.
    pub(super) fn masked_len(&self, num_rows: usize, width: usize) -> usize {
        if self.has_dropout { self.formats.floats(num_rows * width) } else { 0 }
    }

    /// Bytes of the largest operands that an accelerator rounds first: hidden vectors on either
    /// side, or a matrix of `weight_len` elements.
    pub(super) fn operand_bytes(
        &self,
        num_rows: usize,
        weight_len: usize,
        products: ProductPlan,
    ) -> [usize; 2] {
        if self.formats.products == Precision::F32 {
            return [0; 2];
        }
        let hidden = 2 * num_rows * self.rank;
        [hidden, hidden.max(if products.has_copies { 0 } else { 2 * weight_len })]
    }
}

/// The rows, or a masked copy of them.
pub(super) fn masked<'a>(
    device: &dyn Device,
    x: View<'a>,
    mask: Option<RowMask>,
    frame: &mut Frame<'a>,
) -> Result<View<'a>> {
    let Some(mask) = mask else { return Ok(x) };
    let mut copy = frame.take_as(x.dtype(), x.len());
    device.copy(x, copy.reborrow())?;
    mask.apply(device, copy.reborrow())?;
    Ok(copy.into_view())
}

/// A weight at a range of the block's flat buffer, with a row per output.
pub(super) fn weight<'a>(params: View<'a>, at: &Range<usize>, num_inputs: usize) -> Matrix<'a> {
    let weight = params.range(at.clone());
    Matrix::new(weight, at.len() / num_inputs, num_inputs).in_role(Role::Weight)
}

/// Initial values of A: those of `torch.nn.Linear`, uniform up to one over the square root of its
/// inputs (He et al. 2015, with `a = sqrt(5)`).
pub(super) fn kaiming_uniform(num_inputs: usize) -> Init {
    Init::Uniform { bound: (1.0 / (num_inputs as f64).sqrt()) as f32 }
}

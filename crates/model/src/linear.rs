//! Linear layer on a block's flat buffers: three products and a bias.
//!
//! The two families store the matrix in different layouts: Llama with a row per output, GPT-2 with
//! a row per input (Conv1D in Hugging Face). Both are views of one product; neither is transposed
//! in memory. Several contiguous tensors (q, k, v; gate, up) form one linear layer with one
//! product.
//!
//! Weights and their gradients are `f32` in memory. Operands are rounded to the layer's precision
//! for the product, unless activations have it already. In fp8 a layer whose inputs or outputs are
//! no multiple of sixteen computes in bf16. A bias is added before the result is rounded. A weight
//! may be frozen in four bits instead ([`crate::frozen_weight`]).

use crate::block::ProductPlan;
use crate::formats::Formats;
use crate::frozen_weight::FrozenWeight;
use crate::grads::Grads;
use crate::param::{Init, ParamList};
use lockstep_tensor::device::open::fp8_operand_bytes;
use lockstep_tensor::device::{
    Device, Dtype, Epilogue, LinearGradients, Matrix, MatrixMut, Norm, OutputGradient, Result,
    RowEpilogue, RowProduct, View, ViewMut,
};
use lockstep_tensor::fp8::{self, Role};
use lockstep_tensor::gemm::{Precision, Write};
use std::ops::Range;

/// Memory layout of the weight.
#[derive(Clone, Copy, Debug)]
pub enum WeightLayout {
    /// A row per output (Llama).
    OutIn,
    /// A row per input (GPT-2).
    InOut,
}

/// `y = x W + b` with weights at fixed ranges of the block's flat buffer.
#[derive(Clone, Debug)]
pub struct Linear {
    /// Width of a row of `x`.
    pub num_inputs: usize,
    /// Width of a row of `y`.
    pub num_outputs: usize,
    /// Memory layout of the weight.
    pub layout: WeightLayout,
    /// Elements of the weight; none where it is frozen in four bits.
    pub weight: Range<usize>,
    /// The weight, where it is frozen in four bits.
    pub frozen: Option<FrozenWeight>,
    /// Elements of the bias, if it has one.
    pub bias: Option<Range<usize>>,
    /// Formats of the three products, and of inputs, outputs and their gradients.
    pub formats: Formats,
}

/// The larger of both left and of both right operands, in bytes.
pub(crate) fn larger_operands([a, b]: [usize; 2], [c, d]: [usize; 2]) -> [usize; 2] {
    [a.max(c), b.max(d)]
}

impl Linear {
    /// A map with a bias, appended to `params` under `name`. Its outputs initially have `gain`
    /// times the variance of its inputs; 2 compensates for `ReLU` (He et al. 2015).
    pub fn new(
        name: &str,
        num_inputs: usize,
        num_outputs: usize,
        gain: f64,
        params: &mut ParamList,
    ) -> Self {
        let std = (gain / num_inputs as f64).sqrt() as f32;
        let shape = [num_outputs, num_inputs];
        let weight = params.push(format!("{name}.weight"), &shape, Init::Normal { std });
        let bias = params.push(format!("{name}.bias"), &[num_outputs], Init::Zeros);
        let (layout, formats) = (WeightLayout::OutIn, Formats::on_cpu(Precision::F32));
        let (frozen, bias) = (None, Some(bias));
        Self { num_inputs, num_outputs, layout, weight, frozen, bias, formats }
    }

    /// FLOPs of the product for one row.
    pub const fn flops(&self) -> u64 {
        2 * (self.num_inputs * self.num_outputs) as u64
    }

    /// Precision of the three products.
    pub(crate) fn precision(&self) -> Precision {
        let sizes = [self.num_inputs, self.num_outputs];
        let fits_fp8 = sizes.iter().all(|size| size.is_multiple_of(fp8::MULTIPLE));
        let Formats { products, .. } = self.formats;
        if fits_fp8 { products } else { products.unquantised() }
    }

    /// Bytes of the largest left and right operand of the three products for `num_rows` rows that
    /// an accelerator rounds or quantises first.
    pub(crate) fn operand_bytes(&self, num_rows: usize, products: ProductPlan) -> [usize; 2] {
        let ProductPlan { has_copies, splits_backward } = products;
        let precision = self.precision();
        if precision == Precision::Fp8 {
            let [inputs, outputs] = [self.num_inputs, self.num_outputs]
                .map(|width| fp8_operand_bytes(num_rows * width));
            let weight = fp8_operand_bytes(self.weight.len());
            return match self.layout {
                // The gradient of the output is quantised in both forms at once.
                _ if !splits_backward => [inputs.max(2 * outputs), weight.max(inputs)],
                WeightLayout::OutIn => [inputs.max(outputs), weight.max(inputs)],
                WeightLayout::InOut => [inputs.max(outputs), weight.max(outputs)],
            };
        }
        if precision == Precision::F32 {
            return [0; 2];
        }
        // The weights alone, and the partial sums of a bias' gradient.
        let partial_sums = 8 * num_rows.div_ceil(128) * self.num_outputs;
        [partial_sums, if has_copies { 0 } else { 2 * self.weight.len() }]
    }

    /// Overwrites `y`.
    pub fn forward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let epilogue = match &self.bias {
            Some(at) => Epilogue::Bias(params.range(at.clone())),
            None => Epilogue::None,
        };
        self.product_with(device, params, x, y, Write::Set, epilogue)
    }

    /// Sets `y` to the product, or adds it, without the bias.
    pub fn product(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        self.product_with(device, params, x, y, write, Epilogue::None)
    }

    /// Sets `y` to the product, or adds it, with an operation on the result.
    pub(crate) fn product_with(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        write: Write,
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        let num_rows = x.len() / self.num_inputs;
        let x = Matrix::new(x, num_rows, self.num_inputs);
        if let Some(frozen) = &self.frozen {
            return frozen.product(device, self.precision(), x, y, write, &epilogue);
        }
        let y = MatrixMut::new(y, num_rows, self.num_outputs);
        device.product(self.precision(), x, self.weight_io(params), y, write, epilogue)
    }

    /// Overwrites `y` for one row, normalised first where there is a norm, in one operation;
    /// `false` where the device has none for it.
    pub(crate) fn forward_row(
        &self,
        device: &dyn Device,
        params: View<'_>,
        norm: Option<Norm<'_>>,
        x: View<'_>,
        epilogue: RowEpilogue<'_>,
        y: ViewMut<'_>,
    ) -> Result<bool> {
        if x.len() != self.num_inputs || self.bias.is_some() || self.frozen.is_some() {
            return Ok(false);
        }
        let product = RowProduct { norm, x, weight: self.weight_io(params), epilogue };
        device.row_product(self.precision(), product, y)
    }

    /// Overwrites `dx` with the gradient of the input.
    pub fn backward_input(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        self.input_product(device, params, dy, dx, Write::Set, Epilogue::None)
    }

    /// Sets `dx` to the gradient of the input, or adds it, with an operation on the result.
    pub(crate) fn input_product(
        &self,
        device: &dyn Device,
        params: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        write: Write,
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        let num_rows = dy.len() / self.num_outputs;
        let dy = Matrix::new(dy, num_rows, self.num_outputs).in_role(Role::Gradient);
        if let Some(frozen) = &self.frozen {
            assert!(matches!(epilogue, Epilogue::None), "models with adapters have gated units");
            return frozen.input_product(device, self.precision(), dy, dx, write);
        }
        let dx = MatrixMut::new(dx, num_rows, self.num_inputs);
        let weight = self.weight_io(params).t();
        device.product(self.precision(), dy, weight, dx, write, epilogue)
    }

    /// Both gradients: sets `dx` or adds to it, with an operation on the result, and adds to
    /// `grads` as [`Self::backward_weight`] does.
    pub(crate) fn backward(
        &self,
        device: &dyn Device,
        params: View<'_>,
        x: View<'_>,
        mut dy: OutputGradient<'_>,
        (dx, write, epilogue): (ViewMut<'_>, Write, Epilogue<'_>),
        mut grads: Grads<'_>,
    ) -> Result<()> {
        if self.bias.is_some() {
            let stored = dy.compute(device)?;
            self.backward_bias(device, stored, &mut grads)?;
            dy = OutputGradient::Stored(stored);
        }
        let (precision, set) = (self.precision(), grads.write());
        let whole = grads.trained_ranges(&self.weight).next().filter(|(at, _)| *at == self.weight);
        let Some((_, d_weight)) = whole else {
            let dy = dy.compute(device)?;
            self.weight_products(device, x, dy, grads)?;
            return self.input_product(device, params, dy, dx, write, epilogue);
        };
        let (num_rows, weight) = (x.len() / self.num_inputs, self.weight_io(params).t());
        let gradients = LinearGradients {
            weight,
            d_input: (MatrixMut::new(dx, num_rows, self.num_inputs), write, epilogue),
            input: Matrix::new(x, num_rows, self.num_inputs),
            d_weight: (MatrixMut::new(d_weight, weight.rows, weight.cols), set),
        };
        device.linear_backward(precision, dy, gradients)
    }

    /// Adds the gradients of trained weight and bias to `grads`, or sets those of the weight where
    /// they are undefined.
    pub fn backward_weight(
        &self,
        device: &dyn Device,
        x: View<'_>,
        dy: View<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        self.backward_bias(device, dy, &mut grads)?;
        self.weight_products(device, x, dy, grads)
    }

    /// Adds the gradient of a trained bias.
    fn backward_bias(
        &self,
        device: &dyn Device,
        dy: View<'_>,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let Some(at) = &self.bias else { return Ok(()) };
        let whole = grads.of(at);
        if !whole.is_empty() {
            return device.column_sums(dy, whole);
        }
        // Contiguous tensors are parts of one bias, each of which may be frozen. Sums start from
        // the gradients so far, as those of the whole bias do. Such a run is rare enough for a
        // buffer of its own.
        let place = |part: &Range<usize>| part.start - at.start..part.end - at.start;
        let mut sums = None;
        for (part, values) in grads.trained_ranges(at) {
            let sums = match &mut sums {
                Some(sums) => sums,
                none => {
                    let mut new = device.allocate(Dtype::F32, at.len())?;
                    device.fill(new.view_mut(), 0.0)?;
                    none.insert(new)
                }
            };
            device.copy(values.as_view(), sums.view_mut().range(place(&part)))?;
        }
        let Some(mut sums) = sums else { return Ok(()) };
        device.column_sums(dy, sums.view_mut())?;
        grads
            .trained_ranges(at)
            .try_for_each(|(part, values)| device.copy(sums.view().range(place(&part)), values))
    }

    /// Adds the gradients of a weight's trained parts, or sets them.
    fn weight_products(
        &self,
        device: &dyn Device,
        x: View<'_>,
        dy: View<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let num_rows = x.len() / self.num_inputs;
        // The weight's rows are columns of one operand, its columns those of the other.
        let outputs = (dy, self.num_outputs, Role::Gradient);
        let inputs = (x, self.num_inputs, Role::Activation);
        let ((rows_of, num_rows_of, left_role), (cols_of, num_cols, right_role)) = match self.layout
        {
            WeightLayout::OutIn => (outputs, inputs),
            WeightLayout::InOut => (inputs, outputs),
        };
        let write = grads.write();
        for (at, grads) in grads.trained_ranges(&self.weight) {
            // Contiguous tensors are rows of one weight, each of which may be frozen.
            let (first, num) = ((at.start - self.weight.start) / num_cols, at.len() / num_cols);
            let rows_of = rows_of.range(first..rows_of.len());
            let left = Matrix::strided(rows_of, num_rows, num, num_rows_of).t();
            let left = left.in_role(left_role);
            let right = Matrix::new(cols_of, num_rows, num_cols).in_role(right_role);
            let grads = MatrixMut::new(grads, num, num_cols);
            device.product(self.precision(), left, right, grads, write, Epilogue::None)?;
        }
        Ok(())
    }

    /// The weight as an inputs x outputs matrix, for either layout.
    fn weight_io<'a>(&self, params: View<'a>) -> Matrix<'a> {
        let weight = params.range(self.weight.clone());
        let weight = match self.layout {
            WeightLayout::OutIn => Matrix::new(weight, self.num_outputs, self.num_inputs).t(),
            WeightLayout::InOut => Matrix::new(weight, self.num_inputs, self.num_outputs),
        };
        weight.in_role(Role::Weight)
    }
}

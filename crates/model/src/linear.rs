//! Linear layer on a block's flat buffers: three products and a bias.
//!
//! The two families store the matrix in different layouts: Llama with a row per output, GPT-2 with
//! a row per input (Conv1D in Hugging Face). Both are views of one product; neither is transposed
//! in memory. Several contiguous tensors (q, k, v; gate, up) form one linear layer with one
//! product.
//!
//! Weights, inputs and gradients are `f32` in memory; packing rounds them to the layer's precision
//! for the product. A bias is added in `f32`.

use crate::grads::Grads;
use crate::param::{Init, ParamList};
use lockstep_tensor::gemm::{Mat, MatMut, Precision, Write, product};
use lockstep_tensor::{Cpu, bias};
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
    /// Elements of the weight.
    pub weight: Range<usize>,
    /// Elements of the bias, if it has one.
    pub bias: Option<Range<usize>>,
    /// Precision of the three products.
    pub precision: Precision,
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
        let (layout, precision) = (WeightLayout::OutIn, Precision::F32);
        Self { num_inputs, num_outputs, layout, weight, bias: Some(bias), precision }
    }

    /// FLOPs of the product for one row.
    pub const fn flops(&self) -> u64 {
        2 * (self.num_inputs * self.num_outputs) as u64
    }

    /// Overwrites `y`.
    pub fn forward(&self, cpu: &Cpu, params: &[f32], x: &[f32], y: &mut [f32]) {
        let bias = self.bias.as_ref().map(|at| &params[at.clone()]);
        self.product_with(cpu, params, x, y, Write::Set, bias);
    }

    /// Sets `y` to the product, or adds it, without the bias.
    pub fn product(&self, cpu: &Cpu, params: &[f32], x: &[f32], y: &mut [f32], write: Write) {
        self.product_with(cpu, params, x, y, write, None);
    }

    fn product_with(
        &self,
        cpu: &Cpu,
        params: &[f32],
        x: &[f32],
        y: &mut [f32],
        write: Write,
        bias: Option<&[f32]>,
    ) {
        let num_rows = x.len() / self.num_inputs;
        let y_mat = MatMut::new(y, num_rows, self.num_outputs);
        let x_mat = Mat::new(x, num_rows, self.num_inputs);
        product(cpu, self.precision, x_mat, self.weight_io(params), y_mat, write, bias);
    }

    /// Overwrites `dx` with the gradient of the input.
    pub fn backward_input(&self, cpu: &Cpu, params: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.input_product(cpu, params, dy, dx, Write::Set);
    }

    /// Sets `dx` to the gradient of the input, or adds it.
    pub fn input_product(
        &self,
        cpu: &Cpu,
        params: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        write: Write,
    ) {
        let num_rows = dy.len() / self.num_outputs;
        let dx = MatMut::new(dx, num_rows, self.num_inputs);
        let dy = Mat::new(dy, num_rows, self.num_outputs);
        product(cpu, self.precision, dy, self.weight_io(params).t(), dx, write, None);
    }

    /// Adds the gradients of trained weight and bias to `grads`.
    pub fn backward_weight(&self, cpu: &Cpu, x: &[f32], dy: &[f32], mut grads: Grads<'_>) {
        let num_rows = x.len() / self.num_inputs;
        if let Some(at) = &self.bias {
            let grads = grads.of(at);
            if !grads.is_empty() {
                bias::backward(cpu, dy, grads);
            }
        }
        // The weight's rows are columns of one operand, its columns those of the other.
        let ((rows_of, num_rows_of), (cols_of, num_cols)) = match self.layout {
            WeightLayout::OutIn => ((dy, self.num_outputs), (x, self.num_inputs)),
            WeightLayout::InOut => ((x, self.num_inputs), (dy, self.num_outputs)),
        };
        for (at, grads) in grads.trained_ranges(&self.weight) {
            // Contiguous tensors are rows of one weight, each of which may be frozen.
            let (first, num) = ((at.start - self.weight.start) / num_cols, at.len() / num_cols);
            let left = Mat::strided(&rows_of[first..], num_rows, num, num_rows_of).t();
            let right = Mat::new(cols_of, num_rows, num_cols);
            let grads = MatMut::new(grads, num, num_cols);
            product(cpu, self.precision, left, right, grads, Write::Add, None);
        }
    }

    /// The weight as an inputs x outputs matrix, for either layout.
    fn weight_io<'a>(&self, params: &'a [f32]) -> Mat<'a> {
        let weight = &params[self.weight.clone()];
        match self.layout {
            WeightLayout::OutIn => Mat::new(weight, self.num_outputs, self.num_inputs).t(),
            WeightLayout::InOut => Mat::new(weight, self.num_inputs, self.num_outputs),
        }
    }
}

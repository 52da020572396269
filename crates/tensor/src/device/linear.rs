//! Operands of backward of a linear layer.

use super::error::Result;
use super::layers::Layers;
use super::operands::{Epilogue, Matrix, MatrixMut};
use super::view::{View, ViewMut};
use crate::gemm::Write;
use std::ops::Range;

/// Gradient of a linear layer's output, dense: stored, or still to be computed.
#[derive(Debug)]
pub enum OutputGradient<'a> {
    /// Stored.
    Stored(View<'a>),
    /// The gradient of SwiGLU, which follows the layer.
    SwiGlu {
        /// Output of the layer: rows of `ffn` gates, then `ffn` ups.
        gate_up: View<'a>,
        /// Number of gates of a row.
        ffn: usize,
        /// Gradient of SwiGLU's output.
        d_act: View<'a>,
        /// Memory for the gradient; undefined where it is not needed.
        place: ViewMut<'a>,
    },
}

impl<'a> OutputGradient<'a> {
    /// The stored gradient, computed first where it is not.
    pub fn compute<D: Layers + ?Sized>(self, device: &D) -> Result<View<'a>> {
        match self {
            Self::Stored(dy) => Ok(dy),
            Self::SwiGlu { gate_up, ffn, d_act, mut place } => {
                let none = ViewMut::of::<f32>(&mut []);
                device.swiglu_backward(gate_up, ffn, d_act, place.reborrow(), none)?;
                Ok(place.into_view())
            }
        }
    }

    /// Whole rows of it.
    pub fn range(&mut self, elements: Range<usize>) -> OutputGradient<'_> {
        match self {
            Self::Stored(dy) => OutputGradient::Stored(dy.range(elements)),
            Self::SwiGlu { gate_up, ffn, d_act, place } => OutputGradient::SwiGlu {
                gate_up: gate_up.range(elements.clone()),
                ffn: *ffn,
                d_act: d_act.range(elements.start / 2..elements.end / 2),
                place: place.reborrow().range(elements),
            },
        }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::Stored(dy) => dy.len(),
            Self::SwiGlu { gate_up, .. } => gate_up.len(),
        }
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The two gradients that backward of a linear layer computes from that of its output.
#[derive(Debug)]
pub struct LinearGradients<'a> {
    /// Weight as an outputs x inputs operand.
    pub weight: Matrix<'a>,
    /// Gradient of the input, whether it is added, and the operation on it.
    pub d_input: (MatrixMut<'a>, Write, Epilogue<'a>),
    /// Input, rows x inputs.
    pub input: Matrix<'a>,
    /// Gradient of the weight, stored as the weight is, and whether it is added.
    pub d_weight: (MatrixMut<'a>, Write),
}

impl LinearGradients<'_> {
    /// Rows, inputs and outputs.
    pub(crate) const fn shape(&self) -> (usize, usize, usize) {
        let (outputs, inputs) = self.weight.shape();
        (self.input.rows, inputs, outputs)
    }
}

//! Bias: one learned value per column, added to every row.
//!
//! The gradient of the bias is the sum of the rows of the output gradient, one chain per column
//! with rows ascending (see [`crate::reduce::column_sums`]); the gradient of the input is the
//! output gradient itself.
//!
//! Shapes: t tokens (rows), n features (columns).

use crate::Cpu;
use crate::reduce::{add_into, column_sums};
use crate::simd::{Kernel, Simd};

/// Rows of a task.
const ROWS: usize = 16;

/// Adds the bias to every row.
pub fn add(cpu: &Cpu, x_tn: &mut [f32], bias_n: &[f32]) {
    let width = bias_n.len();
    assert!(width > 0 && x_tn.len().is_multiple_of(width), "whole rows of {width} columns");
    cpu.for_each_part(x_tn, ROWS * width, |_, x_tn| cpu.run(AddRows { x_tn, bias_n }));
}

/// Adds the gradient of the bias.
pub fn backward(cpu: &Cpu, dy_tn: &[f32], dbias_n: &mut [f32]) {
    column_sums(cpu, dy_tn, dbias_n);
}

struct AddRows<'a> {
    x_tn: &'a mut [f32],
    bias_n: &'a [f32],
}

impl Kernel for AddRows<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x_tn.chunks_exact_mut(self.bias_n.len()) {
            add_into(s, self.bias_n, x);
        }
    }
}

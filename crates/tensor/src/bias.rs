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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::{
        ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
    };
    use crate::reference;

    #[test]
    fn addition_matches_the_reference_on_odd_shapes() {
        for width in ODD_WIDTHS {
            for num_rows in [0, 1, 2, 16, 33] {
                let (x, bias) = (numbers(1, num_rows * width), numbers(2, width));
                let got = same_bits_everywhere(|cpu| {
                    let mut y = x.clone();
                    add(cpu, &mut y, &bias);
                    y
                });
                assert_close(&got, &reference::bias::add(&wide(&x), &wide(&bias)), 1);
            }
        }
    }

    #[test]
    fn backward_matches_the_reference_and_adds() {
        for width in ODD_WIDTHS {
            for num_rows in [0, 1, 2, 16, 33] {
                let dy = numbers(3, num_rows * width);
                let got = same_bits_everywhere(|cpu| {
                    let mut dbias = vec![0.5; width];
                    backward(cpu, &dy, &mut dbias);
                    dbias
                });
                let expected = reference::bias::backward(&wide(&dy), width);
                let expected: Vec<f64> = expected.iter().map(|x| 0.5 + x).collect();
                assert_close(&got, &expected, num_rows);
            }
        }
    }

    #[test]
    fn backward_matches_central_differences() {
        let (num_rows, width) = (5, 17);
        let (x, bias) = (numbers(4, num_rows * width), numbers(5, width));
        let dy = numbers(6, x.len());
        let expected = central_differences(&bias, |bias| {
            dot(&reference::bias::add(&wide(&x), bias), &wide(&dy))
        });
        let mut dbias = vec![0.0; width];
        backward(&Cpu::single(crate::Isa::detect()), &dy, &mut dbias);
        assert_close(&dbias, &expected, num_rows);
    }

    #[test]
    #[should_panic(expected = "whole rows of 3 columns")]
    fn an_incomplete_row_is_refused() {
        add(&Cpu::single(crate::Isa::Portable), &mut [0.0; 7], &[0.0; 3]);
    }
}

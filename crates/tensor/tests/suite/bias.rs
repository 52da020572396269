//! Bias addition and its gradient against their definition and against differences.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::bias::{add, backward};
use lockstep_tensor::{Cpu, Isa, reference};

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
    let expected =
        central_differences(&bias, |bias| dot(&reference::bias::add(&wide(&x), bias), &wide(&dy)));
    let mut dbias = vec![0.0; width];
    backward(&Cpu::single(Isa::detect()), &dy, &mut dbias);
    assert_close(&dbias, &expected, num_rows);
}

#[test]
#[should_panic(expected = "whole rows of 3 columns")]
fn an_incomplete_row_is_refused() {
    add(&Cpu::single(Isa::Portable), &mut [0.0; 7], &[0.0; 3]);
}

//! The soft cap against the reference and against differences.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::soft_cap::{backward, forward};
use lockstep_tensor::{Cpu, Isa, reference};

const CAP: f32 = 3.0;

fn run_forward(cpu: &Cpu, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    forward(cpu, CAP, &mut y);
    y
}

fn run_backward(cpu: &Cpu, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let (y, mut dx) = (run_forward(cpu, x), dy.to_vec());
    backward(cpu, CAP, &y, &mut dx);
    dx
}

#[test]
fn forward_and_backward_match_the_reference_on_odd_lengths() {
    for len in ODD_WIDTHS {
        let x: Vec<f32> = numbers(1, len).iter().map(|x| 4.0 * x).collect();
        let dy = numbers(2, len);
        let y = same_bits_everywhere(|cpu| run_forward(cpu, &x));
        assert_close(&y, &reference::soft_cap::forward(CAP.into(), &wide(&x)), 1);
        let dx = same_bits_everywhere(|cpu| run_backward(cpu, &x, &dy));
        assert_close(&dx, &reference::soft_cap::backward(CAP.into(), &wide(&x), &wide(&dy)), 1);
    }
}

#[test]
fn backward_matches_central_differences() {
    let (x, dy) = (numbers(3, 67), numbers(4, 67));
    let got = run_backward(&Cpu::single(Isa::detect()), &x, &dy);
    let loss = |x: &[f64]| dot(&reference::soft_cap::forward(CAP.into(), x), &wide(&dy));
    assert_close(&got, &central_differences(&x, loss), 1);
}

#[test]
fn huge_logits_reach_the_cap_and_not_more() {
    let y = run_forward(&Cpu::single(Isa::detect()), &[1e30, -1e30, 0.0, 1e-3]);
    assert_eq!(y[..3], [CAP, -CAP, 0.0]);
    assert!((y[3] - 1e-3).abs() < 1e-9, "small logits keep their size: {}", y[3]);
}

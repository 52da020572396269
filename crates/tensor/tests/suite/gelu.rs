//! GELU against its definition and against differences, and at the edges of its range.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::gelu::{backward, forward};
use lockstep_tensor::internals::POINTWISE_ELEMENTS;
use lockstep_tensor::{Cpu, Isa, reference};

fn run_forward(cpu: &Cpu, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    forward(cpu, x, &mut y);
    y
}

fn run_backward(cpu: &Cpu, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let mut dx = vec![f32::NAN; x.len()];
    backward(cpu, x, dy, &mut dx);
    dx
}

#[test]
fn forward_and_backward_match_the_reference_on_odd_lengths() {
    for len in
        ODD_WIDTHS.into_iter().chain([0, POINTWISE_ELEMENTS + 1, 2 * POINTWISE_ELEMENTS + 35])
    {
        let x: Vec<f32> = numbers(1, len).iter().map(|x| 3.0 * x).collect();
        let dy = numbers(2, len);
        let y = same_bits_everywhere(|cpu| run_forward(cpu, &x));
        assert_close(&y, &reference::gelu::forward(&wide(&x)), 1);
        let dx = same_bits_everywhere(|cpu| run_backward(cpu, &x, &dy));
        assert_close(&dx, &reference::gelu::backward(&wide(&x), &wide(&dy)), 1);
    }
}

#[test]
fn backward_matches_central_differences() {
    let (x, dy) = (numbers(3, 67), numbers(4, 67));
    let got = run_backward(&Cpu::single(Isa::detect()), &x, &dy);
    let expected = central_differences(&x, |x| dot(&reference::gelu::forward(x), &wide(&dy)));
    assert_close(&got, &expected, 1);
}

#[test]
fn the_negative_tail_keeps_its_digits() {
    let x: Vec<f32> = (0..500).map(|i| -f32::from(i as i16) / 100.0).collect();
    let y = run_forward(&Cpu::single(Isa::detect()), &x);
    // Here the sigmoid is e^v, and the rounding of v (up to 16) is magnified that often.
    for ((x, y), exact) in x.iter().zip(&y).zip(reference::gelu::forward(&wide(&x))) {
        assert!((f64::from(*y) - exact).abs() <= 3e-6 * exact.abs(), "{x}: {y} is not {exact}");
    }
}

#[test]
fn huge_inputs_saturate_and_nan_propagates() {
    let cpu = Cpu::single(Isa::detect());
    let x = [20.0, -20.0, 1e20, -1e20, f32::MAX, f32::MIN];
    assert_eq!(run_forward(&cpu, &x), [20.0, 0.0, 1e20, 0.0, f32::MAX, 0.0]);
    assert_eq!(run_backward(&cpu, &x, &[1.0; 6]), [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    assert!(run_forward(&cpu, &[f32::NAN])[0].is_nan());
    assert!(run_backward(&cpu, &[f32::NAN], &[1.0])[0].is_nan());
}

//! GELU with the error function against its definition and against differences, and at the edges of
//! its range.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::gelu_erf::{backward, forward};
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
        assert_close(&y, &reference::gelu_erf::forward(&wide(&x)), 1);
        let dx = same_bits_everywhere(|cpu| run_backward(cpu, &x, &dy));
        assert_close(&dx, &reference::gelu_erf::backward(&wide(&x), &wide(&dy)), 1);
    }
}

#[test]
fn backward_matches_central_differences() {
    let (x, dy) = (numbers(3, 67), numbers(4, 67));
    let got = run_backward(&Cpu::single(Isa::detect()), &x, &dy);
    let expected = central_differences(&x, |x| dot(&reference::gelu_erf::forward(x), &wide(&dy)));
    assert_close(&got, &expected, 1);
}

#[test]
fn it_differs_from_the_tanh_form_where_that_is_an_approximation() {
    let x: Vec<f32> = (-60..=60).map(|i| i as f32 / 10.0).collect();
    let y = run_forward(&Cpu::single(Isa::detect()), &x);
    let exact = reference::gelu_erf::forward(&wide(&x));
    for ((x, y), exact) in x.iter().zip(&y).zip(exact) {
        assert!((f64::from(*y) - exact).abs() <= 6e-8 * (1.0 + f64::from(x.abs())), "{x}: {y}");
    }
    let tanh = reference::gelu::forward(&wide(&x));
    let most = y.iter().zip(tanh).map(|(y, tanh)| (f64::from(*y) - tanh).abs()).fold(0.0, f64::max);
    assert!((4e-4..6e-4).contains(&most), "{most}");
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

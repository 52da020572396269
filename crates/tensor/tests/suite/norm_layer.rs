//! LayerNorm against its definition, against differences, and against itself on other devices.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::norm_layer::{backward, forward, normalize};
use lockstep_tensor::{Cpu, Isa, reference};

const EPS: f32 = 1e-5;
const NUM_ROWS: [usize; 4] = [1, 2, 17, 33];

/// Input, weight, bias and output gradient of one case.
struct Case {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
}

impl Case {
    fn new(seed: u32, num_rows: usize, width: usize) -> Self {
        Self {
            x: numbers(seed, num_rows * width),
            weight: numbers(seed + 1, width),
            bias: numbers(seed + 2, width),
            dy: numbers(seed + 3, num_rows * width),
        }
    }

    /// Output, means, factors.
    fn forward(&self, cpu: &Cpu) -> [Vec<f32>; 3] {
        let num_rows = self.x.len() / self.weight.len();
        let mut y = vec![f32::NAN; self.x.len()];
        let (mut mean, mut rstd) = (vec![f32::NAN; num_rows], vec![f32::NAN; num_rows]);
        let Self { x, weight, bias, .. } = self;
        forward(cpu, x, weight, bias, EPS, &mut y, &mut mean, &mut rstd);
        [y, mean, rstd]
    }

    /// Gradients of input, weight and bias, each added to `start`.
    fn backward(&self, cpu: &Cpu, start: f32) -> [Vec<f32>; 3] {
        let [_, mean, rstd] = self.forward(cpu);
        let Self { x, weight, dy, .. } = self;
        let mut dx = vec![start; x.len()];
        let (mut dweight, mut dbias) = (vec![start; weight.len()], vec![start; weight.len()]);
        backward(cpu, x, weight, &mean, &rstd, dy, &mut dx, &mut dweight, &mut dbias);
        [dx, dweight, dbias]
    }

    fn reference_backward(&self) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let (x, weight) = (wide(&self.x), wide(&self.weight));
        reference::norm_layer::backward(&x, &weight, EPS.into(), &wide(&self.dy))
    }
}

#[test]
fn forward_matches_the_reference_on_odd_shapes() {
    // A row of one is its own mean, and a row of two may have a variance near zero: their results
    // are mostly rounding, so they are compared on other data below.
    for width in &ODD_WIDTHS[2..] {
        for num_rows in NUM_ROWS {
            let case = Case::new(1, num_rows, *width);
            same_bits_everywhere(|cpu| case.forward(cpu).concat());
            let [y, mean, rstd] = case.forward(&Cpu::single(Isa::detect()));
            let (x, weight, bias) = (wide(&case.x), wide(&case.weight), wide(&case.bias));
            let expected = reference::norm_layer::forward(&x, &weight, &bias, EPS.into());
            assert_close(&y, &expected.0, *width);
            assert_close(&mean, &expected.1, *width);
            assert_close(&rstd, &expected.2, *width);
        }
    }
}

#[test]
fn tiny_rows_match_the_reference() {
    let case = Case {
        x: vec![1.0, -3.0, 0.5, 2.0],
        weight: vec![2.0, 0.5],
        bias: vec![0.25, -1.0],
        dy: vec![1.0, -0.5, 0.75, 2.0],
    };
    let got = same_bits_everywhere(|cpu| case.backward(cpu, 0.0).concat());
    let (dx, dweight, dbias) = case.reference_backward();
    assert_close(&got, &[dx, dweight, dbias].concat(), 2);

    let single = Case { x: vec![7.0], weight: vec![3.0], bias: vec![0.5], dy: vec![2.0] };
    let [y, mean, _] = single.forward(&Cpu::single(Isa::detect()));
    assert_eq!((y[0], mean[0]), (0.5, 7.0), "a row of one is its mean: only the bias is left");
}

#[test]
fn a_large_mean_does_not_cancel_the_variance() {
    let width = 257;
    let mut case = Case::new(5, 3, width);
    for x in &mut case.x {
        *x += 4096.0;
    }
    let [_, _, rstd] = case.forward(&Cpu::single(Isa::detect()));
    let (x, weight, bias) = (wide(&case.x), wide(&case.weight), wide(&case.bias));
    let (_, _, expected) = reference::norm_layer::forward(&x, &weight, &bias, EPS.into());
    assert_close(&rstd, &expected, width);
}

#[test]
fn normalize_repeats_the_bits_of_forward() {
    for width in ODD_WIDTHS {
        let case = Case::new(9, 19, width);
        same_bits_everywhere(|cpu| {
            let [y, mean, rstd] = case.forward(cpu);
            let mut recomputed = vec![f32::NAN; y.len()];
            normalize(cpu, &case.x, &case.weight, &case.bias, &mean, &rstd, &mut recomputed);
            assert_eq!(recomputed, y);
            recomputed
        });
    }
}

#[test]
fn backward_matches_the_reference_on_odd_shapes() {
    for width in &ODD_WIDTHS[2..] {
        for num_rows in NUM_ROWS {
            let case = Case::new(13, num_rows, *width);
            same_bits_everywhere(|cpu| case.backward(cpu, 0.5).concat());
            let [dx, dweight, dbias] = case.backward(&Cpu::single(Isa::detect()), 0.5);
            let expected = case.reference_backward();
            let added = |x: Vec<f64>| x.iter().map(|x| 0.5 + x).collect::<Vec<_>>();
            assert_close(&dx, &added(expected.0), *width);
            assert_close(&dweight, &added(expected.1), num_rows);
            assert_close(&dbias, &added(expected.2), num_rows);
        }
    }
}

#[test]
fn backward_matches_central_differences() {
    for (num_rows, width) in [(1, 5), (3, 17), (2, 33)] {
        let case = Case::new(17, num_rows, width);
        let (x, weight, bias) = (wide(&case.x), wide(&case.weight), wide(&case.bias));
        let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
            dot(&reference::norm_layer::forward(x, weight, bias, EPS.into()).0, &wide(&case.dy))
        };
        let [dx, dweight, dbias] = case.backward(&Cpu::single(Isa::detect()), 0.0);
        assert_close(&dx, &central_differences(&case.x, |x| loss(x, &weight, &bias)), width);
        let expected = central_differences(&case.weight, |weight| loss(&x, weight, &bias));
        assert_close(&dweight, &expected, num_rows);
        let expected = central_differences(&case.bias, |bias| loss(&x, &weight, bias));
        assert_close(&dbias, &expected, num_rows);
    }
}

#[test]
fn weight_and_bias_gradients_are_one_chain_over_ascending_rows() {
    let (num_rows, width) = (37, 65);
    let case = Case::new(21, num_rows, width);
    same_bits_everywhere(|cpu| case.backward(cpu, 0.25).concat());
    let cpu = Cpu::single(Isa::detect());
    let [_, mean, rstd] = case.forward(&cpu);
    let [_, dweight, dbias] = case.backward(&cpu, 0.25);
    for j in 0..width {
        let (mut weight_sum, mut bias_sum) = (0.0f32, 0.0f32);
        for row in 0..num_rows {
            let (x, dy) = (case.x[row * width + j], case.dy[row * width + j]);
            weight_sum = dy.mul_add((x - mean[row]) * rstd[row], weight_sum);
            bias_sum += dy;
        }
        assert_eq!(dweight[j].to_bits(), (0.25 + weight_sum).to_bits(), "weight {j}");
        assert_eq!(dbias[j].to_bits(), (0.25 + bias_sum).to_bits(), "bias {j}");
    }
}

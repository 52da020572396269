//! RMSNorm against its definition, against differences, and against itself on other devices.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::norm_rms::{Scale, backward, forward, normalize};
use lockstep_tensor::{Cpu, Isa, reference};

const EPS: f32 = 1e-5;
const NUM_ROWS: [usize; 4] = [1, 2, 17, 33];

/// Output, then factors.
fn run_forward(cpu: &Cpu, x: &[f32], weight: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut y, mut rstd) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len() / weight.len()]);
    forward(cpu, x, weight, EPS, &mut y, &mut rstd);
    (y, rstd)
}

/// Input gradient, then weight gradient, each added to `start`.
fn run_backward(cpu: &Cpu, x: &[f32], weight: &[f32], dy: &[f32], start: f32) -> Vec<f32> {
    let (_, rstd) = run_forward(cpu, x, weight);
    let (mut dx, mut dweight) = (vec![start; x.len()], vec![start; weight.len()]);
    backward(cpu, x, weight, &rstd, dy, &mut dx, &mut dweight);
    [dx, dweight].concat()
}

#[test]
fn forward_matches_the_reference_on_odd_shapes() {
    for width in ODD_WIDTHS {
        for num_rows in NUM_ROWS {
            let (x, weight) = (numbers(1, num_rows * width), numbers(2, width));
            let got = same_bits_everywhere(|cpu| {
                let (y, rstd) = run_forward(cpu, &x, &weight);
                [y, rstd].concat()
            });
            let (y, rstd) = reference::norm_rms::forward(&wide(&x), &wide(&weight), EPS.into());
            assert_close(&got[..x.len()], &y, width);
            assert_close(&got[x.len()..], &rstd, width);
        }
    }
}

#[test]
fn normalize_repeats_the_bits_of_forward() {
    for width in ODD_WIDTHS {
        let (x, weight) = (numbers(3, 19 * width), numbers(4, width));
        same_bits_everywhere(|cpu| {
            let (y, rstd) = run_forward(cpu, &x, &weight);
            let mut recomputed = vec![f32::NAN; x.len()];
            normalize(cpu, &x, &weight, &rstd, &mut recomputed);
            assert_eq!(recomputed, y);
            recomputed
        });
    }
}

#[test]
fn backward_matches_the_reference_on_odd_shapes() {
    for width in ODD_WIDTHS {
        for num_rows in NUM_ROWS {
            let (x, weight) = (numbers(5, num_rows * width), numbers(6, width));
            let dy = numbers(7, x.len());
            let got = same_bits_everywhere(|cpu| run_backward(cpu, &x, &weight, &dy, 0.5));
            let (dx, dweight) =
                reference::norm_rms::backward(&wide(&x), &wide(&weight), EPS.into(), &wide(&dy));
            let added = |x: &f64| 0.5 + x;
            let (dx, dweight): (Vec<_>, Vec<_>) =
                (dx.iter().map(added).collect(), dweight.iter().map(added).collect());
            assert_close(&got[..x.len()], &dx, width);
            assert_close(&got[x.len()..], &dweight, num_rows);
        }
    }
}

#[test]
fn backward_matches_central_differences() {
    for (num_rows, width) in [(1, 2), (3, 17), (2, 33)] {
        let (x, weight) = (numbers(8, num_rows * width), numbers(9, width));
        let dy = numbers(10, x.len());
        let loss = |x: &[f64], weight: &[f64]| {
            dot(&reference::norm_rms::forward(x, weight, EPS.into()).0, &wide(&dy))
        };
        let dx = central_differences(&x, |x| loss(x, &wide(&weight)));
        let dweight = central_differences(&weight, |weight| loss(&wide(&x), weight));
        let got = run_backward(&Cpu::single(Isa::detect()), &x, &weight, &dy, 0.0);
        assert_close(&got[..x.len()], &dx, width);
        assert_close(&got[x.len()..], &dweight, num_rows);
    }
}

#[test]
fn the_weight_gradient_is_one_chain_over_ascending_rows() {
    let (num_rows, width) = (37, 65);
    let (x, weight) = (numbers(11, num_rows * width), numbers(12, width));
    let dy = numbers(13, x.len());
    let got = same_bits_everywhere(|cpu| {
        let (_, rstd) = run_forward(cpu, &x, &weight);
        let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.25; width]);
        backward(cpu, &x, &weight, &rstd, &dy, &mut dx, &mut dweight);
        [dweight, rstd].concat()
    });
    let (dweight, rstd) = got.split_at(width);
    for (j, got) in dweight.iter().enumerate() {
        let mut sum = 0.0f32;
        for (row, rstd) in rstd.iter().enumerate() {
            sum = dy[row * width + j].mul_add(x[row * width + j] * rstd, sum);
        }
        assert_eq!(got.to_bits(), (0.25 + sum).to_bits(), "column {j}");
    }
}

#[test]
#[should_panic(expected = "one factor for each row")]
fn a_row_without_its_factor_is_refused() {
    let cpu = Cpu::single(Isa::Portable);
    normalize(&cpu, &[0.0; 6], &[1.0; 3][..], &[1.0; 3], &mut [0.0; 6]);
}

#[test]
fn a_scale_of_one_plus_the_weight_gives_the_bits_of_that_weight() {
    for width in ODD_WIDTHS {
        let (x, dy, weight) = (numbers(7, 5 * width), numbers(8, 5 * width), numbers(9, width));
        let scale = Scale { weight_c: &weight, adds_one: true };
        let sum: Vec<f32> = weight.iter().map(|weight| weight + 1.0).collect();
        let cpu = Cpu::single(Isa::detect());
        let (y, rstd) = run_forward(&cpu, &x, &sum);
        let (mut got, mut factors) = (vec![f32::NAN; x.len()], vec![f32::NAN; rstd.len()]);
        forward(&cpu, &x, scale, EPS, &mut got, &mut factors);
        assert_eq!((&got, &factors), (&y, &rstd));
        got.fill(f32::NAN);
        normalize(&cpu, &x, scale, &rstd, &mut got);
        assert_eq!(got, y);
        let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.0; width]);
        backward(&cpu, &x, scale, &rstd, &dy, &mut dx, &mut dweight);
        assert_eq!([dx, dweight].concat(), run_backward(&cpu, &x, &sum, &dy, 0.0));
    }
}

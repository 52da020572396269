//! GELU (Hendrycks and Gimpel 2016) in its tanh approximation, the activation of the GPT-2 family.
//!
//! The definition is `x/2 · (1 + tanh(u))` with `u = sqrt(2/π) · (x + 0.044715 x³)`. Because
//! `(1 + tanh(u)) / 2 = sigmoid(2u)`, it is also `x · sigmoid(v)` with `v = 2u`, which does not
//! cancel for negative `x`. The derivative of that is exact for this form:
//! `sigmoid(v) + x · sigmoid'(v) · v'`.

use crate::Cpu;
use crate::math::{sigmoid, sigmoid_and_slope};
use crate::pointwise::{self, Function};
use crate::simd::Simd;

/// `2 sqrt(2/π)`.
const SLOPE: f32 = 1.595_769;
const CUBIC: f32 = 0.044_715;

/// Sets `y` to the activation of `x`.
pub fn forward(cpu: &Cpu, x: &[f32], y: &mut [f32]) {
    pointwise::forward::<Gelu>(cpu, x, y);
}

/// Sets `dx` to the gradient of `x`, given `dy`.
pub fn backward(cpu: &Cpu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    pointwise::backward::<Gelu>(cpu, x, dy, dx);
}

struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn value<S: Simd>(s: S, x: S::V) -> S::V {
        let (v, _) = argument(s, x);
        s.mul(x, sigmoid(s, v))
    }

    #[inline(always)]
    fn gradient<S: Simd>(s: S, x: S::V, dy: S::V) -> S::V {
        let (v, dv) = argument(s, x);
        let (sigmoid, slope) = sigmoid_and_slope(s, v);
        s.mul(dy, s.fma(s.mul(x, slope), dv, sigmoid))
    }
}

/// The sigmoid's argument `v` and its derivative by `x`.
#[inline(always)]
fn argument<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    // Beyond 12 the sigmoid is exactly 0 or 1 and its slope exactly 0; clamping keeps the cube of a
    // huge x finite, because infinity times 0 would be NaN.
    let x = s.min(s.splat(12.0), s.max(s.splat(-12.0), x));
    let square = s.mul(x, x);
    let v = s.mul(x, s.fma(square, s.splat(SLOPE * CUBIC), s.splat(SLOPE)));
    let dv = s.fma(square, s.splat(3.0 * SLOPE * CUBIC), s.splat(SLOPE));
    (v, dv)
}

#[cfg(test)]
mod tests {
    use super::{backward, forward};
    use crate::pointwise::ELEMENTS;
    use crate::reduce::testing::{
        ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
    };
    use crate::{Cpu, Isa, reference};

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
        for len in ODD_WIDTHS.into_iter().chain([0, ELEMENTS + 1, 2 * ELEMENTS + 35]) {
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
}

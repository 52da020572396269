//! The positive part, the plainest activation.
//!
//! `y = x` above zero and 0 elsewhere; the gradient passes where the input was above zero. What is
//! not a number stays so, because a rectifier that hid it would hide a divergence.

use crate::Cpu;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Elements of a task.
const ELEMENTS: usize = 8192;

/// Sets `y` to the activation of `x`.
pub fn forward(cpu: &Cpu, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "input and output have one shape");
    cpu.for_each_part(y, ELEMENTS, |i, y| {
        cpu.run(Forward { x: &x[i * ELEMENTS..][..y.len()], y });
    });
}

/// Sets `dx` to the gradient of `x`, given `dy`.
pub fn backward(cpu: &Cpu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "input and output gradient have one shape");
    assert_eq!(x.len(), dx.len(), "input and input gradient have one shape");
    cpu.for_each_part(dx, ELEMENTS, |i, dx| {
        let part = i * ELEMENTS..i * ELEMENTS + dx.len();
        cpu.run(Backward { x: &x[part.clone()], dy: &dy[part], dx });
    });
}

struct Forward<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..num_groups(self.x) {
            let x = load(s, self.x, i);
            store(s, s.select_lt(x, s.zero(), s.zero(), x), self.y, i);
        }
    }
}

struct Backward<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..num_groups(self.x) {
            let (x, dy) = (load(s, self.x, i), load(s, self.dy, i));
            store(s, s.select_lt(s.zero(), x, dy, s.zero()), self.dx, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::testing::{
        assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
    };
    use crate::{Isa, reference};

    #[test]
    fn forward_and_backward_match_the_reference() {
        for len in [0, 1, 15, 16, 17, 8192, 8193] {
            let (x, dy) = (numbers(1, len), numbers(2, len));
            let y = same_bits_everywhere(|cpu| {
                let mut y = vec![0.5; len];
                forward(cpu, &x, &mut y);
                y
            });
            assert_close(&y, &reference::relu::forward(&wide(&x)), 1);
            let dx = same_bits_everywhere(|cpu| {
                let mut dx = vec![0.5; len];
                backward(cpu, &x, &dy, &mut dx);
                dx
            });
            assert_close(&dx, &reference::relu::backward(&wide(&x), &wide(&dy)), 1);
        }
    }

    #[test]
    fn backward_matches_central_differences() {
        let (x, dy) = (numbers(3, 67), numbers(4, 67));
        let mut got = vec![0.5; 67];
        backward(&Cpu::single(Isa::detect()), &x, &dy, &mut got);
        let expected = central_differences(&x, |x| dot(&reference::relu::forward(x), &wide(&dy)));
        assert_close(&got, &expected, 1);
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        let cpu = Cpu::single(Isa::detect());
        let mut y = [0.0; 3];
        forward(&cpu, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &mut y);
        assert!(y[0].is_nan() && y[1].is_infinite() && y[2].abs() < f32::MIN_POSITIVE);
    }
}

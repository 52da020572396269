//! Soft cap of logits (Gemma 2): `y = cap · tanh(x / cap)`, with the derivative `1 - (y / cap)²`.

use crate::Cpu;
use crate::math::tanh;
use crate::pointwise::ELEMENTS;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Caps `x` in place.
pub fn forward(cpu: &Cpu, cap: f32, x: &mut [f32]) {
    cpu.for_each_part(x, ELEMENTS, |_, x| cpu.run(Forward { cap, x }));
}

/// Turns the gradient of `y`, which forward set, into that of its input, in place.
pub fn backward(cpu: &Cpu, cap: f32, y: &[f32], dy: &mut [f32]) {
    assert_eq!(y.len(), dy.len(), "output and gradient have one shape");
    cpu.for_each_part(dy, ELEMENTS, |i, dy| {
        cpu.run(Backward { cap, y: &y[i * ELEMENTS..][..dy.len()], dy });
    });
}

struct Forward<'a> {
    cap: f32,
    x: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cap, inverse) = (s.splat(self.cap), s.splat(1.0 / self.cap));
        for i in 0..num_groups(self.x) {
            let y = s.mul(cap, tanh(s, s.mul(load(s, self.x, i), inverse)));
            store(s, y, self.x, i);
        }
    }
}

struct Backward<'a> {
    cap: f32,
    y: &'a [f32],
    dy: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (inverse, one) = (s.splat(1.0 / self.cap), s.splat(1.0));
        for i in 0..num_groups(self.y) {
            let t = s.mul(load(s, self.y, i), inverse);
            let slope = s.fma(s.neg(t), t, one);
            store(s, s.mul(load(s, self.dy, i), slope), self.dy, i);
        }
    }
}

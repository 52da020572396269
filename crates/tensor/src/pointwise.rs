//! Elementwise activation functions, forward and backward: [`crate::gelu`], [`crate::relu`].

use crate::Cpu;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};
use std::marker::PhantomData;

/// Elements of a task.
pub(crate) const ELEMENTS: usize = 8192;

/// A function and its gradient; implementations must be `#[inline(always)]`.
pub(crate) trait Function: Send + Sync {
    /// Value of the function at `x`.
    fn value<S: Simd>(s: S, x: S::V) -> S::V;
    /// The gradient of `x`, given that of the value.
    fn gradient<S: Simd>(s: S, x: S::V, dy: S::V) -> S::V;
}

/// Sets `y` to the function of `x`.
pub(crate) fn forward<F: Function>(cpu: &Cpu, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "input and output have one shape");
    cpu.for_each_part(y, ELEMENTS, |i, y| {
        cpu.run(Forward { function: PhantomData::<F>, x: &x[i * ELEMENTS..][..y.len()], y });
    });
}

/// Sets `dx` to the gradient of `x`, given `dy`.
pub(crate) fn backward<F: Function>(cpu: &Cpu, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "input and output gradient have one shape");
    assert_eq!(x.len(), dx.len(), "input and input gradient have one shape");
    cpu.for_each_part(dx, ELEMENTS, |i, dx| {
        let part = i * ELEMENTS..i * ELEMENTS + dx.len();
        cpu.run(Backward { function: PhantomData::<F>, x: &x[part.clone()], dy: &dy[part], dx });
    });
}

struct Forward<'a, F> {
    function: PhantomData<F>,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<F: Function> Kernel for Forward<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..num_groups(self.x) {
            store(s, F::value(s, load(s, self.x, i)), self.y, i);
        }
    }
}

struct Backward<'a, F> {
    function: PhantomData<F>,
    x: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl<F: Function> Kernel for Backward<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..num_groups(self.x) {
            store(s, F::gradient(s, load(s, self.x, i), load(s, self.dy, i)), self.dx, i);
        }
    }
}

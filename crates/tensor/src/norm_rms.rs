//! RMSNorm (Zhang and Sennrich 2019): every row is divided by its root mean square and scaled by a
//! learned weight.
//!
//! With r = 1 / sqrt(mean(x²) + eps), the output is y = (x · r) · weight. Forward saves only r for
//! the backward pass: one number per row. The mean of squares uses sixteen `f32` accumulators
//! (element i to accumulator i % 16, each one chain of fused multiply-adds, ascending) that one
//! fixed tree adds; IEEE rounds the square root and the divisions exactly, so every CPU agrees.
//!
//! In Gemma's form the scale is 1 + weight, which is rounded once and then used like a weight.
//!
//! Backward, with g = dy · weight and n the width: dx += r · (g − x · r² · dot(g, x) / n) for each
//! row, and dweight += the column sums of dy · (x · r), rows ascending. Tasks of the first are
//! blocks of rows, tasks of the second blocks of columns, so no two tasks add to one element.
//!
//! Shapes: t tokens (rows), c width (columns).

use crate::Cpu;
use crate::reduce::columns::{Terms, add_column_sums, row_part};
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Rows of a task.
const ROWS: usize = 16;

/// Scale of the columns.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a> {
    /// The learned weight.
    pub weight_c: &'a [f32],
    /// Whether the scale is one plus the weight.
    pub adds_one: bool,
}

impl<'a> From<&'a [f32]> for Scale<'a> {
    fn from(weight_c: &'a [f32]) -> Self {
        Self { weight_c, adds_one: false }
    }
}

impl<'a> From<&'a Vec<f32>> for Scale<'a> {
    fn from(weight_c: &'a Vec<f32>) -> Self {
        weight_c[..].into()
    }
}

impl Scale<'_> {
    /// Group i of the columns.
    #[inline(always)]
    fn load<S: Simd>(&self, s: S, i: usize) -> S::V {
        let weight = load(s, self.weight_c, i);
        if self.adds_one { s.add(weight, s.splat(1.0)) } else { weight }
    }
}

/// Sets `y_tc` to the normalised rows of `x_tc` and `rstd_t` to the factor of each row.
pub fn forward<'a>(
    cpu: &Cpu,
    x_tc: &[f32],
    scale: impl Into<Scale<'a>>,
    eps: f32,
    y_tc: &mut [f32],
    rstd_t: &mut [f32],
) {
    let scale = scale.into();
    let width = check_shapes(x_tc, scale.weight_c, rstd_t);
    assert_eq!(y_tc.len(), x_tc.len(), "output and input have one shape");
    cpu.for_each_split([y_tc, rstd_t], [ROWS * width, ROWS], |i, [y_tc, rstd_t]| {
        let x_tc = &x_tc[i * ROWS * width..][..y_tc.len()];
        cpu.run(Forward { x_tc, scale, eps, y_tc, rstd_t });
    });
}

/// Recomputes forward's output from the saved factors, bit for bit.
pub fn normalize<'a>(
    cpu: &Cpu,
    x_tc: &[f32],
    scale: impl Into<Scale<'a>>,
    rstd_t: &[f32],
    y_tc: &mut [f32],
) {
    let scale = scale.into();
    let width = check_shapes(x_tc, scale.weight_c, rstd_t);
    assert_eq!(y_tc.len(), x_tc.len(), "output and input have one shape");
    cpu.for_each_part(y_tc, ROWS * width, |i, y_tc| {
        let x_tc = &x_tc[i * ROWS * width..][..y_tc.len()];
        cpu.run(Normalize { x_tc, scale, rstd_t: &rstd_t[i * ROWS..], y_tc });
    });
}

/// Adds the gradients of the input and of the weight, given `dy_tc` and the factors that forward
/// saved. An empty `dweight_c` skips the weight gradient.
pub fn backward<'a>(
    cpu: &Cpu,
    x_tc: &[f32],
    scale: impl Into<Scale<'a>>,
    rstd_t: &[f32],
    dy_tc: &[f32],
    dx_tc: &mut [f32],
    dweight_c: &mut [f32],
) {
    let scale = scale.into();
    let width = check_shapes(x_tc, scale.weight_c, rstd_t);
    assert_eq!(dy_tc.len(), x_tc.len(), "output gradient and input have one shape");
    assert_eq!(dx_tc.len(), x_tc.len(), "input gradient and input have one shape");
    let needs_weight = !dweight_c.is_empty();
    assert!(!needs_weight || dweight_c.len() == width, "weight gradient and weight have one shape");
    cpu.for_each_part(dx_tc, ROWS * width, |i, dx_tc| {
        let rows = i * ROWS * width..i * ROWS * width + dx_tc.len();
        let (x_tc, dy_tc) = (&x_tc[rows.clone()], &dy_tc[rows]);
        cpu.run(InputGradient { x_tc, scale, rstd_t: &rstd_t[i * ROWS..], dy_tc, dx_tc });
    });
    if needs_weight {
        weight_backward(cpu, x_tc, rstd_t, dy_tc, dweight_c);
    }
}

/// Adds the gradient of the weight: a column's terms are summed from zero with rows ascending, then
/// added once.
pub fn weight_backward(
    cpu: &Cpu,
    x_tc: &[f32],
    rstd_t: &[f32],
    dy_tc: &[f32],
    dweight_c: &mut [f32],
) {
    let width = check_shapes(x_tc, dweight_c, rstd_t);
    assert_eq!(dy_tc.len(), x_tc.len(), "output gradient and input have one shape");
    let terms = WeightTerms { width, x_tc, rstd_t, dy_tc };
    add_column_sums(cpu, rstd_t.len(), terms, [dweight_c]);
}

/// Checks the shapes that all passes share and returns the width.
fn check_shapes(x_tc: &[f32], weight_c: &[f32], rstd_t: &[f32]) -> usize {
    let width = weight_c.len();
    assert!(width > 0, "a row has at least one column");
    assert_eq!(x_tc.len(), rstd_t.len() * width, "one factor for each row of {width}");
    width
}

struct Forward<'a> {
    x_tc: &'a [f32],
    scale: Scale<'a>,
    eps: f32,
    y_tc: &'a mut [f32],
    rstd_t: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.scale.weight_c.len();
        let rows = self.x_tc.chunks_exact(width).zip(self.y_tc.chunks_exact_mut(width));
        for ((x, y), rstd) in rows.zip(self.rstd_t) {
            let mut squares = s.zero();
            for i in 0..num_groups(x) {
                let x = load(s, x, i);
                squares = s.fma(x, x, squares);
            }
            let mean = s.reduce_add(squares) / width as f32;
            *rstd = 1.0 / (mean + self.eps).sqrt();
            normalize_row(s, x, &self.scale, *rstd, y);
        }
    }
}

struct Normalize<'a> {
    x_tc: &'a [f32],
    scale: Scale<'a>,
    rstd_t: &'a [f32],
    y_tc: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.scale.weight_c.len();
        let rows = self.x_tc.chunks_exact(width).zip(self.y_tc.chunks_exact_mut(width));
        for ((x, y), &rstd) in rows.zip(self.rstd_t) {
            normalize_row(s, x, &self.scale, rstd, y);
        }
    }
}

#[inline(always)]
fn normalize_row<S: Simd>(s: S, x: &[f32], scale: &Scale<'_>, rstd: f32, y: &mut [f32]) {
    let rstd = s.splat(rstd);
    for i in 0..num_groups(x) {
        let x_hat = s.mul(load(s, x, i), rstd);
        store(s, s.mul(x_hat, scale.load(s, i)), y, i);
    }
}

struct InputGradient<'a> {
    x_tc: &'a [f32],
    scale: Scale<'a>,
    rstd_t: &'a [f32],
    dy_tc: &'a [f32],
    dx_tc: &'a mut [f32],
}

impl Kernel for InputGradient<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (scale, width) = (self.scale, self.scale.weight_c.len());
        let rows = self.x_tc.chunks_exact(width).zip(self.dy_tc.chunks_exact(width));
        let rows = rows.zip(self.dx_tc.chunks_exact_mut(width));
        for (((x, dy), dx), &rstd) in rows.zip(self.rstd_t) {
            let mut dot = s.zero();
            for i in 0..num_groups(x) {
                let g = s.mul(load(s, dy, i), scale.load(s, i));
                dot = s.fma(g, load(s, x, i), dot);
            }
            let pull = rstd * rstd * (s.reduce_add(dot) / width as f32);
            let (minus_pull, rstd) = (s.splat(-pull), s.splat(rstd));
            for i in 0..num_groups(x) {
                let g = s.mul(load(s, dy, i), scale.load(s, i));
                let centred = s.fma(load(s, x, i), minus_pull, g);
                store(s, s.fma(centred, rstd, load(s, dx, i)), dx, i);
            }
        }
    }
}

/// Row terms dy · (x · rstd) of the weight gradient.
#[derive(Clone, Copy)]
struct WeightTerms<'a> {
    width: usize,
    x_tc: &'a [f32],
    rstd_t: &'a [f32],
    dy_tc: &'a [f32],
}

impl Terms<1> for WeightTerms<'_> {
    #[inline(always)]
    fn add<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        columns: Range<usize>,
        sums: &mut [[S::V; N]; 1],
    ) {
        let x = row_part(self.x_tc, self.width, row, columns.clone());
        let dy = row_part(self.dy_tc, self.width, row, columns);
        let rstd = s.splat(self.rstd_t[row]);
        for (i, sum) in sums[0].iter_mut().enumerate() {
            let x_hat = s.mul(load(s, x, i), rstd);
            *sum = s.fma(load(s, dy, i), x_hat, *sum);
        }
    }
}

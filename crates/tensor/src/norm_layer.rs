//! LayerNorm (Ba et al. 2016): every row is centred, divided by its standard deviation, scaled and
//! shifted.
//!
//! With x̂ = (x − mean) · r and r = 1 / sqrt(variance + eps), the output is y = x̂ · weight + bias.
//! The variance is the mean of the squares of the *centred* row, in a second pass over a row that
//! is still in the first-level cache: the shorter mean(x²) − mean² cancels when the mean is large.
//! Both means use sixteen `f32` accumulators (element i to accumulator i % 16, ascending) that one
//! fixed tree adds.
//!
//! Backward, with g = dy · weight: dx += r · (g − mean(g) − x̂ · mean(g · x̂)) for each row;
//! dweight and dbias are the column sums of dy · x̂ and of dy, rows ascending, computed in one
//! pass.
//!
//! Shapes: t tokens (rows), c width (columns).

use crate::Cpu;
use crate::bias;
use crate::reduce::columns::{Terms, add_column_sums, row_part};
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Rows of a task.
const ROWS: usize = 16;

/// Sets `y_tc` to the normalised rows of `x_tc`, and `mean_t` and `rstd_t` to the mean and
/// reciprocal standard deviation of each row.
pub fn forward(
    cpu: &Cpu,
    x_tc: &[f32],
    weight_c: &[f32],
    bias_c: &[f32],
    eps: f32,
    y_tc: &mut [f32],
    mean_t: &mut [f32],
    rstd_t: &mut [f32],
) {
    let width = check_shapes(x_tc, weight_c, mean_t, rstd_t);
    let affine = Affine { weight_c, bias_c };
    assert_eq!(bias_c.len(), width, "bias and weight have one shape");
    assert_eq!(y_tc.len(), x_tc.len(), "output and input have one shape");
    let part_lens = [ROWS * width, ROWS, ROWS];
    cpu.for_each_split([y_tc, mean_t, rstd_t], part_lens, |i, [y_tc, mean_t, rstd_t]| {
        let x_tc = &x_tc[i * ROWS * width..][..y_tc.len()];
        cpu.run(Forward { x_tc, affine, eps, y_tc, mean_t, rstd_t });
    });
}

/// Recomputes forward's output from the saved means and factors, bit for bit.
pub fn normalize(
    cpu: &Cpu,
    x_tc: &[f32],
    weight_c: &[f32],
    bias_c: &[f32],
    mean_t: &[f32],
    rstd_t: &[f32],
    y_tc: &mut [f32],
) {
    let width = check_shapes(x_tc, weight_c, mean_t, rstd_t);
    let affine = Affine { weight_c, bias_c };
    assert_eq!(bias_c.len(), width, "bias and weight have one shape");
    assert_eq!(y_tc.len(), x_tc.len(), "output and input have one shape");
    cpu.for_each_part(y_tc, ROWS * width, |i, y_tc| {
        let x_tc = &x_tc[i * ROWS * width..][..y_tc.len()];
        let (mean_t, rstd_t) = (&mean_t[i * ROWS..], &rstd_t[i * ROWS..]);
        cpu.run(Normalize { x_tc, affine, mean_t, rstd_t, y_tc });
    });
}

/// Adds the gradients of input, weight and bias, given `dy_tc` and the values that forward saved.
/// An empty `dweight_c` or `dbias_c` skips that gradient.
pub fn backward(
    cpu: &Cpu,
    x_tc: &[f32],
    weight_c: &[f32],
    mean_t: &[f32],
    rstd_t: &[f32],
    dy_tc: &[f32],
    dx_tc: &mut [f32],
    dweight_c: &mut [f32],
    dbias_c: &mut [f32],
) {
    let width = check_shapes(x_tc, weight_c, mean_t, rstd_t);
    assert_eq!(dy_tc.len(), x_tc.len(), "output gradient and input have one shape");
    assert_eq!(dx_tc.len(), x_tc.len(), "input gradient and input have one shape");
    let (needs_weight, needs_bias) = (!dweight_c.is_empty(), !dbias_c.is_empty());
    assert!(!needs_weight || dweight_c.len() == width, "weight gradient and weight have one shape");
    assert!(!needs_bias || dbias_c.len() == width, "bias gradient and weight have one shape");
    cpu.for_each_part(dx_tc, ROWS * width, |i, dx_tc| {
        let rows = i * ROWS * width..i * ROWS * width + dx_tc.len();
        let (x_tc, dy_tc) = (&x_tc[rows.clone()], &dy_tc[rows]);
        let (mean_t, rstd_t) = (&mean_t[i * ROWS..], &rstd_t[i * ROWS..]);
        cpu.run(InputGradient { x_tc, weight_c, mean_t, rstd_t, dy_tc, dx_tc });
    });
    if needs_weight || needs_bias {
        weight_backward(cpu, x_tc, mean_t, rstd_t, dy_tc, dweight_c, dbias_c);
    }
}

/// Adds the gradients of weight and bias, or of the one that is not empty: a column's terms are
/// summed from zero with rows ascending, then added once.
pub fn weight_backward(
    cpu: &Cpu,
    x_tc: &[f32],
    mean_t: &[f32],
    rstd_t: &[f32],
    dy_tc: &[f32],
    dweight_c: &mut [f32],
    dbias_c: &mut [f32],
) {
    let (needs_weight, needs_bias) = (!dweight_c.is_empty(), !dbias_c.is_empty());
    let width = dweight_c.len().max(dbias_c.len());
    assert_eq!(x_tc.len(), rstd_t.len() * width, "one factor for each row of {width}");
    let terms = WeightTerms { width, x_tc, mean_t, rstd_t, dy_tc };
    match (needs_weight, needs_bias) {
        (true, true) => add_column_sums(cpu, rstd_t.len(), terms, [dweight_c, dbias_c]),
        (true, false) => add_column_sums(cpu, rstd_t.len(), terms, [dweight_c]),
        (false, true) => bias::backward(cpu, dy_tc, dbias_c),
        (false, false) => {}
    }
}

/// Checks the shapes that all passes share and returns the width.
fn check_shapes(x_tc: &[f32], weight_c: &[f32], mean_t: &[f32], rstd_t: &[f32]) -> usize {
    let width = weight_c.len();
    assert!(width > 0, "a row has at least one column");
    assert_eq!(x_tc.len(), rstd_t.len() * width, "one factor for each row of {width}");
    assert_eq!(mean_t.len(), rstd_t.len(), "one mean for each factor");
    width
}

/// The learned scale and shift of each column.
#[derive(Clone, Copy)]
struct Affine<'a> {
    weight_c: &'a [f32],
    bias_c: &'a [f32],
}

struct Forward<'a> {
    x_tc: &'a [f32],
    affine: Affine<'a>,
    eps: f32,
    y_tc: &'a mut [f32],
    mean_t: &'a mut [f32],
    rstd_t: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.affine.weight_c.len();
        let rows = self.x_tc.chunks_exact(width).zip(self.y_tc.chunks_exact_mut(width));
        for (((x, y), mean), rstd) in rows.zip(self.mean_t).zip(self.rstd_t) {
            let mut sum = s.zero();
            for i in 0..num_groups(x) {
                sum = s.add(sum, load(s, x, i));
            }
            *mean = s.reduce_add(sum) / width as f32;
            // The output holds the centred row: loaded from there, the elements behind its tail are
            // zeros and add nothing to the squares.
            let splat_mean = s.splat(*mean);
            let mut squares = s.zero();
            for i in 0..num_groups(x) {
                store(s, s.sub(load(s, x, i), splat_mean), y, i);
                let centred = load(s, y, i);
                squares = s.fma(centred, centred, squares);
            }
            let variance = s.reduce_add(squares) / width as f32;
            *rstd = 1.0 / (variance + self.eps).sqrt();
            normalize_row(s, x, self.affine, (*mean, *rstd), y);
        }
    }
}

struct Normalize<'a> {
    x_tc: &'a [f32],
    affine: Affine<'a>,
    mean_t: &'a [f32],
    rstd_t: &'a [f32],
    y_tc: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.affine.weight_c.len();
        let rows = self.x_tc.chunks_exact(width).zip(self.y_tc.chunks_exact_mut(width));
        for (((x, y), &mean), &rstd) in rows.zip(self.mean_t).zip(self.rstd_t) {
            normalize_row(s, x, self.affine, (mean, rstd), y);
        }
    }
}

#[inline(always)]
fn normalize_row<S: Simd>(
    s: S,
    x: &[f32],
    affine: Affine<'_>,
    (mean, rstd): (f32, f32),
    y: &mut [f32],
) {
    let (mean, rstd) = (s.splat(mean), s.splat(rstd));
    for i in 0..num_groups(x) {
        let x_hat = s.mul(s.sub(load(s, x, i), mean), rstd);
        let (weight, bias) = (load(s, affine.weight_c, i), load(s, affine.bias_c, i));
        store(s, s.fma(x_hat, weight, bias), y, i);
    }
}

struct InputGradient<'a> {
    x_tc: &'a [f32],
    weight_c: &'a [f32],
    mean_t: &'a [f32],
    rstd_t: &'a [f32],
    dy_tc: &'a [f32],
    dx_tc: &'a mut [f32],
}

impl Kernel for InputGradient<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (weight, width) = (self.weight_c, self.weight_c.len());
        let rows = self.x_tc.chunks_exact(width).zip(self.dy_tc.chunks_exact(width));
        let rows = rows.zip(self.dx_tc.chunks_exact_mut(width));
        for ((((x, dy), dx), &mean), &rstd) in rows.zip(self.mean_t).zip(self.rstd_t) {
            let (mean, rstd) = (s.splat(mean), s.splat(rstd));
            // Behind the tail g is zero, so it adds nothing to either sum.
            let (mut sum, mut dot) = (s.zero(), s.zero());
            for i in 0..num_groups(x) {
                let g = s.mul(load(s, dy, i), load(s, weight, i));
                let x_hat = s.mul(s.sub(load(s, x, i), mean), rstd);
                sum = s.add(sum, g);
                dot = s.fma(g, x_hat, dot);
            }
            let shift = s.splat(s.reduce_add(sum) / width as f32);
            let minus_pull = s.splat(-(s.reduce_add(dot) / width as f32));
            for i in 0..num_groups(x) {
                let g = s.mul(load(s, dy, i), load(s, weight, i));
                let x_hat = s.mul(s.sub(load(s, x, i), mean), rstd);
                let centred = s.fma(x_hat, minus_pull, s.sub(g, shift));
                store(s, s.fma(centred, rstd, load(s, dx, i)), dx, i);
            }
        }
    }
}

/// Row terms dy · x̂ of the weight gradient and dy of the bias gradient.
#[derive(Clone, Copy)]
struct WeightTerms<'a> {
    width: usize,
    x_tc: &'a [f32],
    mean_t: &'a [f32],
    rstd_t: &'a [f32],
    dy_tc: &'a [f32],
}

impl Terms<2> for WeightTerms<'_> {
    #[inline(always)]
    fn add<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        columns: Range<usize>,
        [weight_sums, bias_sums]: &mut [[S::V; N]; 2],
    ) {
        let x = row_part(self.x_tc, self.width, row, columns.clone());
        let dy = row_part(self.dy_tc, self.width, row, columns);
        let (mean, rstd) = (s.splat(self.mean_t[row]), s.splat(self.rstd_t[row]));
        for i in 0..N {
            let x_hat = s.mul(s.sub(load(s, x, i), mean), rstd);
            let dy = load(s, dy, i);
            weight_sums[i] = s.fma(dy, x_hat, weight_sums[i]);
            bias_sums[i] = s.add(bias_sums[i], dy);
        }
    }
}

impl Terms<1> for WeightTerms<'_> {
    #[inline(always)]
    fn add<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        columns: Range<usize>,
        [weight_sums]: &mut [[S::V; N]; 1],
    ) {
        let mut both = [*weight_sums, [s.zero(); N]];
        self.add(s, row, columns, &mut both);
        [*weight_sums, _] = both;
    }
}

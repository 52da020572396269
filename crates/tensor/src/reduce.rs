//! Sums and checks over flat buffers, and loops shared by memory-bound kernels.
//!
//! Sums do not depend on the number of threads: [`sum_squares_chunks`] returns one `f64` per 4,096
//! elements for the caller to add, and [`column_sums`] assigns every column to one task that adds
//! the rows in ascending order.
//!
//! # Layout
//! - `groups`: reads and writes a slice sixteen elements at a time, the tail included.
//! - `columns`: sums over rows for each column, the shape of every weight gradient.

pub(crate) mod columns;
pub(crate) mod groups;

use crate::Cpu;
use crate::simd::{Kernel, Simd, VECTOR_LEN};
use columns::{Terms, add_column_sums, row_part};
use groups::{load, num_groups, store};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements of a tensor that share one sum of squares.
pub const SQUARES_CHUNK: usize = 4096;

/// Elements of a task of an elementwise kernel: 64 KiB of each buffer, so that a task outweighs its
/// start-up cost and its buffers fit the second-level cache together.
pub(crate) const ELEMENTS: usize = 1 << 14;

/// Chunks of squares that one task sums.
const CHUNKS: usize = 8;

/// `out = a + b`, element by element.
pub fn add(cpu: &Cpu, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!(a.len(), b.len(), "both addends have one shape");
    assert_eq!(a.len(), out.len(), "the sum has the shape of its addends");
    cpu.for_each_part(out, ELEMENTS, |i, out| {
        let a = &a[i * ELEMENTS..][..out.len()];
        let b = &b[i * ELEMENTS..][..out.len()];
        cpu.run(Add { a, b, out });
    });
}

/// `target += source`, element by element.
pub fn add_assign(cpu: &Cpu, target: &mut [f32], source: &[f32]) {
    assert_eq!(target.len(), source.len(), "both addends have one shape");
    cpu.for_each_part(target, ELEMENTS, |i, target| {
        let source = &source[i * ELEMENTS..][..target.len()];
        cpu.run(AddAssign { target, source });
    });
}

/// The sum of squares of each [`SQUARES_CHUNK`] elements of `x` (the last chunk may be shorter).
///
/// Element i of a chunk goes to `f64` accumulator i % 16, in ascending order; the sixteen are then
/// added by the fixed tree of [`Simd::reduce_add_f64`]. A square of an `f32` is exact in `f64`.
pub fn sum_squares_chunks(cpu: &Cpu, x: &[f32], out: &mut [f64]) {
    assert_eq!(out.len(), x.len().div_ceil(SQUARES_CHUNK), "one sum for each chunk");
    cpu.for_each_part(out, CHUNKS, |i, out| {
        let x = &x[i * CHUNKS * SQUARES_CHUNK..];
        cpu.run(SumSquares { x, out });
    });
}

/// The lowest index whose element is infinite or not a number.
pub fn first_non_finite(cpu: &Cpu, x: &[f32]) -> Option<usize> {
    // The minimum does not depend on the order in which tasks finish. A task behind a known hit is
    // skipped.
    let first = AtomicUsize::new(usize::MAX);
    cpu.for_each(x.len().div_ceil(ELEMENTS), |i| {
        let start = i * ELEMENTS;
        if start > first.load(Ordering::Relaxed) {
            return;
        }
        let part = &x[start..x.len().min(start + ELEMENTS)];
        if cpu.run(HasNonFinite { x: part }) {
            let offset = part.iter().position(|x| !x.is_finite());
            first.fetch_min(start + offset.expect("the vector found one"), Ordering::Relaxed);
        }
    });
    let first = first.into_inner();
    (first != usize::MAX).then_some(first)
}

/// Adds to each of `out_n` the sum of its column of `x_tn`.
///
/// A column is summed from zero with rows ascending, then added once.
pub fn column_sums(cpu: &Cpu, x_tn: &[f32], out_n: &mut [f32]) {
    let width = out_n.len();
    assert!(width > 0 && x_tn.len().is_multiple_of(width), "whole rows of {width} columns");
    let terms = Elements { x_tn, width };
    add_column_sums(cpu, x_tn.len() / width, terms, [out_n]);
}

struct Add<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in 0..num_groups(self.out) {
            store(s, s.add(load(s, self.a, i), load(s, self.b, i)), self.out, i);
        }
    }
}

struct AddAssign<'a> {
    target: &'a mut [f32],
    source: &'a [f32],
}

impl Kernel for AddAssign<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        add_into(s, self.source, self.target);
    }
}

/// `target += source` within a kernel.
#[inline(always)]
pub(crate) fn add_into<S: Simd>(s: S, source: &[f32], target: &mut [f32]) {
    for i in 0..num_groups(target) {
        store(s, s.add(load(s, target, i), load(s, source, i)), target, i);
    }
}

struct SumSquares<'a> {
    x: &'a [f32],
    out: &'a mut [f64],
}

impl Kernel for SumSquares<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.chunks(SQUARES_CHUNK).zip(self.out) {
            let mut sum = s.splat_f64(0.0);
            for i in 0..num_groups(x) {
                let wide = s.widen(load(s, x, i));
                sum = s.fma_f64(wide, wide, sum);
            }
            *out = s.reduce_add_f64(sum);
        }
    }
}

struct HasNonFinite<'a> {
    x: &'a [f32],
}

impl Kernel for HasNonFinite<'_> {
    type Out = bool;
    /// Zero times a finite number is a zero; zero times an infinity or a NaN is NaN, and a NaN
    /// survives every addition, so one sum checks the whole part. Four independent sums hide the
    /// latency of the addition.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let mut sums = [s.zero(); 4];
        for part in self.x.chunks(4 * VECTOR_LEN) {
            for (i, sum) in sums.iter_mut().enumerate().take(num_groups(part)) {
                *sum = s.fma(load(s, part, i), s.zero(), *sum);
            }
        }
        let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
        s.reduce_add(sum).is_nan()
    }
}

/// Elements as the terms of a column sum.
#[derive(Clone, Copy)]
struct Elements<'a> {
    x_tn: &'a [f32],
    width: usize,
}

impl Terms<1> for Elements<'_> {
    #[inline(always)]
    fn add<S: Simd, const N: usize>(
        self,
        s: S,
        row: usize,
        columns: std::ops::Range<usize>,
        sums: &mut [[S::V; N]; 1],
    ) {
        let x = row_part(self.x_tn, self.width, row, columns);
        for (i, sum) in sums[0].iter_mut().enumerate() {
            *sum = s.add(*sum, load(s, x, i));
        }
    }
}

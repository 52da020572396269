//! Conversion of flat buffers between `f32`, bf16 and `f16`, with counts of overflows and
//! underflows.
//!
//! All roundings are to nearest, ties to even (IEEE 754): overflows become infinite, underflows
//! become subnormal or zero, and a NaN stays NaN.
//!
//! Training in `f16` multiplies the loss by a scale, so that small gradients do not round to zero,
//! and divides the gradients by it afterwards. Too large a scale makes values infinite, too small a
//! scale makes them zero: every pass that rounds or scales counts both, in [`RangeErrors`]. The
//! counts are integers, so they do not depend on the order of tasks.

use crate::Cpu;
use crate::gemm::Precision;
use crate::reduce::ELEMENTS;
use crate::simd::{Kernel, Simd, VECTOR_LEN, round_bf16, widen_bf16};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// Overflows and underflows of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeErrors {
    /// Numbers that are infinite or NaN after the pass.
    pub num_non_finite: u64,
    /// Numbers that were not zero before the pass and are after it.
    pub num_zeroed: u64,
}

impl AddAssign for RangeErrors {
    fn add_assign(&mut self, other: Self) {
        self.num_non_finite += other.num_non_finite;
        self.num_zeroed += other.num_zeroed;
    }
}

/// Rounds to bf16.
pub fn to_bf16(cpu: &Cpu, from: &[f32], to: &mut [bf16]) -> RangeErrors {
    narrow::<Bf16>(cpu, from, to.reinterpret_cast_mut())
}

/// Rounds to `f16`.
pub fn to_f16(cpu: &Cpu, from: &[f32], to: &mut [f16]) -> RangeErrors {
    narrow::<F16>(cpu, from, to.reinterpret_cast_mut())
}

/// Widens, exactly.
pub fn from_bf16(cpu: &Cpu, from: &[bf16], to: &mut [f32]) {
    widen::<Bf16>(cpu, from.reinterpret_cast(), to);
}

/// Widens, exactly.
pub fn from_f16(cpu: &Cpu, from: &[f16], to: &mut [f32]) {
    widen::<F16>(cpu, from.reinterpret_cast(), to);
}

/// Multiplies by `factor`, rounds to `precision` and widens again, in place.
///
/// A factor of one rounds the buffer to that type; the inverse loss scale in [`Precision::F32`]
/// unscales gradients.
pub fn scale(cpu: &Cpu, x: &mut [f32], factor: f32, precision: Precision) -> RangeErrors {
    let counts = AtomicCounts::default();
    cpu.for_each_part(x, ELEMENTS, |_, x| match precision {
        Precision::F32 => counts.add(cpu.run(Scale::<F32> { x, factor, to: F32 })),
        Precision::Bf16 => counts.add(cpu.run(Scale::<Bf16> { x, factor, to: Bf16 })),
        Precision::F16 => counts.add(cpu.run(Scale::<F16> { x, factor, to: F16 })),
        Precision::Fp8 => unreachable!("no buffer is rounded to fp8"),
    });
    counts.total()
}

fn narrow<T: Narrow>(cpu: &Cpu, from: &[f32], to: &mut [u16]) -> RangeErrors {
    assert_eq!(from.len(), to.len(), "as many inputs as outputs");
    let counts = AtomicCounts::default();
    cpu.for_each_part(to, ELEMENTS, |i, to| {
        let from = &from[i * ELEMENTS..][..to.len()];
        counts.add(cpu.run(ToNarrow { from, to, by: T::default() }));
    });
    counts.total()
}

fn widen<T: Narrow>(cpu: &Cpu, from: &[u16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "as many inputs as outputs");
    cpu.for_each_part(to, ELEMENTS, |i, to| {
        let from = &from[i * ELEMENTS..][..to.len()];
        cpu.run(FromNarrow { from, to, by: T::default() });
    });
}

/// Counts of all tasks of one pass.
#[derive(Default)]
struct AtomicCounts {
    num_non_finite: AtomicU64,
    num_zeroed: AtomicU64,
}

impl AtomicCounts {
    fn add(&self, errors: RangeErrors) {
        // Relaxed is enough: sums of integers, read after the last task.
        self.num_non_finite.fetch_add(errors.num_non_finite, Ordering::Relaxed);
        self.num_zeroed.fetch_add(errors.num_zeroed, Ordering::Relaxed);
    }

    fn total(self) -> RangeErrors {
        let [num_non_finite, num_zeroed] =
            [self.num_non_finite, self.num_zeroed].map(AtomicU64::into_inner);
        RangeErrors { num_non_finite, num_zeroed }
    }
}

/// A type that numbers are rounded to.
trait Narrow: Copy + Default + Send + Sync {
    fn store<S: Simd>(self, s: S, v: S::V, out: &mut [u16; VECTOR_LEN]);
    fn load<S: Simd>(self, s: S, x: &[u16; VECTOR_LEN]) -> S::V;
    /// Rounds and widens.
    #[inline(always)]
    fn round<S: Simd>(self, s: S, v: S::V) -> S::V {
        let mut bits = [0; VECTOR_LEN];
        self.store(s, v, &mut bits);
        self.load(s, &bits)
    }
}

#[derive(Clone, Copy, Default)]
struct F32;
#[derive(Clone, Copy, Default)]
struct Bf16;
#[derive(Clone, Copy, Default)]
struct F16;

impl Narrow for F32 {
    fn store<S: Simd>(self, _: S, _: S::V, _: &mut [u16; VECTOR_LEN]) {
        unreachable!("f32 is not narrow")
    }
    fn load<S: Simd>(self, _: S, _: &[u16; VECTOR_LEN]) -> S::V {
        unreachable!("f32 is not narrow")
    }
    #[inline(always)]
    fn round<S: Simd>(self, _: S, v: S::V) -> S::V {
        v
    }
}

impl Narrow for Bf16 {
    #[inline(always)]
    fn store<S: Simd>(self, s: S, v: S::V, out: &mut [u16; VECTOR_LEN]) {
        s.store_u16(s.shift_right::<16>(round_bf16(s, v)), out);
    }
    #[inline(always)]
    fn load<S: Simd>(self, s: S, x: &[u16; VECTOR_LEN]) -> S::V {
        let [v, _] = widen_bf16(s, s.load_u16(x));
        v
    }
}

impl Narrow for F16 {
    #[inline(always)]
    fn store<S: Simd>(self, s: S, v: S::V, out: &mut [u16; VECTOR_LEN]) {
        s.store_f16(v, out);
    }
    #[inline(always)]
    fn load<S: Simd>(self, s: S, x: &[u16; VECTOR_LEN]) -> S::V {
        s.load_f16(x)
    }
}

/// Counts overflows and underflows per vector element. A task has far fewer numbers than an `f32`
/// can count.
struct Counts<S: Simd> {
    non_finite: S::V,
    zeroed: S::V,
}

impl<S: Simd> Counts<S> {
    #[inline(always)]
    fn new(s: S) -> Self {
        Self { non_finite: s.zero(), zeroed: s.zero() }
    }

    #[inline(always)]
    fn add(&mut self, s: S, before: S::V, after: S::V) {
        let (zero, one) = (s.zero(), s.splat(1.0));
        let size = s.abs(after);
        let non_finite = s.select_lt(size, s.splat(f32::INFINITY), zero, one);
        self.non_finite = s.add(self.non_finite, non_finite);
        // Comparisons with NaN are false, so a NaN counts as zero after the pass, but not before
        // it.
        let was_nonzero = s.select_lt(zero, s.abs(before), one, zero);
        self.zeroed = s.add(self.zeroed, s.select_lt(zero, size, zero, was_nonzero));
    }

    #[inline(always)]
    fn errors(self, s: S) -> RangeErrors {
        let [num_non_finite, num_zeroed] =
            [self.non_finite, self.zeroed].map(|counts| s.reduce_add(counts) as u64);
        RangeErrors { num_non_finite, num_zeroed }
    }
}

struct ToNarrow<'a, T> {
    from: &'a [f32],
    to: &'a mut [u16],
    by: T,
}

impl<T: Narrow> Kernel for ToNarrow<'_, T> {
    type Out = RangeErrors;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> RangeErrors {
        let mut counts = Counts::new(s);
        let ((from, from_tail), (to, to_tail)) = (self.from.as_chunks(), self.to.as_chunks_mut());
        for (from, to) in from.iter().zip(to) {
            let before = s.load(from);
            self.by.store(s, before, to);
            counts.add(s, before, self.by.load(s, to));
        }
        let (before, mut bits) = (s.load_partial(from_tail), [0; VECTOR_LEN]);
        self.by.store(s, before, &mut bits);
        counts.add(s, before, self.by.load(s, &bits));
        to_tail.copy_from_slice(&bits[..to_tail.len()]);
        counts.errors(s)
    }
}

struct FromNarrow<'a, T> {
    from: &'a [u16],
    to: &'a mut [f32],
    by: T,
}

impl<T: Narrow> Kernel for FromNarrow<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ((from, from_tail), (to, to_tail)) = (self.from.as_chunks(), self.to.as_chunks_mut());
        for (from, to) in from.iter().zip(to) {
            s.store(self.by.load(s, from), to);
        }
        let mut bits = [0; VECTOR_LEN];
        bits[..from_tail.len()].copy_from_slice(from_tail);
        s.store_partial(self.by.load(s, &bits), to_tail);
    }
}

struct Scale<'a, T> {
    x: &'a mut [f32],
    factor: f32,
    to: T,
}

impl<T: Narrow> Kernel for Scale<'_, T> {
    type Out = RangeErrors;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> RangeErrors {
        let (mut counts, factor) = (Counts::new(s), s.splat(self.factor));
        let (body, tail) = self.x.as_chunks_mut();
        for x in body {
            let before = s.load(x);
            let after = self.to.round(s, s.mul(before, factor));
            counts.add(s, before, after);
            s.store(after, x);
        }
        let before = s.load_partial(tail);
        let after = self.to.round(s, s.mul(before, factor));
        // Elements behind the tail are zero, but zero times an infinite factor is not.
        let mut kept = [0.0; VECTOR_LEN];
        kept[..tail.len()].copy_from_slice(&s.to_array(after)[..tail.len()]);
        counts.add(s, before, s.load(&kept));
        tail.copy_from_slice(&kept[..tail.len()]);
        counts.errors(s)
    }
}

//! Vectors of sixteen elements as an array: the reference for the vector units.
//!
//! Operations that call the C library for each element, or take many instructions, are functions of
//! their own: written out in place they would make these kernels, which few CPUs need, the largest
//! part of the crate.

use super::{Isa, Kernel, Simd, VECTOR_LEN, half_floats};
use half::f16;

/// Needs no proof: every CPU runs it.
#[derive(Clone, Copy)]
pub(super) struct Portable(());

/// Runs a kernel on arrays.
#[inline(never)]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(Portable(()))
}

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(
    a: [A; VECTOR_LEN],
    b: [B; VECTOR_LEN],
    f: impl Fn(A, B) -> C,
) -> [C; VECTOR_LEN] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = [f32; VECTOR_LEN];
    type I = [i32; VECTOR_LEN];
    type D = [f64; VECTOR_LEN];
    const ISA: Isa = Isa::Portable;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        run(kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; VECTOR_LEN]
    }
    #[inline(always)]
    fn load(self, x: &[f32; VECTOR_LEN]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32; VECTOR_LEN]) {
        *out = v;
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(never)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(never)]
    fn round_to_int(self, a: Self::V) -> Self::I {
        a.map(|a| a.round_ties_even() as i32)
    }
    #[inline(always)]
    fn int_to_float(self, a: Self::I) -> Self::V {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn bits(self, a: Self::V) -> Self::I {
        a.map(|a| a.to_bits().cast_signed())
    }
    #[inline(always)]
    fn from_bits(self, a: Self::I) -> Self::V {
        a.map(|a| f32::from_bits(a.cast_unsigned()))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; VECTOR_LEN]
    }
    #[inline(always)]
    fn load_int(self, x: &[i32; VECTOR_LEN]) -> Self::I {
        *x
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn xor_int(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn shift_left<const N: u32>(self, a: Self::I) -> Self::I {
        a.map(|a| a << N)
    }
    #[inline(always)]
    fn shift_right<const N: u32>(self, a: Self::I) -> Self::I {
        a.map(|a| (a.cast_unsigned() >> N).cast_signed())
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; VECTOR_LEN]) -> Self::I {
        x.map(i32::from)
    }
    #[inline(always)]
    fn store_u16(self, a: Self::I, out: &mut [u16; VECTOR_LEN]) {
        *out = a.map(|a| a as u16);
    }
    #[inline(never)]
    fn load_f16(self, x: &[u16; VECTOR_LEN]) -> Self::V {
        x.map(|x| f16::from_bits(x).to_f32())
    }
    #[inline(never)]
    fn store_f16(self, v: Self::V, out: &mut [u16; VECTOR_LEN]) {
        *out = v.map(|x| f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn splat_f64(self, x: f64) -> Self::D {
        [x; VECTOR_LEN]
    }
    #[inline(always)]
    fn widen(self, v: Self::V) -> Self::D {
        v.map(f64::from)
    }
    #[inline(always)]
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D {
        zip(a, b, |a, b| a + b)
    }
    #[inline(never)]
    fn fma_f64(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn to_array_f64(self, a: Self::D) -> [f64; VECTOR_LEN] {
        a
    }

    #[inline(never)]
    fn pair_neighbours(self, first: Self::V, second: Self::V) -> Self::I {
        half_floats::pair_neighbours(self, first, second)
    }
    #[inline(never)]
    fn pair_elements(self, even: Self::V, odd: Self::V) -> Self::I {
        half_floats::pair_elements(self, even, odd)
    }
    #[inline(never)]
    fn transpose(self, rows: [Self::V; VECTOR_LEN]) -> [Self::V; VECTOR_LEN] {
        std::array::from_fn(|j| std::array::from_fn(|i| rows[i][j]))
    }
}

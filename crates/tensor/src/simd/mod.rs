//! Portable SIMD: vectors of sixteen `f32` on every instruction set, with equal results.
//!
//! A kernel is written once, generic over [`Simd`], and [`dispatch`] compiles it three times:
//! AVX-512 (one register a vector), AVX2 with FMA (two registers) and portable Rust (an array). All
//! three perform the same IEEE operations on the same elements, and horizontal sums use one fixed
//! tree over the sixteen elements, so the choice of instruction set never changes a bit.
//!
//! Functions that take part in a kernel must be `#[inline(always)]`: only then are they compiled
//! with the instructions of the kernel they belong to.
#![expect(unsafe_code, reason = "CPU intrinsics and calls into functions with target features")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod half_floats;
mod portable;

pub use crate::isa::Isa;
pub(crate) use half_floats::{flush, round_bf16, widen_bf16};

use crate::amx::Amx;

/// Elements of a vector, on every instruction set.
pub const VECTOR_LEN: usize = 16;

/// Operations of one instruction set on vectors of sixteen elements.
///
/// A value of an implementing type is proof that the CPU has the instructions: only [`dispatch`]
/// makes one. Comparisons follow x86: `max(a, b)` is `a` where `a > b`, else `b`, so a NaN in `a`
/// yields `b`.
#[expect(missing_docs, reason = "the names are the arithmetic they do")]
#[expect(clippy::wrong_self_convention, reason = "`self` is the proof, not the operand")]
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen `f32`.
    type V: Copy;
    /// Sixteen `i32`.
    type I: Copy;
    /// Sixteen `f64`.
    type D: Copy;
    /// Instruction set, to choose tile sizes at compile time.
    const ISA: Isa;
    /// Whether the CPU also multiplies tiles of bf16 (AMX) and this process may use them.
    const AMX: bool = false;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, x: &[f32; VECTOR_LEN]) -> Self::V;
    fn store(self, v: Self::V, out: &mut [f32; VECTOR_LEN]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where `a < b`, else `no` (also where either is NaN).
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Nearest integer, ties to even; elements must fit an `i32`.
    fn round_to_int(self, a: Self::V) -> Self::I;
    fn int_to_float(self, a: Self::I) -> Self::V;
    fn bits(self, a: Self::V) -> Self::I;
    fn from_bits(self, a: Self::I) -> Self::V;
    fn splat_int(self, x: i32) -> Self::I;
    fn load_int(self, x: &[i32; VECTOR_LEN]) -> Self::I;
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn and_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn or_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn shift_left<const N: u32>(self, a: Self::I) -> Self::I;
    /// Logical shift: zeros enter from the left.
    fn shift_right<const N: u32>(self, a: Self::I) -> Self::I;

    /// Loads and widens sixteen unsigned numbers.
    fn load_u16(self, x: &[u16; VECTOR_LEN]) -> Self::I;
    /// Stores sixteen numbers below 2^16.
    fn store_u16(self, a: Self::I, out: &mut [u16; VECTOR_LEN]);
    /// Loads and widens sixteen `f16`, given by their bits.
    fn load_f16(self, x: &[u16; VECTOR_LEN]) -> Self::V;
    /// Stores the bits of the nearest `f16`, ties to even.
    fn store_f16(self, v: Self::V, out: &mut [u16; VECTOR_LEN]);
    /// Packs thirty-two numbers as bf16: element i holds numbers 2i (lower half) and 2i + 1 of
    /// `first` followed by `second`. Rounds to nearest even; a subnormal number becomes zero.
    #[inline(always)]
    fn pair_neighbours(self, first: Self::V, second: Self::V) -> Self::I {
        half_floats::pair_neighbours(self, first, second)
    }
    /// Packs pairs of bf16: element i holds elements i of `even` (lower half) and of `odd`. Rounds
    /// as [`Simd::pair_neighbours`].
    #[inline(always)]
    fn pair_elements(self, even: Self::V, odd: Self::V) -> Self::I {
        half_floats::pair_elements(self, even, odd)
    }

    fn splat_f64(self, x: f64) -> Self::D;
    /// Converts sixteen `f32` to `f64`, exactly.
    fn widen(self, v: Self::V) -> Self::D;
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D;
    fn fma_f64(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    fn to_array_f64(self, a: Self::D) -> [f64; VECTOR_LEN];

    /// Runs another kernel as a separate function, which is compiled once for all callers.
    fn call<K: Kernel>(self, kernel: K) -> K::Out;

    /// Hints that the cache line of `x`, which may point anywhere, is needed soon.
    #[inline(always)]
    fn prefetch(self, _x: *const f32) {}

    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        self.from_bits(self.xor_int(self.bits(a), self.splat_int(i32::MIN)))
    }

    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        self.from_bits(self.and_int(self.bits(a), self.splat_int(i32::MAX)))
    }

    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; VECTOR_LEN] {
        let mut out = [0.0; VECTOR_LEN];
        self.store(v, &mut out);
        out
    }

    /// Loads up to sixteen elements; missing ones are zero.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        let mut values = [0.0; VECTOR_LEN];
        values[..x.len()].copy_from_slice(x);
        self.load(&values)
    }

    /// Stores the first `out.len()` elements.
    #[inline(always)]
    fn store_partial(self, v: Self::V, out: &mut [f32]) {
        let values = self.to_array(v);
        out.copy_from_slice(&values[..out.len()]);
    }

    /// Transposes a square: element j of row i becomes element i of row j.
    #[inline(always)]
    fn transpose(self, rows: [Self::V; VECTOR_LEN]) -> [Self::V; VECTOR_LEN] {
        let rows = rows.map(|row| self.to_array(row));
        std::array::from_fn(|j| self.load(&std::array::from_fn(|i| rows[i][j])))
    }

    /// Sums all elements by one fixed tree: element i with i + 8, then i + 4, i + 2, i + 1.
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        let mut values = self.to_array(v);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                values[i] += values[i + half];
            }
        }
        values[0]
    }

    /// Sums all elements by the tree of [`Simd::reduce_add`], in `f64`.
    #[inline(always)]
    fn reduce_add_f64(self, v: Self::D) -> f64 {
        let mut values = self.to_array_f64(v);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                values[i] += values[i + half];
            }
        }
        values[0]
    }

    /// The largest element (none may be NaN).
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        let mut values = self.to_array(v);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                if values[i + half] > values[i] {
                    values[i] = values[i + half];
                }
            }
        }
        values[0]
    }
}

/// A computation written once for every instruction set.
pub trait Kernel {
    /// Result of the kernel.
    type Out;
    /// Runs the kernel; implementations must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// Runs a kernel compiled for `isa`.
///
/// # Panics
/// When this CPU does not have the instruction set.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Out {
    assert!(isa.is_available(), "this CPU has no {isa}");
    match isa {
        Isa::Portable => portable::run(kernel),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the assertion above proved that the CPU has these instructions.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 => unsafe { avx512::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("only x86-64 has {isa}"),
    }
}

/// Runs a kernel that multiplies tiles: on the CPU's matrix units if `amx` proves them, else
/// compiled for `isa`.
#[inline]
pub(crate) fn dispatch_tiles<K: Kernel>(isa: Isa, amx: Option<Amx>, kernel: K) -> K::Out {
    match amx {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no `Amx` without AVX-512 with bf16 and permission to use tiles.
        Some(_) => unsafe { avx512::run_amx(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        Some(_) => unreachable!("only x86-64 has AMX"),
        None => dispatch(isa, kernel),
    }
}

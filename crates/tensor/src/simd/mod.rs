//! Sixteen virtual `f32` lanes, the same on every instruction set.
//!
//! A kernel is written once, generic over [`Simd`], and [`dispatch`] compiles it three times:
//! AVX-512 (one register a vector), AVX2 with FMA (two registers) and portable Rust (an array).
//! All three perform the same IEEE operations on the same lanes, and horizontal sums use one fixed
//! tree over the sixteen lanes, so the choice of instruction set never changes a bit.
//!
//! Functions that take part in a kernel must be `#[inline(always)]`: only then are they compiled
//! with the instructions of the kernel they belong to.
#![expect(unsafe_code, reason = "CPU intrinsics and calls into functions with target features")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod halves;
mod portable;

use crate::amx::Amx;

pub(crate) use halves::{flush, round_bf16, widen_bf16};
use std::fmt;

/// Number of virtual lanes of a vector, on every instruction set.
pub const VECTOR_LEN: usize = 16;

/// An instruction set that kernels can be compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, for any CPU; fused multiply-add may be done in software.
    Portable,
    /// AVX2, FMA and F16C: two 256-bit registers a vector.
    Avx2,
    /// AVX-512: one 512-bit register a vector.
    Avx512,
}

impl Isa {
    /// The best instruction set of this CPU.
    pub fn detect() -> Self {
        *Self::available().last().expect("portable is always there")
    }

    /// All instruction sets that this CPU can run, slowest first.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

/// The operations of one instruction set on sixteen lanes.
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
    /// Which instruction set this is, for choosing tile sizes at compile time.
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
    /// Nearest integer, ties to even; lanes must fit an `i32`.
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
    /// Logical: zeros come in from the left.
    fn shift_right<const N: u32>(self, a: Self::I) -> Self::I;

    /// Sixteen unsigned numbers, widened.
    fn load_u16(self, x: &[u16; VECTOR_LEN]) -> Self::I;
    /// Stores sixteen numbers below 2^16.
    fn store_u16(self, a: Self::I, out: &mut [u16; VECTOR_LEN]);
    /// Sixteen `f16` by their bits, widened.
    fn load_f16(self, x: &[u16; VECTOR_LEN]) -> Self::V;
    /// The bits of the nearest `f16`, ties to even.
    fn store_f16(self, v: Self::V, out: &mut [u16; VECTOR_LEN]);
    /// Thirty-two numbers as bf16: lane i holds numbers 2i (lower half) and 2i + 1 of `first`
    /// followed by `second`. Rounded to nearest even; a subnormal number counts as zero.
    #[inline(always)]
    fn pair_neighbours(self, first: Self::V, second: Self::V) -> Self::I {
        halves::pair_neighbours(self, first, second)
    }
    /// The same with lane i of `even` (lower half) and of `odd`.
    #[inline(always)]
    fn pair_lanes(self, even: Self::V, odd: Self::V) -> Self::I {
        halves::pair_lanes(self, even, odd)
    }

    fn splat_f64(self, x: f64) -> Self::D;
    /// Exact conversion of sixteen `f32` to `f64`.
    fn widen(self, v: Self::V) -> Self::D;
    fn add_f64(self, a: Self::D, b: Self::D) -> Self::D;
    fn fma_f64(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    fn to_array_f64(self, a: Self::D) -> [f64; VECTOR_LEN];

    /// Runs another kernel as a function of its own, compiled once however many callers it has.
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

    /// Up to sixteen elements; missing lanes are zero.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        let mut lanes = [0.0; VECTOR_LEN];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    /// Stores the first `out.len()` lanes.
    #[inline(always)]
    fn store_partial(self, v: Self::V, out: &mut [f32]) {
        let lanes = self.to_array(v);
        out.copy_from_slice(&lanes[..out.len()]);
    }

    /// The transpose of a square: lane j of row i becomes lane i of row j.
    #[inline(always)]
    fn transpose(self, rows: [Self::V; VECTOR_LEN]) -> [Self::V; VECTOR_LEN] {
        let rows = rows.map(|row| self.to_array(row));
        std::array::from_fn(|j| self.load(&std::array::from_fn(|i| rows[i][j])))
    }

    /// The sum of all lanes by one fixed tree: lane i with i + 8, then i + 4, i + 2, i + 1.
    #[inline(always)]
    fn reduce_add(self, v: Self::V) -> f32 {
        let mut lanes = self.to_array(v);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }

    /// The same tree as [`Simd::reduce_add`], in `f64`.
    #[inline(always)]
    fn reduce_add_f64(self, v: Self::D) -> f64 {
        let mut lanes = self.to_array_f64(v);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }

    /// The largest lane (lanes must not be NaN).
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        let mut lanes = self.to_array(v);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                if lanes[i + half] > lanes[i] {
                    lanes[i] = lanes[i + half];
                }
            }
        }
        lanes[0]
    }
}

/// A computation written once for every instruction set.
pub trait Kernel {
    /// What it returns.
    type Out;
    /// Runs it; implementations must be `#[inline(always)]`.
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
        Isa::Portable => kernel.run(portable::Portable::new()),
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

/// Runs a kernel that multiplies tiles: on the CPU's matrix units if it has them (`amx` is the
/// proof), else compiled for `isa`.
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

#[cfg(test)]
mod tests;

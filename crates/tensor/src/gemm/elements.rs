//! Storage types of operands, and the precision of products.
//!
//! The two are independent: weights may be stored as `f32` master weights or as the bf16 that came
//! over the network, and a product in bf16 rounds the former and reads the latter directly. Packing
//! converts the operand, so there is no extra pass over memory.

use crate::simd::{Simd, VECTOR_LEN, widen_bf16};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::fmt;

/// Precision of the operands of products; sums are always `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// Unrounded operands.
    F32,
    /// Operands rounded to bf16; on the CPU's matrix units if there are any, else with equal bits
    /// on the vector units.
    Bf16,
    /// Operands rounded to `f16`, widened again and multiplied as `f32`.
    F16,
    /// Operands in eight bits with a scale for each block of them ([`crate::fp8`]); a CPU
    /// dequantises them and multiplies in `f32`.
    Fp8,
}

impl Precision {
    /// Name of the arithmetic: runs of one class give equal bits on every machine.
    ///
    /// bf16 has one class for all CPUs: without matrix units, the vector units do the same
    /// operations in the same order.
    pub fn kernel_class(self) -> &'static str {
        match self {
            Self::F32 => "f32-fma",
            Self::Bf16 => "bf16-amx",
            Self::F16 => "f16-fma",
            Self::Fp8 => "fp8-emulated",
        }
    }

    /// Whether a product over `k` that is added to its target is first rounded to one number, as if
    /// it had been stored and added afterwards.
    pub const fn fuses(self, k: usize) -> bool {
        match self {
            Self::F32 | Self::F16 => k <= super::K_BLOCK,
            Self::Bf16 => k <= super::tiles::STEP,
            Self::Fp8 => false,
        }
    }

    /// Precision of the products that fp8 leaves alone: attention, embedding and head.
    pub const fn unquantised(self) -> Self {
        match self {
            Self::Fp8 => Self::Bf16,
            other => other,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Fp8 => "fp8",
        })
    }
}

/// Elements of a matrix by storage type.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Four bytes each.
    F32(&'a [f32]),
    /// The upper two bytes of an `f32` each.
    Bf16(&'a [bf16]),
    /// IEEE half precision.
    F16(&'a [f16]),
}

/// Runs `$body` with `$x` as the slice of whichever type the elements have.
macro_rules! of_any_type {
    ($elements:expr, $x:ident => $body:expr) => {
        match $elements {
            $crate::gemm::Elements::F32($x) => $body,
            $crate::gemm::Elements::Bf16($x) => $body,
            $crate::gemm::Elements::F16($x) => $body,
        }
    };
}
pub(crate) use of_any_type;

impl Elements<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        of_any_type!(self, x => x.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One element, widened.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(x) => x[index],
            Self::Bf16(x) => x[index].to_f32(),
            Self::F16(x) => x[index].to_f32(),
        }
    }

    /// Address of element `index`, for prefetches only; it may be out of bounds.
    pub(super) fn address(&self, index: usize) -> *const f32 {
        of_any_type!(self, x => x.as_ptr().wrapping_add(index).cast())
    }
}

/// A type that operands can be stored as.
pub(crate) trait Element: Copy {
    /// Loads sixteen elements, widened.
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V;
    /// Loads up to sixteen elements; missing ones are zero.
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V;
    /// The elements themselves, if they are `f32` and need no conversion.
    #[inline(always)]
    fn as_f32(_x: &[Self]) -> Option<&[f32]> {
        None
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V {
        s.load(x)
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        s.load_partial(x)
    }
    #[inline(always)]
    fn as_f32(x: &[Self]) -> Option<&[f32]> {
        Some(x)
    }
}

/// Bits of up to sixteen two-byte floats, padded with zeros.
#[inline(always)]
fn bits<T>(x: &[T]) -> [u16; VECTOR_LEN]
where
    [T]: HalfFloatSliceExt,
{
    let mut bits = [0; VECTOR_LEN];
    let x = x.reinterpret_cast();
    bits[..x.len()].copy_from_slice(x);
    bits
}

impl Element for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V {
        let x = x.reinterpret_cast().first_chunk().expect("as many");
        let [v, _] = widen_bf16(s, s.load_u16(x));
        v
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        let [v, _] = widen_bf16(s, s.load_u16(&bits(x)));
        v
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V {
        s.load_f16(x.reinterpret_cast().first_chunk().expect("as many"))
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        s.load_f16(&bits(x))
    }
}

/// Rounds to the nearest `f16` and widens again.
#[inline(always)]
pub(crate) fn through_f16<S: Simd>(s: S, v: S::V) -> S::V {
    let mut bits = [0; VECTOR_LEN];
    s.store_f16(v, &mut bits);
    s.load_f16(&bits)
}

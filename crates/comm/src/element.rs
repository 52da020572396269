//! Element types and reductions.
//!
//! Two-byte floating-point numbers are added in `f32` and rounded back after *every* addition, so
//! that a sum depends on the order of its tree only and not on the rank that computes a partial
//! sum. Integers wrap around, which makes their sums independent of any order.

use std::fmt;

use half::{bf16, f16};
use lockstep_platform::Plain;

/// The type of the elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Dtype {
    F32,
    F64,
    Bf16,
    F16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Dtype {
    /// Every type, in the order of their codes on the wire.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F16,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// The name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// Size of an element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::Bf16 | Self::F16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reduction operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reduction {
    /// Sum of the addends.
    Sum,
    /// Sum divided by the number of addends.
    Mean,
    /// Largest value.
    Max,
    /// Smallest value.
    Min,
}

impl Reduction {
    /// Every reduction, in the order of their codes on the wire.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Max, Self::Min];
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        })
    }
}

/// A type whose values can be reduced.
pub trait Element: Plain + PartialEq + fmt::Debug {
    /// Run-time type.
    const DTYPE: Dtype;
    /// `a + b`.
    fn add(a: Self, b: Self) -> Self;
    /// `a` if it is larger than `b`, else `b`.
    fn max(a: Self, b: Self) -> Self;
    /// `a` if it is smaller than `b`, else `b`.
    fn min(a: Self, b: Self) -> Self;
    /// `a / n`, rounded to nearest for floating point, toward zero for integers.
    fn divide(a: Self, n: usize) -> Self;
    /// A small whole number in this type; for tests and examples.
    fn from_small(x: u8) -> Self;
}

macro_rules! float {
    ($t:ty, $dtype:ident) => {
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline(always)]
            fn add(a: Self, b: Self) -> Self {
                a + b
            }
            #[inline(always)]
            fn max(a: Self, b: Self) -> Self {
                if a > b { a } else { b }
            }
            #[inline(always)]
            fn min(a: Self, b: Self) -> Self {
                if a < b { a } else { b }
            }
            #[inline(always)]
            fn divide(a: Self, n: usize) -> Self {
                a / n as Self
            }
            fn from_small(x: u8) -> Self {
                Self::from(x)
            }
        }
    };
}
float!(f32, F32);
float!(f64, F64);

macro_rules! integer {
    ($($t:ty => $dtype:ident),*) => { $(
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline(always)]
            fn add(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn max(a: Self, b: Self) -> Self {
                Ord::max(a, b)
            }
            #[inline(always)]
            fn min(a: Self, b: Self) -> Self {
                Ord::min(a, b)
            }
            #[inline(always)]
            #[expect(clippy::allow_attributes, reason = "which lint fires depends on the type")]
            #[allow(clippy::cast_lossless, clippy::cast_possible_wrap, reason = "n is small")]
            fn divide(a: Self, n: usize) -> Self {
                // Wide enough for the number of ranks, whatever the type.
                (a as i128 / n as i128) as Self
            }
            #[expect(clippy::allow_attributes, reason = "which lint fires depends on the type")]
            #[allow(clippy::cast_possible_wrap, clippy::cast_lossless, reason = "it is small")]
            fn from_small(x: u8) -> Self {
                x as Self
            }
        }
    )* };
}
integer!(i8 => I8, i16 => I16, i32 => I32, i64 => I64);
integer!(u8 => U8, u16 => U16, u32 => U32, u64 => U64);

macro_rules! half_float {
    ($t:ty, $dtype:ident, $widen:ident, $narrow:ident) => {
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline(always)]
            fn add(a: Self, b: Self) -> Self {
                Self::from_bits($narrow($widen(a.to_bits()) + $widen(b.to_bits())))
            }
            #[inline(always)]
            fn max(a: Self, b: Self) -> Self {
                if $widen(a.to_bits()) > $widen(b.to_bits()) { a } else { b }
            }
            #[inline(always)]
            fn min(a: Self, b: Self) -> Self {
                if $widen(a.to_bits()) < $widen(b.to_bits()) { a } else { b }
            }
            #[inline(always)]
            fn divide(a: Self, n: usize) -> Self {
                Self::from_bits($narrow($widen(a.to_bits()) / n as f32))
            }
            fn from_small(x: u8) -> Self {
                Self::from_bits($narrow(f32::from(x)))
            }
        }
    };
}
half_float!(bf16, Bf16, widen_bf16, narrow_bf16);
half_float!(f16, F16, widen_f16, narrow_f16);

#[inline(always)]
fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Round to nearest, ties to even; a NaN stays one. Without branches, so that it vectorises.
#[inline(always)]
fn narrow_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let quiet = bits | 0x0040_0000;
    ((if x.is_nan() { quiet } else { rounded }) >> 16) as u16
}

/// Exact. The exponent is moved by a multiplication, which also handles the subnormal numbers.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((254 - 15) << 23);
    // Infinity and NaN have the largest exponent in both formats.
    let special = 0x7f80_0000 | (magnitude << 13);
    let value = if magnitude >= 0x7c00 { special } else { scaled.to_bits() };
    f32::from_bits(sign | value)
}

/// Round to nearest, ties to even; a NaN stays one, and large values become infinite.
#[inline(always)]
fn narrow_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Results below 2^-14 are subnormal: adding a half makes the adder do the rounding.
    let shifted = f32::from_bits(magnitude) + 0.5;
    let subnormal = shifted.to_bits().wrapping_sub(0.5_f32.to_bits());
    let odd = (magnitude >> 13) & 1;
    let rebased = magnitude.wrapping_sub((127 - 15) << 23);
    let normal = rebased.wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    // 65520 and more round to infinity.
    let large = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let value = if magnitude >= 0x477f_f000 { large } else { finite };
    (sign | value) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen_f16(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()));
            let theirs = bf16::from_bits(bits).to_f32();
            assert!(widen_bf16(bits).to_bits() == theirs.to_bits() || theirs.is_nan());
        }
    }

    #[test]
    fn narrowing_rounds_as_the_half_crate_does() {
        // Every exponent, both signs, and mantissas around each rounding boundary.
        for high in 0..=u16::MAX {
            for low in [0_u32, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let expected = f16::from_f32(x);
                let ours = f16::from_bits(narrow_f16(x));
                assert!(ours == expected || (ours.is_nan() && expected.is_nan()), "{x:e}");
                assert_eq!(ours.is_sign_negative(), x.is_sign_negative());
                let expected = bf16::from_f32(x);
                let ours = bf16::from_bits(narrow_bf16(x));
                assert!(ours == expected || (ours.is_nan() && expected.is_nan()), "{x:e}");
            }
        }
    }

    #[test]
    fn codes_and_sizes_are_those_of_the_types() {
        assert_eq!(Dtype::ALL.map(|dtype| dtype as usize), std::array::from_fn(|i| i));
        assert_eq!(<f64 as Element>::DTYPE.bytes(), size_of::<f64>());
        assert_eq!(<bf16 as Element>::DTYPE.bytes(), size_of::<bf16>());
        assert_eq!(i8::divide(-7, 2), -3);
        assert_eq!(u64::divide(u64::MAX, 1), u64::MAX);
    }
}

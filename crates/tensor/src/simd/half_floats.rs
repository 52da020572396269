//! bf16 and `f16` in vectors of four-byte elements, by integer arithmetic that every instruction
//! set has.
//!
//! A bf16 is the upper half of an `f32`, so widening is a shift and rounding to nearest even is an
//! addition: half of the last kept place, less one where that place is already even. The carry
//! propagates into the exponent, also from the largest number to infinity.

use super::{Simd, VECTOR_LEN};

/// Rounds each element to the nearest bf16, ties to even, in the upper half of the element; the
/// lower half is zero. A NaN becomes quiet; subnormal numbers are rounded like all others.
#[inline(always)]
pub(crate) fn round_bf16<S: Simd>(s: S, v: S::V) -> S::I {
    let bits = s.bits(v);
    let magnitude = s.and_int(bits, s.splat_int(i32::MAX));
    // All ones for a NaN: only magnitudes above that of infinity carry into the sign bit.
    let carry = s.shift_right::<31>(s.add_int(magnitude, s.splat_int(0x007F_FFFF)));
    let nan = s.sub_int(s.splat_int(0), carry);
    let last_place = s.and_int(s.shift_right::<16>(bits), s.splat_int(1));
    let half = s.add_int(last_place, s.splat_int(0x7FFF));
    let half = s.and_int(half, s.xor_int(nan, s.splat_int(-1)));
    let quiet = s.and_int(nan, s.splat_int(0x0040_0000));
    let rounded = s.or_int(s.add_int(bits, half), quiet);
    s.and_int(rounded, s.splat_int(UPPER))
}

/// Widens the lower and the upper halves of pairs.
#[inline(always)]
pub(crate) fn widen_bf16<S: Simd>(s: S, pairs: S::I) -> [S::V; 2] {
    let (lower, upper) = (s.shift_left::<16>(pairs), s.and_int(pairs, s.splat_int(UPPER)));
    [s.from_bits(lower), s.from_bits(upper)]
}

/// Replaces subnormal elements by zero of the same sign.
#[inline(always)]
pub(crate) fn flush<S: Simd>(s: S, v: S::V) -> S::V {
    let zero = s.from_bits(s.and_int(s.bits(v), s.splat_int(i32::MIN)));
    s.select_lt(s.abs(v), s.splat(f32::MIN_POSITIVE), zero, v)
}

/// [`Simd::pair_elements`] without special instructions.
#[inline(always)]
pub(super) fn pair_elements<S: Simd>(s: S, even: S::V, odd: S::V) -> S::I {
    let (even, odd) = (round_bf16(s, flush(s, even)), round_bf16(s, flush(s, odd)));
    s.or_int(s.shift_right::<16>(even), odd)
}

/// [`Simd::pair_neighbours`] without special instructions.
#[inline(always)]
pub(super) fn pair_neighbours<S: Simd>(s: S, first: S::V, second: S::V) -> S::I {
    let numbers = [s.to_array(first), s.to_array(second)];
    let numbers = numbers.as_flattened();
    let even: [f32; VECTOR_LEN] = std::array::from_fn(|i| numbers[2 * i]);
    let odd: [f32; VECTOR_LEN] = std::array::from_fn(|i| numbers[2 * i + 1]);
    pair_elements(s, s.load(&even), s.load(&odd))
}

/// Mask of the upper half of an element.
const UPPER: i32 = 0xFFFF_0000_u32.cast_signed();

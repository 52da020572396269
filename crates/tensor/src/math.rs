//! Transcendental functions on vectors, and on one `f64` in [`scalar`].
//!
//! Results of the system's mathematical library vary with its version and the CPU, so these are our
//! own. All have the same three parts: *reduce* the argument to a short interval with error-free
//! steps, evaluate a polynomial there, and *rebuild* the result from powers of two. Only additions,
//! products, fused products, divisions and bit operations are used, all of them exactly rounded, so
//! every instruction set returns the same bits. There are no branches: special values follow from
//! the arithmetic or from a select, and NaN propagates (its sign and payload are unspecified).
//!
//! The polynomials are minimax fits (Remez) with weights that make the relative error even.

pub mod scalar;

use crate::simd::Simd;
use std::f32::consts::{LN_2, LOG2_E};

/// Error of rounding `ln 2` to `f32`.
const LN_2_REST: f32 = -1.904_654_3e-9;

/// Adding this leaves an integer `n` in the low bits of the sum's mantissa, as `n + 126`: nine bits
/// that, shifted into place, are the exponent of `2^(n - 1)`.
const ROUND_TO_EXPONENT: f32 = 12_582_912.0 + 126.0;

/// `e^x` within 1 ulp.
///
/// Exactly 0 below about -86.99, where the result would leave the normal range (attention rows are
/// full of such terms, and subnormal numbers are slow); infinite above 88.73.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // At the lower clamp the scale is exactly 0, at the upper one the product overflows. The
    // constant comes first because `max` and `min` propagate a NaN in their second operand.
    let x = s.min(s.splat(89.0), s.max(s.splat(-87.2), x));
    let Reduced { rest, half_scale } = reduce(s, x);
    let two = s.splat(2.0);
    let twice_exp = s.fma(s.fma(twice_tail(s, rest), rest, two), rest, two);
    s.mul(twice_exp, half_scale)
}

/// `ln x` within 1 ulp, subnormal arguments included; -inf at 0, NaN below.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::V) -> S::V {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)). Subnormal numbers are lifted first.
    const SQRT_HALF_BITS: i32 = 0x3f35_04f3;
    const ONE_BITS: i32 = 0x3f80_0000;
    // ln 2 in two parts; the first is short, so that its product with an exponent is exact.
    const LN_2_HIGH: f32 = 0.693_145_75;
    const LN_2_LOW: f32 = 1.428_606_8e-6;

    let smallest_normal = s.splat(f32::MIN_POSITIVE);
    let lifted = s.select_lt(x, smallest_normal, s.mul(x, s.splat(8_388_608.0)), x);
    let lift = s.select_lt(x, smallest_normal, s.splat(-23.0), s.zero());
    let bits = s.bits(lifted);
    let biased = s.shift_right::<23>(s.add_int(bits, s.splat_int(ONE_BITS - SQRT_HALF_BITS)));
    let unbiased = s.sub_int(biased, s.splat_int(127));
    let m = s.from_bits(s.sub_int(bits, s.shift_left::<23>(unbiased)));
    let e = s.add(s.int_to_float(unbiased), lift);

    // ln(1 + f) = 2 atanh(q) with q = f / (2 + f), arranged so that the leading f stays exact.
    let f = s.sub(m, s.splat(1.0));
    let q = s.div(f, s.add(f, s.splat(2.0)));
    let z = s.mul(q, q);
    let series = s.mul(z, horner(s, z, [0.666_667_76, 0.399_774_97, 0.298_730_73]));
    let half_square = s.mul(s.mul(f, f), s.splat(0.5));
    let small = s.fma(q, s.add(half_square, series), s.mul(e, s.splat(LN_2_LOW)));
    let ln = s.fma(e, s.splat(LN_2_HIGH), s.sub(f, s.sub(half_square, small)));

    // Zero times x is NaN where x is, and 0 elsewhere (infinity is handled below).
    let ln = s.fma(x, s.zero(), ln);
    let ln = s.select_lt(s.splat(f32::MAX), x, x, ln);
    let not_positive = s.select_lt(x, s.zero(), s.splat(f32::NAN), s.splat(f32::NEG_INFINITY));
    s.select_lt(x, s.splat(f32::from_bits(1)), not_positive, ln)
}

/// `tanh x` within 3 ulp; the sign of zero is kept.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    // With t = e^(2|x|) - 1 it is t / (t + 2). t is computed so that nothing cancels near zero.
    // From 10 on the result is exactly 1.
    let magnitude = s.min(s.splat(10.0), s.abs(x));
    let Reduced { rest, half_scale } = reduce(s, s.add(magnitude, magnitude));
    let tail = s.mul(twice_tail(s, rest), rest);
    let twice_expm1 = s.fma(tail, rest, s.add(rest, rest));
    let scale_less_one = s.sub(s.add(half_scale, half_scale), s.splat(1.0));
    let t = s.fma(half_scale, twice_expm1, scale_less_one);
    with_sign_of(s, s.div(t, s.add(t, s.splat(2.0))), x)
}

/// `1 / (1 + e^-x)` within 3 ulp on both sides; exactly 0 below about -86.99.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    sigmoid_and_slope(s, x).0
}

/// The sigmoid and its derivative `sigmoid(x) * sigmoid(-x)`, which keeps its relative accuracy
/// where one of the factors is close to 1.
#[inline(always)]
pub fn sigmoid_and_slope<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    // The exponential of -|x| cannot overflow. It gives the factor that is at most 1/2, and one
    // minus that factor is accurate.
    let one = s.splat(1.0);
    let e = exp(s, s.neg(s.abs(x)));
    let smaller = s.div(e, s.add(e, one));
    let larger = s.sub(one, smaller);
    (s.select_lt(x, s.zero(), smaller, larger), s.mul(smaller, larger))
}

/// The error function within 1 ulp; the sign of zero is kept.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    const SMALL: [f32; 7] = [
        0.128_379_17,
        -0.376_126_32,
        0.112_836_875,
        -0.026_858_94,
        0.005_199_906_4,
        -0.000_813_001_24,
        0.000_083_167_74,
    ];
    const LN_ERFC: [f32; 8] = [
        0.000_174_683_31,
        -1.129_514_9,
        -0.633_346_9,
        -0.108_280_08,
        0.025_119_418,
        -0.004_171_059,
        0.000_434_461_78,
        -0.000_021_094_975,
    ];
    let z = s.mul(x, x);
    let small = s.fma(x, horner(s, z, SMALL), x);
    // Further out the complement is the exponential of a polynomial; from 4 on erf is exactly 1.
    let magnitude = s.abs(x);
    let complement = exp(s, horner(s, s.min(s.splat(4.0), magnitude), LN_ERFC));
    let large = with_sign_of(s, s.sub(s.splat(1.0), complement), x);
    s.select_lt(magnitude, s.splat(0.925), small, large)
}

/// `x = n ln 2 + rest` with `|rest| <= ln 2 / 2`, and `half_scale = 2^(n - 1)`.
struct Reduced<V> {
    rest: V,
    half_scale: V,
}

/// Requires `-127 <= n <= 128`; `half_scale` is 0 for n = -126.
///
/// Half of `2^n`, because `2^128` is not representable while `2^128 * 0.9` is.
#[inline(always)]
fn reduce<S: Simd>(s: S, x: S::V) -> Reduced<S::V> {
    let shifted = s.fma(x, s.splat(LOG2_E), s.splat(ROUND_TO_EXPONENT));
    let n = s.sub(shifted, s.splat(ROUND_TO_EXPONENT));
    // The first product cancels the leading bits of x without error.
    let rest = s.fma(n, s.splat(-LN_2), x);
    let rest = s.fma(n, s.splat(-LN_2_REST), rest);
    Reduced { rest, half_scale: s.from_bits(s.shift_left::<23>(s.bits(shifted))) }
}

/// `2 (e^r - 1 - r) / r^2` for `|r| <= ln 2 / 2`, with an error of `e^r` of about `2^-28`.
#[inline(always)]
fn twice_tail<S: Simd>(s: S, r: S::V) -> S::V {
    const COEFFICIENTS: [f32; 5] = [
        2.0 * 0.499_999_94,
        2.0 * 0.166_665_2,
        2.0 * 0.041_668_408,
        2.0 * 0.008_368_921_5,
        2.0 * 0.001_381_417_4,
    ];
    horner(s, r, COEFFICIENTS)
}

/// The polynomial with these coefficients, constant first.
#[inline(always)]
fn horner<S: Simd, const N: usize>(s: S, x: S::V, coefficients: [f32; N]) -> S::V {
    let mut sum = s.splat(coefficients[N - 1]);
    for c in coefficients[..N - 1].iter().rev() {
        sum = s.fma(sum, x, s.splat(*c));
    }
    sum
}

/// A value that is not negative, with the sign bit of `x`.
#[inline(always)]
fn with_sign_of<S: Simd>(s: S, magnitude: S::V, x: S::V) -> S::V {
    let sign = s.and_int(s.bits(x), s.splat_int(i32::MIN));
    s.from_bits(s.or_int(s.bits(magnitude), sign))
}

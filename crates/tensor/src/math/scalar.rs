//! Elementary functions of one `f64`, for tables, schedules and random numbers.
//!
//! Argument reduction as for vectors, then plain Taylor series: the reduced argument is so small
//! that a dozen terms are exact to about the last bit. Products and sums are rounded separately,
//! because a fused product is a slow library call on a CPU without the instruction.

use std::f64::consts::LOG2_E;

/// `ln 2` in two parts; the first has 32 bits, so that its product with an exponent is exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Adding and subtracting this rounds to the nearest integer, ties to even.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// `e^x` within 2 ulp, subnormal results included.
#[inline]
pub fn exp(x: f64) -> f64 {
    // Beyond these limits the result is 0 or infinite anyway.
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -750.0 { -750.0 } else { x };
    let (n, rest) = reduce_exp(x);
    // Two steps, because 2^n alone may be out of range when the product is not.
    let half = (n / 2.0 + ROUNDER) - ROUNDER;
    (1.0 + expm1_series(rest)) * power_of_two(half) * power_of_two(n - half)
}

/// The natural logarithm within 1 ulp; -inf at 0, NaN below.
#[inline]
pub fn ln(x: f64) -> f64 {
    let (high, low) = ln_parts(x);
    high + low
}

/// [`ln`] for positive normal numbers only, without branches, for loops that use vectors.
#[inline(always)]
pub(crate) fn ln_of_normal(x: f64) -> f64 {
    let (high, low) = ln_parts_of_normal(x, 0);
    high + low
}

/// `tanh x` within 3 ulp; the sign of zero is kept.
#[inline]
pub fn tanh(x: f64) -> f64 {
    // t / (t + 2) with t = e^(2|x|) - 1, which is exactly 1 long before 22.
    let magnitude = if x.abs() > 22.0 { 22.0 } else { x.abs() };
    let (n, rest) = reduce_exp(2.0 * magnitude);
    let scale = power_of_two(n);
    let t = scale * expm1_series(rest) + (scale - 1.0);
    (t / (t + 2.0)).copysign(x)
}

/// The sine, to about 1e-15 for arguments up to 1e6 in size; NaN at infinity.
#[inline]
pub fn sin(x: f64) -> f64 {
    sin_cos(x).0
}

/// The cosine, to about 1e-15 for arguments up to 1e6 in size; NaN at infinity.
#[inline]
pub fn cos(x: f64) -> f64 {
    sin_cos(x).1
}

/// Sine and cosine at little more than the cost of one of them.
#[inline(always)]
pub fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in three parts (Cody and Waite). Each of the first two has 33 bits, so that products
    // with quarter turns up to 2^20 are exact, and the leading bits of x cancel without error.
    const HALF_PI_1: f64 = 1.570_796_326_734_125_6;
    const HALF_PI_2: f64 = 6.077_100_506_303_966e-11;
    const HALF_PI_3: f64 = 2.022_266_248_795_950_6e-21;
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let turns = shifted - ROUNDER;
    let rest = ((x - turns * HALF_PI_1) - turns * HALF_PI_2) - turns * HALF_PI_3;
    let z = rest * rest;
    let sin = rest + rest * z * series(z, &SIN_TERMS);
    // A zero argument keeps its sign.
    let sin = if x == 0.0 { x } else { sin };
    let cos = 1.0 - (0.5 * z - z * z * series(z, &COS_TERMS));
    // The sum's lowest bits count the quarter turns. Odd ones swap sine and cosine; the second
    // half of the circle negates the sine, the second and third quarter the cosine. Selects and
    // sign bits instead of branches let a loop over many arguments use vectors.
    let quarter = shifted.to_bits();
    let (sin, cos) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let sign = |bit: u64| (bit & 2) << 62;
    (
        f64::from_bits(sin.to_bits() ^ sign(quarter)),
        f64::from_bits(cos.to_bits() ^ sign(quarter + 1)),
    )
}

/// `x` to an integer power by repeated squaring.
#[inline]
pub fn powi(x: f64, exponent: i32) -> f64 {
    let mut result = 1.0;
    let mut square = x;
    let mut bits = exponent.unsigned_abs();
    while bits > 0 {
        if bits & 1 == 1 {
            result *= square;
        }
        square *= square;
        bits >>= 1;
    }
    if exponent < 0 { 1.0 / result } else { result }
}

/// `x^y` for `x >= 0`, within a few ulp; NaN for negative `x` (use [`powi`] there).
#[inline]
pub fn powf(x: f64, y: f64) -> f64 {
    if y == 0.0 {
        return 1.0;
    }
    // The exponential magnifies the absolute error of y ln x, so that product keeps its rounding
    // error.
    let (high, low) = ln_parts(x);
    let product = y * high;
    let power = exp(product);
    let dropped = y.mul_add(high, -product) + y * low;
    // At 0 and infinity there is nothing to correct, and the dropped part is NaN.
    if power > 0.0 && power < f64::INFINITY { power + power * dropped } else { power }
}

/// The logarithm as a sum of two numbers, with about ten extra bits.
#[inline]
fn ln_parts(x: f64) -> (f64, f64) {
    if x.is_nan() || x < 0.0 {
        return (f64::NAN, 0.0);
    }
    if x == 0.0 {
        return (f64::NEG_INFINITY, 0.0);
    }
    if x > f64::MAX {
        return (f64::INFINITY, 0.0);
    }
    if x < f64::MIN_POSITIVE {
        // Subnormal numbers are lifted by 2^54.
        return ln_parts_of_normal(x * 18_014_398_509_481_984.0, 54);
    }
    ln_parts_of_normal(x, 0)
}

/// The logarithm of `x / 2^lift` for a positive normal `x`, in two parts.
#[inline(always)]
fn ln_parts_of_normal(x: f64, lift: i32) -> (f64, f64) {
    const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_667f_3bcd;
    const ONE_BITS: u64 = 0x3ff0_0000_0000_0000;
    // x = (1 + f) * 2^e with 1 + f in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits();
    let biased = (bits + (ONE_BITS - SQRT_HALF_BITS)) >> 52;
    let f = f64::from_bits(bits + ONE_BITS - (biased << 52)) - 1.0;
    let e = f64::from((biased as u32).cast_signed() - 1023 - lift);

    // ln(1 + f) = 2 atanh(q) with q = f / (2 + f), arranged so that the leading f stays exact.
    let q = f / (2.0 + f);
    let z = q * q;
    let half_square = 0.5 * f * f;
    let small = q * (half_square + z * series(z, &ATANH_TERMS)) + e * LN_2_LOW;
    let (high, dropped) = exact_sum(e * LN_2_HIGH, f);
    exact_sum(high, dropped + (small - half_square))
}

/// `x = n ln 2 + rest` with `|rest| <= ln 2 / 2`.
#[inline]
fn reduce_exp(x: f64) -> (f64, f64) {
    let n = (x * LOG2_E + ROUNDER) - ROUNDER;
    (n, (x - n * LN_2_HIGH) - n * LN_2_LOW)
}

/// `e^r - 1` for `|r| <= ln 2 / 2`.
#[inline]
fn expm1_series(r: f64) -> f64 {
    r + r * r * series(r, &EXP_TERMS)
}

/// `2^n` for an integer in the range of normal exponents.
#[inline]
fn power_of_two(n: f64) -> f64 {
    f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// The sum of two numbers as its rounded value and the exact rounding error (Knuth's two-sum).
#[inline(always)]
fn exact_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_rounded = sum - a;
    (sum, (a - (sum - b_rounded)) + (b - b_rounded))
}

/// The polynomial with these coefficients, constant first.
#[inline(always)]
fn series<const N: usize>(x: f64, terms: &[f64; N]) -> f64 {
    terms.iter().rev().fold(0.0, |sum, term| sum * x + term)
}

/// `1/2!, 1/3!, ... 1/14!`: the exponential series after its first two terms.
const EXP_TERMS: [f64; 13] = [
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
    1.0 / 6_227_020_800.0,
    1.0 / 87_178_291_200.0,
];

/// `-1/3!, 1/5!, ... -1/15!`: the sine series after its first term, in powers of the square.
const SIN_TERMS: [f64; 7] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5_040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
];

/// `1/4!, -1/6!, ... 1/16!`: the cosine series after its first two terms.
const COS_TERMS: [f64; 7] = [
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
];

/// `2/3, 2/5, ... 2/21`: twice the series of the inverse hyperbolic tangent after its first term.
const ATANH_TERMS: [f64; 10] = [
    2.0 / 3.0,
    2.0 / 5.0,
    2.0 / 7.0,
    2.0 / 9.0,
    2.0 / 11.0,
    2.0 / 13.0,
    2.0 / 15.0,
    2.0 / 17.0,
    2.0 / 19.0,
    2.0 / 21.0,
];

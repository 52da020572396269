//! Scalar model of the matrix units: one element of one step, operation by operation.

/// The target after one step: `a` and `b` are the 32 left and right factors.
pub(crate) fn step(target: f32, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let chain = |start: usize| {
        (start..super::STEP).step_by(2).fold(0.0, |sum, k| fma(flush(a(k)), flush(b(k)), sum))
    };
    flush(flush(target) + flush(chain(0) + chain(1)))
}

/// Zero, with its sign, for a subnormal number.
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// Scale that makes every subnormal number normal.
const UP: f32 = (1u64 << 60) as f32;

/// `a * b + c` with one rounding, zero if that is subnormal. The factors are bf16.
fn fma(a: f32, b: f32, c: f32) -> f32 {
    let result = a.mul_add(b, c);
    if result.is_nan() || result.abs() > f32::MIN_POSITIVE {
        return result;
    }
    // The largest subnormal results round up to the smallest normal number, but count as subnormal
    // if they would not with one more bit, so the rounding is repeated on scaled values.
    let exact = sum_to_odd(f64::from(a) * f64::from(b), f64::from(c));
    let scaled = (exact * f64::from(UP)) as f32;
    if scaled.abs() < UP * f32::MIN_POSITIVE { 0.0f32.copysign(scaled) } else { result }
}

/// `a + b` rounded to odd (Boldo and Melquiond 2008): an inexact sum has a last bit of one, so that
/// a second rounding, to far fewer bits, equals one rounding of the exact sum.
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let b_part = sum - a;
    let lost = (a - (sum - b_part)) + (b - b_part);
    if lost == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let away_from_zero = (lost > 0.0) == (sum > 0.0);
    f64::from_bits(if away_from_zero { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

//! Eight bits an element: multiples of 1/127 of the largest magnitude, with stochastic rounding.
//!
//! The probability of rounding up is the distance from below, so the mean of the decoded value is
//! the input (*unbiased*): errors of ranks and steps cancel, and no residual is needed.

use super::bit_packing::take_f32;
use lockstep_tensor::random::Key;
use lockstep_tensor::simd::{Isa, Kernel, Simd, VECTOR_LEN, dispatch};

/// Bytes of a tensor's message.
pub const fn message_len(len: usize) -> usize {
    size_of::<f32>() + len
}

/// Encodes a tensor; `key` is the random stream of the rounding, and no bit depends on `isa`.
pub fn encode(isa: Isa, values: &[f32], key: Key, message: &mut Vec<u8>) {
    let unit = largest(values) / 127.0;
    message.extend(unit.to_le_bytes());
    let start = message.len();
    message.resize(start + values.len(), 0);
    dispatch(isa, Encode { values, unit, key, out: &mut message[start..] });
}

struct Encode<'a> {
    values: &'a [f32],
    unit: f32,
    key: Key,
    out: &'a mut [u8],
}

impl Kernel for Encode<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let values = self.values.chunks(2 * VECTOR_LEN).zip(self.out.chunks_mut(2 * VECTOR_LEN));
        for (number, (values, out)) in (0..).zip(values) {
            let chances = self.key.uniform_pairs::<VECTOR_LEN>(number * VECTOR_LEN as u64);
            let chances = chances.as_flattened();
            for (i, (value, out)) in values.iter().zip(out).enumerate() {
                // A unit that is zero or not a number gives every element the same code.
                let exact = f64::from(*value) / f64::from(self.unit);
                *out = (floor(exact + chances[i]).clamp(-127, 127) as i8).cast_unsigned();
            }
        }
    }
}

/// Floor as an integer; zero for NaN.
#[inline(always)]
fn floor(number: f64) -> i32 {
    let towards_zero = number as i32;
    towards_zero.saturating_sub(i32::from(f64::from(towards_zero) > number))
}

/// Decodes a message and adds it to `into`.
pub fn decode(mut message: &[u8], into: &mut [f32]) {
    let unit = take_f32(&mut message);
    for (value, &byte) in into.iter_mut().zip(message) {
        *value += f32::from(byte.cast_signed()) * unit;
    }
}

/// Largest magnitude; NaN if any value is NaN.
pub(super) fn largest(values: &[f32]) -> f32 {
    let more = |most: f32, value: f32| if value <= most || most.is_nan() { most } else { value };
    values.iter().map(|value| value.abs()).fold(0.0, more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::{mean_and_error, values};

    #[test]
    fn the_mean_is_what_was_sent_and_no_element_is_off_by_more_than_a_unit() {
        let sent = values(300, 4);
        let unit = largest(&sent) / 127.0;
        let (mean, worst) = mean_and_error(&sent, 400, |values, key, out| {
            let mut message = Vec::new();
            encode(Isa::detect(), values, key, &mut message);
            assert_eq!(message.len(), message_len(values.len()));
            decode(&message, out);
        });
        // Each of 400 roundings deviates by at most half a unit; six standard deviations never
        // occur.
        let off = sent.iter().zip(&mean).map(|(a, b)| (f64::from(*a) - b).abs());
        assert!(off.fold(0.0, f64::max) < 6.0 * 0.5 * f64::from(unit) / 20.0);
        assert!(worst <= f64::from(unit) * 1.0001);
    }

    #[test]
    fn bytes_follow_the_definition() {
        let (values, key) = (values(100, 3), Key::new(2, "x"));
        let mut message = Vec::new();
        encode(Isa::detect(), &values, key, &mut message);
        let unit = largest(&values) / 127.0;
        let expected = (0..).zip(&values).map(|(index, value)| {
            let exact = f64::from(*value) / f64::from(unit);
            ((exact + key.uniform_f64(index)).floor().clamp(-127.0, 127.0) as i8).cast_unsigned()
        });
        assert_eq!(message[4..], expected.collect::<Vec<_>>());
    }

    #[test]
    fn zeros_stay_and_non_finite_values_show() {
        let mut message = Vec::new();
        encode(Isa::detect(), &[0.0; 5], Key::new(1, "x"), &mut message);
        let mut out = [1.0; 5];
        decode(&message, &mut out);
        assert_eq!(out.map(f32::to_bits), [1.0_f32.to_bits(); 5]);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut message = Vec::new();
            encode(Isa::detect(), &[1.0, bad, 2.0], Key::new(1, "x"), &mut message);
            let mut out = [0.0; 3];
            decode(&message, &mut out);
            assert!(out.iter().any(|value| !value.is_finite()), "{out:?}");
        }
    }
}

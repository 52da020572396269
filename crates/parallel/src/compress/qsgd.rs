//! QSGD: two to eight bits an element, rounded by chance to a few levels (Alistarh et al. 2017).
//!
//! Stretches of 512 elements share a scale, their largest absolute value; an element is its sign
//! and one of `2^(bits-1) - 1` levels, with two bits zero or all of it. The mean of what arrives is
//! what was sent. (The paper scales by the Euclidean norm, which costs more variance and wins only
//! with codes of varying length.)

use super::bits::{pack, packed_len, take_f32, unpack};
use super::int8::largest;
use lockstep_tensor::random::Key;

/// Elements that share a scale.
pub const STRETCH: usize = 512;

/// Bytes of a tensor.
pub fn message_len(len: usize, bits: u32) -> usize {
    let last = len % STRETCH;
    let of = |len: usize| size_of::<f32>() + packed_len(len, bits);
    len / STRETCH * of(STRETCH) + if last > 0 { of(last) } else { 0 }
}

const fn num_levels(bits: u32) -> u32 {
    (1 << (bits - 1)) - 1
}

/// Writes a tensor; `key` gives the chances.
pub fn encode(values: &[f32], bits: u32, key: Key, message: &mut Vec<u8>) {
    let levels = f64::from(num_levels(bits));
    for (number, stretch) in values.chunks(STRETCH).enumerate() {
        let scale = largest(stretch);
        message.extend(scale.to_le_bytes());
        let code = |(index, value): (usize, &f32)| {
            let exact = f64::from(value.abs()) / f64::from(scale) * levels;
            let chance = key.uniform_f64((number * STRETCH + index) as u64);
            let level = (exact + chance).floor().clamp(0.0, levels) as u32;
            level << 1 | u32::from(value.is_sign_negative())
        };
        pack(stretch.iter().enumerate().map(code), bits, message);
    }
}

/// Adds a tensor that was written.
pub fn decode(mut message: &[u8], bits: u32, into: &mut [f32]) {
    let levels = num_levels(bits) as f32;
    for stretch in into.chunks_mut(STRETCH) {
        let unit = take_f32(&mut message) / levels;
        let (codes, rest) = message.split_at(packed_len(stretch.len(), bits));
        message = rest;
        let len = stretch.len();
        for (value, code) in stretch.iter_mut().zip(unpack(codes, bits, len)) {
            let size = (code >> 1) as f32 * unit;
            *value += if code & 1 == 1 { -size } else { size };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::{mean_and_error, values};

    #[test]
    fn the_mean_is_what_was_sent_at_every_number_of_bits() {
        let sent = values(700, 2);
        for bits in 2..=8 {
            let step = f64::from(largest(&sent)) / f64::from(num_levels(bits));
            let (mean, worst) = mean_and_error(&sent, 400, |values, key, out| {
                let mut message = Vec::new();
                encode(values, bits, key, &mut message);
                assert_eq!(message.len(), message_len(values.len(), bits));
                decode(&message, bits, out);
            });
            let off = sent.iter().zip(&mean).map(|(a, b)| (f64::from(*a) - b).abs());
            assert!(off.fold(0.0, f64::max) < 6.0 * 0.5 * step / 20.0, "{bits} bits");
            assert!(worst <= step * 1.0001, "{bits} bits: {worst} is more than a level");
        }
    }
}

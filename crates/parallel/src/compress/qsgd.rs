//! QSGD (Alistarh et al. 2017): two to eight bits an element, stochastically rounded to a few
//! levels.
//!
//! Blocks of 512 elements share a scale, their largest magnitude; an element is its sign and one of
//! `2^(bits-1) - 1` levels. The mean of the decoded value is the input. (The paper scales by the
//! Euclidean norm, which has more variance and pays off only with variable-length codes.)

use super::bit_packing::{pack_bytes, packed_len, take_f32, unpack_bytes};
use super::int8::largest;
use lockstep_tensor::random::Key;
use lockstep_tensor::simd::{Isa, Kernel, Simd, VECTOR_LEN, dispatch};

/// Elements that share a scale.
pub const BLOCK_LEN: usize = 512;

/// Bytes of a tensor's message.
pub fn message_len(len: usize, bits: u32) -> usize {
    let last = len % BLOCK_LEN;
    let of = |len: usize| size_of::<f32>() + packed_len(len, bits);
    len / BLOCK_LEN * of(BLOCK_LEN) + if last > 0 { of(last) } else { 0 }
}

const fn num_levels(bits: u32) -> u32 {
    (1 << (bits - 1)) - 1
}

/// Encodes a tensor; `key` is the random stream of the rounding, and no bit depends on `isa`.
pub fn encode(isa: Isa, values: &[f32], bits: u32, key: Key, message: &mut Vec<u8>) {
    let levels = num_levels(bits);
    for (number, block) in values.chunks(BLOCK_LEN).enumerate() {
        let scale = largest(block);
        message.extend(scale.to_le_bytes());
        let mut codes = [0; BLOCK_LEN];
        let out = &mut codes[..block.len()];
        let first_pair = (number * BLOCK_LEN / 2) as u64;
        dispatch(isa, Encode { block, scale, levels, key, first_pair, out });
        pack_bytes(&codes[..block.len()], bits, message);
    }
}

/// Quantizes one block to levels.
struct Encode<'a> {
    block: &'a [f32],
    scale: f32,
    levels: u32,
    key: Key,
    first_pair: u64,
    out: &'a mut [u8],
}

impl Kernel for Encode<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let values = self.block.chunks(2 * VECTOR_LEN).zip(self.out.chunks_mut(2 * VECTOR_LEN));
        for (number, (values, out)) in (0..).zip(values) {
            let first = self.first_pair + number * VECTOR_LEN as u64;
            let chances = self.key.uniform_pairs::<VECTOR_LEN>(first);
            let chances = chances.as_flattened();
            for (i, (value, out)) in values.iter().zip(out).enumerate() {
                let levels = f64::from(self.levels);
                let exact = f64::from(value.abs()) / f64::from(self.scale) * levels;
                let level = ((exact + chances[i]) as u32).min(self.levels);
                *out = (level << 1 | u32::from(value.is_sign_negative())) as u8;
            }
        }
    }
}

/// Decodes a message and adds it to `into`.
pub fn decode(mut message: &[u8], bits: u32, into: &mut [f32]) {
    let levels = num_levels(bits) as f32;
    let mut codes = [0; BLOCK_LEN];
    for block in into.chunks_mut(BLOCK_LEN) {
        let unit = take_f32(&mut message) / levels;
        let (packed, rest) = message.split_at(packed_len(block.len(), bits));
        message = rest;
        let codes = &mut codes[..block.len()];
        unpack_bytes(packed, bits, codes);
        for (value, code) in block.iter_mut().zip(codes) {
            let size = f32::from(*code >> 1) * unit;
            *value += if *code & 1 == 1 { -size } else { size };
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
                encode(Isa::detect(), values, bits, key, &mut message);
                assert_eq!(message.len(), message_len(values.len(), bits));
                decode(&message, bits, out);
            });
            let off = sent.iter().zip(&mean).map(|(a, b)| (f64::from(*a) - b).abs());
            assert!(off.fold(0.0, f64::max) < 6.0 * 0.5 * step / 20.0, "{bits} bits");
            assert!(worst <= step * 1.0001, "{bits} bits: {worst} is more than a level");
        }
    }
    #[test]
    fn levels_follow_the_definition() {
        let (values, key, bits) = (values(700, 5), Key::new(3, "x"), 5);
        let levels = f64::from(num_levels(bits));
        let mut message = Vec::new();
        encode(Isa::detect(), &values, bits, key, &mut message);
        let mut arrived = vec![0.0; 700];
        decode(&message, bits, &mut arrived);
        for (index, (value, arrived)) in values.iter().zip(arrived).enumerate() {
            let block = &values[index / BLOCK_LEN * BLOCK_LEN..];
            let scale = largest(&block[..BLOCK_LEN.min(block.len())]);
            let exact = f64::from(value.abs()) / f64::from(scale) * levels;
            let level = (exact + key.uniform_f64(index as u64)).floor().clamp(0.0, levels);
            let size = level as f32 * (scale / levels as f32);
            let expected = if value.is_sign_negative() { -size } else { size };
            // Decoding adds to zero, which turns -0 into +0.
            assert_eq!((0.0 + expected).to_bits(), arrived.to_bits(), "{index}");
        }
    }
}

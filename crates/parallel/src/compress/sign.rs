//! Sign compression: one bit an element, and the mean magnitude of each row.
//!
//! With error feedback the scaled signs of all ranks are added (EF-SignSGD, Karimireddy et al.
//! 2019). Without it ranks vote: each element takes the majority sign and the sum of the magnitudes
//! (signSGD with majority vote, Bernstein et al. 2018), which one rank with huge gradients cannot
//! outvote and which does not converge in general. Each row has its own magnitude, because rows
//! differ: the embedding row of an absent token is zero and stays zero.

use super::bit_packing::{packed_len, take_f32};

/// Bytes of a tensor's message with rows of `row_len` elements.
pub fn message_len(len: usize, row_len: usize) -> usize {
    len / row_len * (size_of::<f32>() + packed_len(row_len, 1))
}

/// Encodes a tensor.
pub fn encode(values: &[f32], row_len: usize, message: &mut Vec<u8>) {
    for row in values.chunks_exact(row_len) {
        let sum = row.iter().fold(0.0, |sum, value| sum + f64::from(value.abs()));
        message.extend(((sum / row_len as f64) as f32).to_le_bytes());
        let byte = |eight: &[f32]| {
            let bit = |(i, value): (u32, &f32)| u8::from(value.is_sign_negative()) << i;
            (0..).zip(eight).map(bit).fold(0, |byte, bit| byte | bit)
        };
        message.extend(row.chunks(8).map(byte));
    }
}

/// Calls `each` with the magnitude and sign of every element.
fn rows(
    mut message: &[u8],
    row_len: usize,
    into: &mut [f32],
    mut each: impl FnMut(f32, f32, &mut f32),
) {
    for row in into.chunks_exact_mut(row_len) {
        let size = take_f32(&mut message);
        let (signs, rest) = message.split_at(packed_len(row_len, 1));
        message = rest;
        for (eight, byte) in row.chunks_mut(8).zip(signs) {
            for (i, value) in eight.iter_mut().enumerate() {
                each(size, if byte >> i & 1 == 1 { -1.0 } else { 1.0 }, value);
            }
        }
    }
}

/// Decodes a message and adds it to `into`.
pub fn decode(message: &[u8], row_len: usize, into: &mut [f32]) {
    rows(message, row_len, into, |size, sign, value| *value += sign * size);
}

/// Replaces a tensor by the majority vote of the messages, scaled by the sum of their magnitudes; a
/// tie is zero.
pub fn vote(messages: &[&[u8]], row_len: usize, into: &mut [f32]) {
    let mut sizes = vec![0.0; into.len()];
    into.fill(0.0);
    for message in messages {
        rows(message, row_len, into, |_, sign, value| *value += sign);
        rows(message, row_len, &mut sizes, |size, _, sum| *sum += size);
    }
    for (value, size) in into.iter_mut().zip(sizes) {
        *value = if *value == 0.0 { 0.0 * size } else { value.signum() * size };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(values: &[f32], row_len: usize) -> Vec<u8> {
        let mut message = Vec::new();
        encode(values, row_len, &mut message);
        assert_eq!(message.len(), message_len(values.len(), row_len));
        message
    }

    #[test]
    fn a_row_arrives_as_signs_of_its_mean_size() {
        let mut out = [0.0; 6];
        decode(&message(&[1.0, -2.0, 3.0, 0.0, 0.0, 0.0], 3), 3, &mut out);
        let expected: [f32; 6] = [2.0, -2.0, 2.0, 0.0, 0.0, 0.0];
        assert_eq!(out.map(f32::to_bits), expected.map(f32::to_bits));
    }

    #[test]
    fn the_majority_wins_against_one_large_gradient() {
        let all = [[1.0, -1.0, 3.0], [1.0, -3.0, -1.0], [-900.0, 900.0, -900.0]];
        let messages = all.map(|values| message(&values, 1));
        let mut out = [7.0; 3];
        vote(&messages.each_ref().map(Vec::as_slice), 1, &mut out);
        let sizes: [f32; 3] = [902.0, -904.0, -904.0];
        assert_eq!(out.map(f32::to_bits), sizes.map(f32::to_bits), "magnitudes are summed");
    }
}

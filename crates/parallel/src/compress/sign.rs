//! One bit an element: the sign, and the mean size of each row.
//!
//! With error feedback the scaled signs of all workers are added up (EF-SignSGD, Karimireddy et
//! al. 2019). Without it workers vote: the sign that most have, with the sum of their sizes
//! (signSGD with majority vote, Bernstein et al. 2018), which a worker with huge gradients cannot
//! outvote, and which does not converge in general. Rows have sizes of their own because they
//! differ: a token that did not occur has a row of zeros, and they stay zeros.

use super::bits::{packed_len, take_f32};

/// Bytes of a tensor whose rows have `row_len` elements.
pub fn message_len(len: usize, row_len: usize) -> usize {
    len / row_len * (size_of::<f32>() + packed_len(row_len, 1))
}

/// Writes a tensor.
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

/// Gives every row's size and signs.
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

/// Adds a tensor that was written.
pub fn decode(message: &[u8], row_len: usize, into: &mut [f32]) {
    rows(message, row_len, into, |size, sign, value| *value += sign * size);
}

/// Replaces a tensor by what the workers' messages vote for, with their sizes added up as gradients
/// are; a tie is zero.
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
    fn most_workers_win_whatever_one_of_them_says() {
        let all = [[1.0, -1.0, 3.0], [1.0, -3.0, -1.0], [-900.0, 900.0, -900.0]];
        let messages = all.map(|values| message(&values, 1));
        let mut out = [7.0; 3];
        vote(&messages.each_ref().map(Vec::as_slice), 1, &mut out);
        let sizes: [f32; 3] = [902.0, -904.0, -904.0];
        assert_eq!(out.map(f32::to_bits), sizes.map(f32::to_bits), "sizes are added up");
    }
}

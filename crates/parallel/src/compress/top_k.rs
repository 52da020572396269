//! Top-k sparsification: only the elements of largest magnitude are sent, with their indices.
//!
//! The dropped elements are a bias, not noise: without error feedback small elements are never
//! sent, and training stalls where they matter. An index takes as many bits as the tensor's length
//! needs, and is counted in the message size.

use super::bit_packing::{pack, packed_len, unpack};

/// Number of elements sent of a tensor.
pub fn num_sent(len: usize, ratio: f64) -> usize {
    ((len as f64 * ratio).ceil() as usize).clamp(1, len)
}

/// Bits of an index.
const fn place_bits(len: usize) -> u32 {
    let bits = usize::BITS - (len - 1).leading_zeros();
    if bits == 0 { 1 } else { bits }
}

/// Bytes of a tensor's message.
pub fn message_len(len: usize, ratio: f64) -> usize {
    let sent = num_sent(len, ratio);
    sent * size_of::<f32>() + packed_len(sent, place_bits(len))
}

/// Encodes a tensor; ties go to the lower index.
pub fn encode(values: &[f32], ratio: f64, message: &mut Vec<u8>) {
    let sent = num_sent(values.len(), ratio);
    let mut places: Vec<u32> = (0..values.len() as u32).collect();
    let size = |place: &u32| values[*place as usize].abs();
    if sent < places.len() {
        // This order treats NaN as the largest, so that it is sent and found.
        places.select_nth_unstable_by(sent - 1, |a, b| size(b).total_cmp(&size(a)).then(a.cmp(b)));
        places.truncate(sent);
        places.sort_unstable();
    }
    message.extend(places.iter().flat_map(|place| values[*place as usize].to_le_bytes()));
    pack(places.into_iter(), place_bits(values.len()), message);
}

/// Decodes a message and adds it to `into`.
pub fn decode(message: &[u8], ratio: f64, into: &mut [f32]) {
    let sent = num_sent(into.len(), ratio);
    let (values, places) = message.split_at(sent * size_of::<f32>());
    let (values, _) = values.as_chunks::<4>();
    let places = unpack(places, place_bits(into.len()), sent);
    for (value, place) in values.iter().zip(places) {
        into[place as usize] += f32::from_le_bytes(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::values;

    /// Definition: sort all, keep the first k.
    fn by_definition(values: &[f32], sent: usize) -> Vec<f32> {
        let mut places: Vec<usize> = (0..values.len()).collect();
        places.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()).then(a.cmp(b)));
        let mut kept = vec![0.0; values.len()];
        places[..sent].iter().for_each(|place| kept[*place] = values[*place]);
        kept
    }

    #[test]
    fn the_largest_elements_are_sent_exactly() {
        for (len, ratio) in [(1, 0.5), (7, 0.3), (1000, 0.01), (513, 0.2), (64, 1.0)] {
            let mut sent = values(len, 3);
            sent.iter_mut().step_by(3).for_each(|value| *value = value.round());
            let (mut message, mut out) = (Vec::new(), vec![0.0; len]);
            encode(&sent, ratio, &mut message);
            assert_eq!(message.len(), message_len(len, ratio));
            decode(&message, ratio, &mut out);
            assert_eq!(out, by_definition(&sent, num_sent(len, ratio)), "{len}, {ratio}");
        }
    }

    #[test]
    fn indices_count_in_the_message_size() {
        // Ten of a thousand: 32 bits for each value and ten for its index.
        assert_eq!(message_len(1000, 0.01), (10 * 42_usize).div_ceil(8));
        assert!(message_len(1000, 0.9) > 4 * 900, "more than the values alone");
    }
}

//! Packed integers of a few bits each, lowest bits first.

/// Bytes of `count` packed numbers of `bits` bits.
pub const fn packed_len(count: usize, bits: u32) -> usize {
    (count * bits as usize).div_ceil(8)
}

/// Appends numbers below `2^bits`.
pub fn pack(numbers: impl Iterator<Item = u32>, bits: u32, out: &mut Vec<u8>) {
    let (mut held, mut num_held) = (0_u64, 0);
    for number in numbers {
        held |= u64::from(number) << num_held;
        num_held += bits;
        while num_held >= 8 {
            out.push(held as u8);
            held >>= 8;
            num_held -= 8;
        }
    }
    if num_held > 0 {
        out.push(held as u8);
    }
}

/// Unpacks `count` numbers.
pub fn unpack(bytes: &[u8], bits: u32, count: usize) -> impl Iterator<Item = u32> {
    let mask = (1_u64 << bits) - 1;
    let (mut held, mut num_held, mut next) = (0_u64, 0, bytes.iter());
    (0..count).map(move |_| {
        while num_held < bits {
            held |= u64::from(*next.next().expect("as many bytes as were packed")) << num_held;
            num_held += 8;
        }
        let number = (held & mask) as u32;
        held >>= bits;
        num_held -= bits;
        number
    })
}

/// Appends numbers below `2^bits`, of up to eight bits each. Packs eight at a time into whole
/// bytes.
pub fn pack_bytes(numbers: &[u8], bits: u32, out: &mut Vec<u8>) {
    let (eights, rest) = numbers.as_chunks::<8>();
    for eight in eights {
        let mut held = 0;
        for (i, number) in (0..).zip(eight) {
            held |= u64::from(*number) << (i * bits);
        }
        out.extend_from_slice(&held.to_le_bytes()[..bits as usize]);
    }
    pack(rest.iter().map(|number| u32::from(*number)), bits, out);
}

/// Unpacks bytes written by [`pack_bytes`].
pub fn unpack_bytes(bytes: &[u8], bits: u32, numbers: &mut [u8]) {
    let mask = ((1_u32 << bits) - 1) as u8;
    let (eights, rest) = numbers.as_chunks_mut::<8>();
    let (whole, last) = bytes.split_at(eights.len() * bits as usize);
    for (eight, bytes) in eights.iter_mut().zip(whole.chunks_exact(bits as usize)) {
        let mut held = [0; 8];
        held[..bits as usize].copy_from_slice(bytes);
        let held = u64::from_le_bytes(held);
        for (i, number) in (0..).zip(eight) {
            *number = (held >> (i * bits)) as u8 & mask;
        }
    }
    let len = rest.len();
    rest.iter_mut().zip(unpack(last, bits, len)).for_each(|(byte, number)| *byte = number as u8);
}

/// Reads an `f32` and advances the message past it.
pub(super) fn take_f32(message: &mut &[u8]) -> f32 {
    let (first, rest) = message.split_first_chunk().expect("a number of four bytes");
    *message = rest;
    f32::from_le_bytes(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_round_trips() {
        for bits in 1..=32 {
            let mask = u32::MAX >> (32 - bits);
            let numbers: Vec<u32> =
                (0..77_u32).map(|i| i.wrapping_mul(0x9e37_79b9) & mask).collect();
            let mut bytes = vec![7];
            pack(numbers.iter().copied(), bits, &mut bytes);
            assert_eq!(bytes.len(), 1 + packed_len(numbers.len(), bits));
            assert_eq!(unpack(&bytes[1..], bits, 77).collect::<Vec<_>>(), numbers, "{bits}");
        }
    }

    #[test]
    fn bytes_are_packed_as_numbers_are() {
        for bits in 1..=8 {
            let numbers: Vec<u8> =
                (0..77_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> (32 - bits)) as u8).collect();
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            pack_bytes(&numbers, bits, &mut bytes);
            pack(numbers.iter().map(|number| u32::from(*number)), bits, &mut expected);
            assert_eq!(bytes, expected, "{bits}");
            let mut back = vec![0; 77];
            unpack_bytes(&bytes, bits, &mut back);
            assert_eq!(back, numbers, "{bits}");
        }
    }
}

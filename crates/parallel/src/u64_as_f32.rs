//! Exact encoding of a `u64` in four `f32`, sixteen bits each, for checkpoints of `f32` tensors.

const SHIFTS: [u32; 4] = [0, 16, 32, 48];

/// Encodes 64 bits.
pub fn encode(bits: u64) -> [f32; 4] {
    SHIFTS.map(|shift| (bits >> shift & 0xffff) as f32)
}

/// Decodes 64 bits.
pub fn decode(parts: [f32; 4]) -> u64 {
    let parts = parts.iter().zip(SHIFTS);
    parts.fold(0, |bits, (part, shift)| bits | (*part as u64 & 0xffff) << shift)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bits_round_trip() {
        for bits in [0, 1, u64::MAX, 0.1_f64.to_bits(), f64::MIN_POSITIVE.to_bits()] {
            assert_eq!(super::decode(super::encode(bits)), bits);
        }
    }
}

//! Sixty-four bits among numbers that are saved as `f32`: as four words of sixteen, each exact.

const SHIFTS: [u32; 4] = [0, 16, 32, 48];

/// The words of `bits`.
pub fn of(bits: u64) -> [f32; 4] {
    SHIFTS.map(|shift| (bits >> shift & 0xffff) as f32)
}

/// The bits that these words are of.
pub fn bits(words: [f32; 4]) -> u64 {
    let words = words.iter().zip(SHIFTS);
    words.fold(0, |bits, (word, shift)| bits | (*word as u64 & 0xffff) << shift)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bits_survive_as_words() {
        for bits in [0, 1, u64::MAX, 0.1_f64.to_bits(), f64::MIN_POSITIVE.to_bits()] {
            assert_eq!(super::bits(super::of(bits)), bits);
        }
    }
}

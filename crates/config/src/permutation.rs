//! Keyed permutation of `0..size`, evaluated one index at a time: a shuffle without memory.
//!
//! A Feistel network turns any function of half the bits into a bijection: each round replaces
//! `(left, right)` by `(right, left xor f(right))`. It works on an even number of bits, that is on
//! a power of four of at least `size`. Cycle walking (Black and Rogaway, 2002) restricts it to
//! `size`: an image outside the range is permuted again until it falls inside. The walk is short,
//! because the range holds more than a quarter of the power of four. Any sample is found in
//! constant time, on any worker, after any restart, and no shuffled list is stored.

/// Number of rounds. Four suffice for wide halves; narrow halves mix less per round, and a round
/// costs a nanosecond.
const ROUNDS: u64 = 8;

/// A bijection of `0..size`, chosen by a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    size: u64,
    key: u64,
    half_bits: u32,
}

impl Permutation {
    /// Permutation of `0..size` for `key`; `size` is from 1 to 2^62.
    pub fn new(size: u64, key: u64) -> Self {
        assert!((1..=1 << 62).contains(&size), "a permutation of {size} indices is not supported");
        let bits = u64::BITS - (size - 1).leading_zeros();
        Self { size, key, half_bits: bits.div_ceil(2).max(1) }
    }

    /// Image of `index`.
    pub fn apply(&self, index: u64) -> u64 {
        assert!(index < self.size, "index {index} lies outside a permutation of {}", self.size);
        let mut image = self.network(index);
        while image >= self.size {
            image = self.network(image);
        }
        image
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            // The high bits of a product are mixed best.
            let image = mix(mix(self.key, round), right) >> (u64::BITS - self.half_bits);
            (left, right) = (right, left ^ image);
        }
        left << self.half_bits | right
    }
}

/// Pseudo-random 64-bit function of key and value: every input bit flips about half of the output
/// bits.
pub fn mix(key: u64, value: u64) -> u64 {
    // Golden-ratio increment to spread consecutive values, then two xor-shift-multiply rounds.
    let mut z = key.rotate_left(32) ^ value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ z >> 29).wrapping_mul(0xff51_afd7_ed55_8ccd);
    z ^ z >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_size_is_permuted_without_gaps() {
        for size in 1..=300 {
            for key in 0..8 {
                let permutation = Permutation::new(size, key);
                let mut images: Vec<u64> = (0..size).map(|i| permutation.apply(i)).collect();
                images.sort_unstable();
                assert!(images.into_iter().eq(0..size), "size {size}, key {key}");
            }
        }
    }

    #[test]
    fn the_largest_sizes_stay_in_range() {
        for size in [(1 << 62) - 1, 1 << 62] {
            let permutation = Permutation::new(size, 7);
            for index in [0, 1, size / 2, size - 1] {
                assert!(permutation.apply(index) < size);
            }
        }
    }

    #[test]
    fn the_order_is_a_fixed_function_of_the_key() {
        // Changing these numbers changes the data order of every run, and thus its bits.
        let order = |key| (0..10).map(|i| Permutation::new(10, key).apply(i)).collect::<Vec<_>>();
        assert_eq!(order(1), [8, 0, 7, 1, 9, 6, 3, 2, 4, 5]);
        assert_eq!(order(2), [1, 4, 2, 8, 6, 5, 9, 0, 3, 7]);
    }

    #[test]
    fn images_spread_evenly_over_the_range() {
        // 10,000 images in ten bins: each bin expects 1000; 150 is five standard deviations.
        let permutation = Permutation::new(100_000, 3);
        let mut bins = [0_i32; 10];
        for index in 0..10_000 {
            bins[(permutation.apply(index) / 10_000) as usize] += 1;
        }
        assert!(bins.iter().all(|count| (count - 1000).abs() < 150), "{bins:?}");
    }

    #[test]
    fn one_flipped_bit_of_key_or_value_changes_about_half_of_the_result() {
        let mut changed = [0_u32; 2];
        for bit in 0..64 {
            for base in 0..16_u64 {
                let word = base.wrapping_mul(0x1234_5678_9abc_def1);
                changed[0] += (mix(word, base) ^ mix(word ^ 1 << bit, base)).count_ones();
                changed[1] += (mix(base, word) ^ mix(base, word ^ 1 << bit)).count_ones();
            }
        }
        for total in changed {
            let mean = f64::from(total) / (64.0 * 16.0);
            assert!((mean - 32.0).abs() < 1.5, "{mean} of 64 bits change on average");
        }
    }
}

//! Loss mask: which tokens of a stream are targets, one bit each.

use std::ops::Range;

use crate::permutation::mix;

/// A bit for every token of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LossMask {
    bits: Vec<u64>,
    len: usize,
}

impl LossMask {
    /// Appends a token.
    pub(crate) fn push(&mut self, is_target: bool) {
        if self.len.is_multiple_of(64) {
            self.bits.push(0);
        }
        let word = self.bits.last_mut().expect("it was pushed");
        *word |= u64::from(is_target) << (self.len % 64);
        self.len += 1;
    }

    /// Whether a token is a target.
    pub(crate) fn has(&self, token: usize) -> bool {
        assert!(token < self.len, "token {token} of {}", self.len);
        self.bits[token / 64] >> (token % 64) & 1 == 1
    }

    /// Number of targets among tokens.
    pub(crate) fn count(&self, tokens: Range<usize>) -> usize {
        if tokens.is_empty() {
            return 0;
        }
        assert!(tokens.end <= self.len, "tokens {tokens:?} of {}", self.len);
        let (first, last) = (tokens.start / 64, (tokens.end - 1) / 64);
        let word = |index: usize| {
            let mut word = self.bits[index];
            if index == first {
                word &= u64::MAX << (tokens.start % 64);
            }
            if index == last {
                word &= u64::MAX >> (63 - (tokens.end - 1) % 64);
            }
            word.count_ones() as usize
        };
        (first..=last).map(word).sum()
    }

    /// Memory in bytes.
    pub(crate) fn num_bytes(&self) -> usize {
        self.bits.capacity() * size_of::<u64>()
    }

    /// Fingerprint: 16 hexadecimal digits.
    pub(crate) fn fingerprint(&self) -> String {
        let state = self.bits.iter().fold(self.len as u64, |state, &word| mix(state, word));
        format!("{state:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_equal_those_of_single_bits() {
        let mut mask = LossMask::default();
        let bit = |token: usize| token * token % 7 < 3;
        (0..200).for_each(|token| mask.push(bit(token)));
        for start in 0..200 {
            for end in start..=200 {
                assert_eq!(mask.count(start..end), (start..end).filter(|&t| bit(t)).count());
            }
        }
        assert!((0..200).all(|token| mask.has(token) == bit(token)));
    }
}

//! What is found out about a stream as it passes by: its fingerprint, and what is frequent in it.
//!
//! Both are sums over the whole stream, so a worker that keeps only its part of a corpus finds the
//! same as one that keeps all.

use crate::permutation::mix;

/// A running fingerprint: words of eight bytes are mixed into the state, one after the other, and
/// what is left over at the end byte by byte.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    state: u64,
    pending: [u8; 8],
    num_pending: usize,
}

impl Fold {
    /// Starts with facts that two streams may differ in.
    pub(crate) fn new(first: u64, second: u64) -> Self {
        Self { state: mix(first, second), pending: [0; 8], num_pending: 0 }
    }

    /// Mixes one more fact in; only before or between whole words.
    pub(crate) fn fact(mut self, fact: u64) -> Self {
        assert_eq!(self.num_pending, 0, "facts come first");
        self.state = mix(self.state, fact);
        self
    }

    pub(crate) fn bytes(&mut self, mut bytes: &[u8]) {
        while self.num_pending > 0 && !bytes.is_empty() {
            self.byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        self.state = words.iter().fold(self.state, |s, &word| mix(s, u64::from_le_bytes(word)));
        for &byte in rest {
            self.byte(byte);
        }
    }

    pub(crate) fn tokens(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.bytes(&token.to_le_bytes());
        }
    }

    fn byte(&mut self, byte: u8) {
        self.pending[self.num_pending] = byte;
        self.num_pending = (self.num_pending + 1) % 8;
        if self.num_pending == 0 {
            self.state = mix(self.state, u64::from_le_bytes(self.pending));
        }
    }

    /// Sixteen hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let rest = &self.pending[..self.num_pending];
        let state = rest.iter().fold(self.state, |state, &byte| mix(state, u64::from(byte)));
        format!("{state:016x}")
    }
}

/// The largest vocabulary whose pairs are counted.
const MAX_PAIRED: usize = 256;

/// Counts of pairs of neighbours for bytes, of single tokens for larger vocabularies.
#[derive(Debug, Clone)]
pub(crate) struct Census {
    vocab: usize,
    counts: Vec<u64>,
    previous: Option<u32>,
}

impl Census {
    pub(crate) fn new(vocab: usize) -> Self {
        let size = if vocab <= MAX_PAIRED { MAX_PAIRED * MAX_PAIRED } else { vocab };
        Self { vocab, counts: vec![0; size], previous: None }
    }

    pub(crate) fn take(&mut self, tokens: impl IntoIterator<Item = u32>) {
        for token in tokens {
            if self.vocab > MAX_PAIRED {
                // A corpus may hold a token that its tokenizer does not know; it is not counted.
                if let Some(count) = self.counts.get_mut(token as usize) {
                    *count += 1;
                }
            } else {
                if let Some(previous) = self.previous {
                    self.counts[previous as usize * MAX_PAIRED + token as usize] += 1;
                }
                self.previous = Some(token);
            }
        }
    }

    /// The mean surprise of a token, in nats, to somebody who knows the counts and, for bytes, the
    /// byte before.
    pub(crate) fn entropy(&self) -> f64 {
        let row = if self.vocab <= MAX_PAIRED { MAX_PAIRED } else { self.counts.len() };
        let total: u64 = self.counts.iter().sum();
        let surprise: f64 = self.counts.chunks(row).map(row_surprise).sum();
        surprise / total.max(1) as f64
    }
}

/// `-Σ count · ln(count / total)` over one row.
fn row_surprise(row: &[u64]) -> f64 {
    let total: u64 = row.iter().sum();
    let seen = row.iter().filter(|&&count| count > 0);
    seen.map(|&count| count as f64 * (total as f64 / count as f64).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_does_not_depend_on_how_the_stream_is_cut() {
        let bytes: Vec<u8> = (0..1000_u32).map(|i| (i * i % 251) as u8).collect();
        let of = |piece: usize| {
            let mut fold = Fold::new(1, 2);
            bytes.chunks(piece).for_each(|bytes| fold.bytes(bytes));
            fold.finish()
        };
        for piece in [1, 5, 8, 9, 13, 999] {
            assert_eq!(of(piece), of(1000), "{piece}");
        }
    }

    #[test]
    fn a_larger_vocabulary_is_counted_token_by_token() {
        let mut census = Census::new(1000);
        census.take([500, 500, 7, 7, 999, 999, 3, 3]);
        assert!((census.entropy() - 4.0_f64.ln()).abs() < 1e-12, "four equally frequent tokens");
    }
}

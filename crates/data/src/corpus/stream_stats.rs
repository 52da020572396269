//! Statistics of a stream: its fingerprint and its token counts.
//!
//! Both cover the whole stream, so a worker that keeps only its spans gets the same results as one
//! that keeps everything.

use crate::permutation::mix;

/// Running fingerprint: mixes 64-bit words into the state, and the remaining bytes one by one.
#[derive(Debug, Clone)]
pub(crate) struct FingerprintHasher {
    state: u64,
    pending: [u8; 8],
    num_pending: usize,
}

impl FingerprintHasher {
    /// Starts with two properties of the stream.
    pub(crate) fn new(first: u64, second: u64) -> Self {
        Self { state: mix(first, second), pending: [0; 8], num_pending: 0 }
    }

    /// Mixes in another property, before any bytes.
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
        let (chunks, rest) = bytes.as_chunks::<8>();
        self.state = chunks.iter().fold(self.state, |s, &word| mix(s, u64::from_le_bytes(word)));
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

    /// Fingerprint as 16 hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let rest = &self.pending[..self.num_pending];
        let state = rest.iter().fold(self.state, |state, &byte| mix(state, u64::from(byte)));
        format!("{state:016x}")
    }
}

/// Largest vocabulary for which bigrams are counted.
const MAX_BIGRAM_VOCAB: usize = 256;

/// Counts of bigrams for bytes, of single tokens for larger vocabularies.
#[derive(Debug, Clone)]
pub(crate) struct TokenCounts {
    vocab: usize,
    counts: Vec<u64>,
    previous: Option<u32>,
}

impl TokenCounts {
    pub(crate) fn new(vocab: usize) -> Self {
        let size =
            if vocab <= MAX_BIGRAM_VOCAB { MAX_BIGRAM_VOCAB * MAX_BIGRAM_VOCAB } else { vocab };
        Self { vocab, counts: vec![0; size], previous: None }
    }

    pub(crate) fn take(&mut self, tokens: impl IntoIterator<Item = u32>) {
        for token in tokens {
            if self.vocab > MAX_BIGRAM_VOCAB {
                // Tokens outside the vocabulary are not counted.
                if let Some(count) = self.counts.get_mut(token as usize) {
                    *count += 1;
                }
            } else {
                if let Some(previous) = self.previous {
                    self.counts[previous as usize * MAX_BIGRAM_VOCAB + token as usize] += 1;
                }
                self.previous = Some(token);
            }
        }
    }

    /// Entropy in nats per token, conditional on the previous byte for bytes.
    pub(crate) fn entropy(&self) -> f64 {
        let row = if self.vocab <= MAX_BIGRAM_VOCAB { MAX_BIGRAM_VOCAB } else { self.counts.len() };
        let total: u64 = self.counts.iter().sum();
        let surprise: f64 = self.counts.chunks(row).map(row_surprise).sum();
        surprise / total.max(1) as f64
    }
}

/// `-Σ count · ln(count / total)` over one row.
fn row_surprise(row: &[u64]) -> f64 {
    let total: u64 = row.iter().sum();
    let present = row.iter().filter(|&&count| count > 0);
    present.map(|&count| count as f64 * (total as f64 / count as f64).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_does_not_depend_on_how_the_stream_is_cut() {
        let bytes: Vec<u8> = (0..1000_u32).map(|i| (i * i % 251) as u8).collect();
        let of = |piece: usize| {
            let mut fold = FingerprintHasher::new(1, 2);
            bytes.chunks(piece).for_each(|bytes| fold.bytes(bytes));
            fold.finish()
        };
        for piece in [1, 5, 8, 9, 13, 999] {
            assert_eq!(of(piece), of(1000), "{piece}");
        }
    }

    #[test]
    fn a_larger_vocabulary_is_counted_token_by_token() {
        let mut counts = TokenCounts::new(1000);
        counts.take([500, 500, 7, 7, 999, 999, 3, 3]);
        assert!((counts.entropy() - 4.0_f64.ln()).abs() < 1e-12, "four equally frequent tokens");
    }
}

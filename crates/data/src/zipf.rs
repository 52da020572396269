//! Synthetic token stream with Zipf-distributed frequencies.
//!
//! Token k is drawn with probability proportional to 1 / (k + 1)^s, independent of the previous
//! tokens; for words of a text s is about 1. Low ids are the frequent ones, as in vocabularies
//! sorted by frequency. The stream serves experiments that depend on how often embedding rows are
//! used.

use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;

/// Number of tokens in the stream.
pub(crate) const NUM_TOKENS: usize = 1 << 18;

/// Name in messages.
pub(crate) const NAME: &str = "tokens drawn by Zipf's law";

/// Fixed seed, so that the stream does not depend on the run's seed.
const SEED: u64 = 1;

/// Draws the stream for a vocabulary.
pub(crate) fn tokens(vocab: usize, exponent: f64) -> Vec<u32> {
    let weight = |token: usize| scalar::powf((token + 1) as f64, -exponent);
    let ends: Vec<f64> = (0..vocab)
        .scan(0.0, |sum, token| {
            *sum += weight(token);
            Some(*sum)
        })
        .collect();
    let key = Key::new(SEED, "data.zipf");
    let draw = |index: usize| {
        let place = key.uniform_f64(index as u64) * ends[vocab - 1];
        ends.partition_point(|end| *end <= place).min(vocab - 1) as u32
    };
    (0..NUM_TOKENS).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_as_often_as_the_law_says() {
        for exponent in [0.0, 1.0, 1.3] {
            let vocab = 500;
            let mut counts = vec![0_u32; vocab];
            for token in tokens(vocab, exponent) {
                counts[token as usize] += 1;
            }
            let chances = (0..vocab).map(|token| 1.0 / ((token + 1) as f64).powf(exponent));
            let total: f64 = chances.clone().sum();
            for (token, chance) in chances.enumerate() {
                let expected = NUM_TOKENS as f64 * chance / total;
                let error = (f64::from(counts[token]) - expected).abs();
                // Five standard deviations of a count, plus one for the rarest token.
                assert!(error < 5.0 * expected.sqrt() + 1.0, "{exponent}, {token}: {error}");
            }
        }
    }
}

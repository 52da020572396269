//! Entropy baselines: the loss that a model must beat to have learned more than frequencies.
//!
//! For bytes the baseline is the bigram entropy. The best predictor of a byte from the previous one
//! has the probabilities `count(a, b) / count(a, ·)`; its mean loss over the corpus is `H(next |
//! previous) = -Σ count(a, b) / N · ln(count(a, b) / count(a, ·))` nats per byte. No model that
//! sees only the previous byte can do better on this text. Bigrams of sub-word tokens are too many
//! to count and most are unique, so the unigram entropy takes their place.

use crate::corpus::Corpus;

/// Name of the statistic behind [`baseline_loss`] for this vocabulary.
pub fn baseline_name(vocab: usize, is_bytes: bool) -> &'static str {
    match (is_bytes, vocab) {
        (true, _) => "byte bigrams",
        (false, 0..=256) => "token bigrams",
        (false, _) => "token frequencies",
    }
}

/// Entropy of a byte given the previous byte, or of a token, over the whole corpus, in nats.
///
/// It uses the system's logarithm, which suffices for a figure that is only printed and compared.
pub fn baseline_loss(corpus: &Corpus) -> f64 {
    corpus.entropy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline_of(text: &str) -> f64 {
        baseline_loss(&Corpus::from_text("test", text, 0.5).unwrap())
    }

    fn assert_close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-12, "{left} is not {right}");
    }

    #[test]
    fn a_small_text_gives_the_entropy_worked_out_by_hand() {
        // Pairs of "aabaab": aa ab ba aa ab. After a: a twice and b twice, so ln 2 each time, four
        // times; after b: always a, so nothing. Over five pairs: 4/5 ln 2.
        assert_close(baseline_of("aabaab"), 0.8 * std::f64::consts::LN_2);
        // Pairs of "abacab": ab ba ac ca ab. After a: b twice, c once; the others are certain.
        let after_a = 2.0 * 1.5_f64.ln() + 3.0_f64.ln();
        assert_close(baseline_of("abacab"), after_a / 5.0);
    }

    #[test]
    fn a_predictable_text_has_no_entropy() {
        assert_close(baseline_of("abcabcabc"), 0.0);
    }

    #[test]
    fn the_bundled_corpus_has_the_entropy_of_english_letter_pairs() {
        let loss = baseline_loss(&Corpus::bundled(0.1));
        assert!((2.2..2.4).contains(&loss), "{loss}");
    }
}

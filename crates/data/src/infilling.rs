//! Fill-in-the-middle (Bavarian et al. 2022): documents cut at two random places.
//!
//! The three parts are tokenized separately, each behind its sentinel token:
//!
//! - PSM: `<prefix>` prefix `<suffix>` suffix `<middle>` middle
//! - SPM: `<prefix>` `<suffix>` suffix `<middle>` prefix middle, the paper's variant for training
//!   on both orders at once
//!
//! Whether a document is cut, where and in which order is a function of (seed, number of the
//! document). Places are uniform over its bytes and move back to the beginning of a character.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_config as config;

use crate::error::DataError;
use crate::permutation::mix;
use crate::tokenizer::Tokenizer;

/// Purpose keys of the random numbers of a document.
const IS_CUT: u64 = 0;
const IS_SPM: u64 = 1;
const FIRST: u64 = 2;
const SECOND: u64 = 3;

/// Part of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Span {
    /// A token.
    Token(u32),
    /// Text, tokenized by itself.
    Text(Range<usize>),
}

/// Cuts documents.
#[derive(Debug, Clone)]
pub(crate) struct Infilling {
    seed: u64,
    rate: f64,
    spm_rate: f64,
    prefix: u32,
    middle: u32,
    suffix: u32,
}

impl Infilling {
    /// The cuts of a recipe with a tokenizer, which must have sentinel tokens; none at a rate of 0.
    pub(crate) fn new(
        config: &config::Infilling,
        seed: u64,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, DataError> {
        if !config.is_on() {
            return Ok(None);
        }
        let [prefix, middle, suffix] = tokenizer.sentinels()?;
        let (rate, spm_rate) = (config.rate, config.spm_rate);
        Ok(Some(Self { seed, rate, spm_rate, prefix, middle, suffix }))
    }

    /// Parts of a document in their order.
    pub(crate) fn spans(&self, number: u64, text: &str) -> VecDeque<Span> {
        let word = |purpose| mix(mix(self.seed, number), purpose);
        let is_below = |purpose, rate: f64| (word(purpose) >> 11) as f64 / 2.0_f64.powi(53) < rate;
        if !is_below(IS_CUT, self.rate) {
            return VecDeque::from([Span::Text(0..text.len())]);
        }
        let place = |purpose| {
            let byte = (u128::from(word(purpose)) * (text.len() as u128 + 1)) >> u64::BITS;
            text.floor_char_boundary(byte as usize)
        };
        let (first, second) = (place(FIRST), place(SECOND));
        let (first, second) = (first.min(second), first.max(second));
        let (prefix, middle) = (Span::Text(0..first), Span::Text(first..second));
        let suffix = Span::Text(second..text.len());
        let [prefix_token, middle_token, suffix_token] =
            [self.prefix, self.middle, self.suffix].map(Span::Token);
        if is_below(IS_SPM, self.spm_rate) {
            [prefix_token, suffix_token, suffix, middle_token, prefix, middle].into()
        } else {
            [prefix_token, prefix, suffix_token, suffix, middle_token, middle].into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "naïve 日本語 text 🙂 of a document";

    fn infilling(rate: f64, spm_rate: f64) -> Infilling {
        Infilling { seed: 5, rate, spm_rate, prefix: 1, middle: 2, suffix: 3 }
    }

    fn sentinel(span: &Span) -> u32 {
        match span {
            Span::Token(token) => *token,
            Span::Text(_) => 0,
        }
    }

    /// Prefix, middle and suffix of a cut document.
    fn parts(spans: &VecDeque<Span>) -> [&str; 3] {
        let order: Vec<u32> = spans.iter().map(sentinel).collect();
        let [prefix, middle, suffix] = match &order[..] {
            [1, 0, 3, 0, 2, 0] => [1, 5, 3],
            [1, 3, 0, 2, 0, 0] => [4, 5, 2],
            other => panic!("neither PSM nor SPM: {other:?}"),
        };
        [prefix, middle, suffix].map(|index: usize| match &spans[index] {
            Span::Text(range) => &TEXT[range.clone()],
            Span::Token(token) => panic!("token {token} where a text belongs"),
        })
    }

    #[test]
    fn the_parts_are_the_document_whatever_the_place_and_the_order() {
        for number in 0..500 {
            let spans = infilling(1.0, 0.5).spans(number, TEXT);
            assert_eq!(parts(&spans).concat(), TEXT);
            assert_eq!(spans, infilling(1.0, 0.5).spans(number, TEXT), "it is a function");
        }
        let spans = infilling(1.0, 0.0).spans(0, "");
        assert!(
            spans.iter().all(|span| matches!(span, Span::Token(_)) || *span == Span::Text(0..0))
        );
    }

    #[test]
    fn rates_are_fractions_of_the_documents() {
        let share = |rate, spm_rate, is: fn(&VecDeque<Span>) -> bool| {
            let infilling = infilling(rate, spm_rate);
            (0..10_000).filter(|&number| is(&infilling.spans(number, TEXT))).count()
        };
        let is_cut = |spans: &VecDeque<Span>| spans.len() > 1;
        assert_eq!([share(0.0, 0.5, is_cut), share(1.0, 0.5, is_cut)], [0, 10_000]);
        // Four standard deviations of a binomial distribution.
        assert!(share(0.3, 0.5, is_cut).abs_diff(3_000) < 184);
        let is_spm = |spans: &VecDeque<Span>| spans.len() > 1 && sentinel(&spans[1]) == 3;
        assert!(share(1.0, 0.25, is_spm).abs_diff(2_500) < 174);
        assert_eq!([share(1.0, 0.0, is_spm), share(1.0, 1.0, is_spm)], [0, 10_000]);
    }

    #[test]
    fn places_are_spread_over_the_whole_document() {
        let lengths = |index: usize| {
            let len = |number| parts(&infilling(1.0, 0.5).spans(number, TEXT))[index].len();
            (0..10_000).map(len).sum::<usize>() as f64 / 10_000.0 / TEXT.len() as f64
        };
        // The mean of each part is a third; characters of several bytes shift it a little.
        for index in 0..3 {
            assert!((lengths(index) - 1.0 / 3.0).abs() < 0.03, "{}", lengths(index));
        }
    }
}

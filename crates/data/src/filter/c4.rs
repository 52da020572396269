//! Rules of C4 (Raffel et al. 2020, section 2.2) that judge a whole page.
//!
//! The pipeline also removes single lines from pages; a document here is kept as it is or removed.

use super::document::Document;
use super::{Origin, Rule, Side};

/// End marks of a sentence.
const TERMINAL: [char; 4] = ['.', '!', '?', '"'];

const fn rule(
    name: &'static str,
    meaning: &'static str,
    side: Side,
    limit: f64,
    measure: fn(&Document<'_>) -> f64,
) -> Rule {
    Rule { name, meaning, side, limit, origin: Origin::C4, measure }
}

pub(super) const RULES: &[Rule] = &[
    rule("lorem-ipsum", "occurrences of \"lorem ipsum\"", Side::Above, 0.0, |document| {
        document.text.to_lowercase().matches("lorem ipsum").count() as f64
    }),
    rule("curly-brackets", "number of { characters", Side::Above, 0.0, |document| {
        document.text.matches('{').count() as f64
    }),
    rule("sentences", "number of sentences", Side::Below, 3.0, |document| {
        num_sentences(document.text) as f64
    }),
];

/// Ends of sentences: a terminal sign before white space or the end of the text.
fn num_sentences(text: &str) -> usize {
    let mut letters = text.chars().peekable();
    let mut count = 0;
    while let Some(letter) = letters.next() {
        let is_end = letters.peek().is_none_or(|next| next.is_whitespace());
        count += usize::from(is_end && TERMINAL.contains(&letter));
    }
    count
}

//! Quality rules of MassiveText (Rae et al. 2021, section A.1.1, "Quality Filtering").

use super::document::{Document, fraction};
use super::{Origin, Rule, Side};

/// Stop terms of English, of which a document has two.
const STOP_TERMS: [&str; 8] = ["the", "be", "to", "of", "and", "that", "have", "with"];

/// First characters of a bullet line.
const BULLETS: [char; 7] = ['•', '‣', '▪', '●', '*', '-', '·'];

const ELLIPSES: [&str; 2] = ["...", "…"];

const fn rule(
    name: &'static str,
    meaning: &'static str,
    side: Side,
    limit: f64,
    measure: fn(&Document<'_>) -> f64,
) -> Rule {
    Rule { name, meaning, side, limit, origin: Origin::Gopher, measure }
}

pub(super) const RULES: &[Rule] = &[
    rule("min-terms", "number of words", Side::Below, 50.0, num_terms),
    rule("max-terms", "number of words", Side::Above, 100_000.0, num_terms),
    rule("min-term-length", "mean length of a word", Side::Below, 3.0, mean_length),
    rule("max-term-length", "mean length of a word", Side::Above, 10.0, mean_length),
    rule("hashes", "hash signs per word", Side::Above, 0.1, |document| {
        fraction(document.text.matches('#').count(), document.terms.len())
    }),
    rule("ellipses", "ellipses per word", Side::Above, 0.1, |document| {
        let count = |sign: &str| document.text.matches(sign).count();
        fraction(ELLIPSES.into_iter().map(count).sum(), document.terms.len())
    }),
    rule(
        "bullet-lines",
        "fraction of lines that start with a bullet",
        Side::Above,
        0.9,
        |document| {
            let bullets = document.lines.iter().filter(|line| line.starts_with(BULLETS));
            fraction(bullets.count(), document.lines.len())
        },
    ),
    rule(
        "ellipsis-lines",
        "fraction of lines that end with an ellipsis",
        Side::Above,
        0.3,
        |document| {
            let ends = |line: &&&str| ELLIPSES.iter().any(|sign| line.ends_with(sign));
            fraction(document.lines.iter().filter(ends).count(), document.lines.len())
        },
    ),
    rule("alphabetic-terms", "fraction of words with a letter", Side::Below, 0.8, |document| {
        let has_letter = |term: &&&str| term.chars().any(char::is_alphabetic);
        fraction(document.terms.iter().filter(has_letter).count(), document.terms.len())
    }),
    rule("stop-terms", "number of different English stop words", Side::Below, 2.0, |document| {
        let is_in =
            |stop: &&&str| document.terms.iter().any(|term| term.eq_ignore_ascii_case(stop));
        STOP_TERMS.iter().filter(is_in).count() as f64
    }),
];

/// Number of words of a document.
fn num_terms(document: &Document<'_>) -> f64 {
    document.num_terms()
}

/// Mean number of characters of a term.
fn mean_length(document: &Document<'_>) -> f64 {
    fraction(document.terms.iter().map(|term| term.chars().count()).sum(), document.terms.len())
}

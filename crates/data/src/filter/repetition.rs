//! Repetition rules of MassiveText (Rae et al. 2021, section A.1.1, table A1).
//!
//! Lengths are in characters. For n from 2 to 4 the measurement is the fraction of the text in the
//! most frequent n-gram; for n from 5 to 10 the fraction in all n-grams that occur more than once,
//! where a term of several overlapping n-grams counts once.

use std::collections::BTreeMap;

use super::document::{Document, fraction};
use super::{Origin, Rule, Side};

const fn rule(
    name: &'static str,
    meaning: &'static str,
    limit: f64,
    measure: fn(&Document<'_>) -> f64,
) -> Rule {
    Rule { name, meaning, side: Side::Above, limit, origin: Origin::Gopher, measure }
}

const TOP: &str = "fraction of characters in the most frequent n-gram of words";
const REPEATED: &str = "fraction of characters in repeated n-grams of words";

pub(super) const RULES: &[Rule] = &[
    rule("repeated-lines", "fraction of lines that repeat an earlier one", 0.30, |document| {
        fraction(repeats(&document.lines).0, document.lines.len())
    }),
    rule("repeated-paragraphs", "fraction of paragraphs that repeat an earlier one", 0.30, |d| {
        fraction(repeats(&d.paragraphs).0, d.paragraphs.len())
    }),
    rule("repeated-line-text", "fraction of characters in repeated lines", 0.20, |document| {
        fraction(repeats(&document.lines).1, num_chars(document.text))
    }),
    rule("repeated-paragraph-text", "fraction of characters in repeated paragraphs", 0.20, |d| {
        fraction(repeats(&d.paragraphs).1, num_chars(d.text))
    }),
    rule("top-2-gram", TOP, 0.20, |document| top(document, 2)),
    rule("top-3-gram", TOP, 0.18, |document| top(document, 3)),
    rule("top-4-gram", TOP, 0.16, |document| top(document, 4)),
    rule("repeated-5-grams", REPEATED, 0.15, |document| repeated(document, 5)),
    rule("repeated-6-grams", REPEATED, 0.14, |document| repeated(document, 6)),
    rule("repeated-7-grams", REPEATED, 0.13, |document| repeated(document, 7)),
    rule("repeated-8-grams", REPEATED, 0.12, |document| repeated(document, 8)),
    rule("repeated-9-grams", REPEATED, 0.11, |document| repeated(document, 9)),
    rule("repeated-10-grams", REPEATED, 0.10, |document| repeated(document, 10)),
];

fn num_chars(text: &str) -> usize {
    text.chars().count()
}

/// Number of parts that repeat an earlier one, and of their characters.
fn repeats(parts: &[&str]) -> (usize, usize) {
    let mut sorted: Vec<&str> = parts.to_vec();
    sorted.sort_unstable();
    let repeated = sorted.windows(2).filter(|pair| pair[0] == pair[1]);
    repeated.fold((0, 0), |(count, chars), pair| (count + 1, chars + num_chars(pair[0])))
}

/// Number of characters of the terms.
fn term_chars(document: &Document<'_>) -> usize {
    document.terms.iter().map(|term| num_chars(term)).sum()
}

/// Fraction of the characters in the most frequent n-gram; the longest of several.
fn top(document: &Document<'_>, n: usize) -> f64 {
    let mut counts = BTreeMap::<&[&str], usize>::new();
    for gram in document.terms.windows(n) {
        *counts.entry(gram).or_default() += 1;
    }
    let chars = |gram: &[&str]| gram.iter().map(|term| num_chars(term)).sum::<usize>();
    let most = counts.iter().map(|(gram, &count)| (count, chars(gram))).max();
    // An n-gram that occurs once repeats nothing.
    let covered = most.filter(|(count, _)| *count > 1).map_or(0, |(count, chars)| count * chars);
    fraction(covered, term_chars(document))
}

/// Fraction of the characters in n-grams that occur more than once.
fn repeated(document: &Document<'_>, n: usize) -> f64 {
    let terms = &document.terms;
    let mut starts: Vec<usize> = (0..(terms.len() + 1).saturating_sub(n)).collect();
    starts.sort_unstable_by_key(|&start| &terms[start..start + n]);
    let mut is_repeated = vec![false; terms.len()];
    for pair in starts.windows(2) {
        let [left, right] = [pair[0], pair[1]].map(|start| start..start + n);
        if terms[left.clone()] == terms[right.clone()] {
            is_repeated[left].fill(true);
            is_repeated[right].fill(true);
        }
    }
    let repeated = terms.iter().zip(is_repeated).filter(|(_, repeated)| *repeated);
    fraction(repeated.map(|(term, _)| num_chars(term)).sum(), term_chars(document))
}

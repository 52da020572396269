//! A lint: a valid setting that is usually a mistake.

use std::fmt;

use crate::topics::Recipe;

/// A check for a setting that is usually a mistake.
#[derive(Debug)]
pub struct Lint {
    /// Name.
    pub id: &'static str,
    /// Condition in a sentence.
    pub condition: &'static str,
    /// Threshold of the condition.
    pub threshold: &'static str,
    /// Recommended change.
    pub advice: &'static str,
    /// The settings at fault and their consequence, if the condition holds.
    pub(crate) check: fn(&Recipe) -> Option<String>,
}

/// A lint that applies to a recipe; its text is one line.
#[derive(Debug)]
pub struct Finding {
    /// The lint.
    pub lint: &'static Lint,
    /// The settings at fault and their consequence.
    pub fault: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} (lint {})", self.fault, self.lint.advice, self.lint.id)
    }
}

/// Lists lints: name and condition, threshold, advice, and the check, which defines values and
/// reports the last text if its condition holds.
macro_rules! lints {
    ($(
        $id:literal: $condition:literal;
        if $threshold:literal; advice $advice:literal;
        |$recipe:ident| $(let $values:pat = $from:expr;)* when $holds:expr => $fault:literal;
    )+) => {
        &[$($crate::lint::Lint {
            id: $id,
            condition: $condition,
            threshold: $threshold,
            advice: $advice,
            check: |$recipe| {
                $(let $values = $from;)*
                ($holds).then(|| format_args!($fault).to_string())
            },
        }),+]
    };
}
pub(crate) use lints;

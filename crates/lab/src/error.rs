//! What a person may have typed wrong, with what would work.

use crate::card::{Card, Domain, Param};
use lockstep_config::{Blame, nearest};

/// Why an experiment cannot be run as asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LabError {
    /// No experiment, walk or claim has this name.
    #[error("`{name}` is no {what}; {hint}")]
    NoSuch {
        /// What was looked for.
        what: &'static str,
        /// What was typed.
        name: String,
        /// What would work.
        hint: String,
    },
    /// A text that is not `key=value`.
    #[error("`{text}` is not key=value; try {example}")]
    NotAPair {
        /// What was typed.
        text: String,
        /// One that works.
        example: String,
    },
    /// A value that a parameter does not take.
    #[error("{key} = {value} is not allowed: {rule}")]
    BadValue {
        /// Which parameter.
        key: &'static str,
        /// What was typed.
        value: String,
        /// What it takes.
        rule: String,
    },
    /// Values that do not go together.
    #[error("{key} = {value}: {rule}")]
    Together {
        /// Which parameter should change.
        key: &'static str,
        /// What it is.
        value: String,
        /// Why that does not work, and what would.
        rule: String,
    },
    /// Too much to do in a lifetime.
    #[error("that is {runs} runs; at most {most} are allowed: sweep fewer values or seeds")]
    TooMany {
        /// How many were asked for.
        runs: usize,
        /// How many there may be.
        most: usize,
    },
}

impl LabError {
    /// Who must act: whoever typed it.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }

    /// A name that is not among some.
    pub(crate) fn no_such<'a>(
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let hint = nearest(name, known.clone()).map_or_else(
            || format!("try {}", known.collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean {near}?"),
        );
        Self::NoSuch { what, name: name.to_owned(), hint }
    }

    /// A parameter that the experiment does not have.
    pub(crate) fn no_param(card: &Card, key: &str) -> Self {
        Self::no_such("parameter of this experiment", key, card.params.iter().map(|p| p.key))
    }

    /// A value outside of a parameter's domain.
    pub(crate) fn bad_value(param: &Param, text: &str) -> Self {
        let rule = match param.domain {
            Domain::Choice(of) => format!("try {}", of.join(", ")),
            Domain::Range { min, max, default } => {
                let show = |value| param.unit.show(value);
                format!("{} to {}; try {}", show(min), show(max), show(default))
            }
        };
        Self::BadValue { key: param.key, value: text.to_owned(), rule }
    }
}

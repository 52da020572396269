//! Errors of the lab, with values that would work.

use crate::description::{Description, Domain, Param};
use crate::renamed_params;
use lockstep_comm::CommError;
use lockstep_config::{Blame, nearest};
use lockstep_platform::{FileError, NetError};

/// A failed experiment, walk or measurement.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LabError {
    /// Unknown name of an experiment, walk or parameter.
    #[error("`{name}` is no {kind}; {hint}")]
    NoSuch {
        /// Experiment, walk or parameter.
        kind: &'static str,
        /// The unknown name.
        name: String,
        /// Known names.
        hint: String,
    },
    /// Text that is not `key=value`.
    #[error("`{text}` is not key=value; try {example}")]
    NotAPair {
        /// The text.
        text: String,
        /// A valid example.
        example: String,
    },
    /// A value outside the domain of its parameter.
    #[error("{key} = {value} is not allowed: {rule}")]
    BadValue {
        /// The parameter.
        key: &'static str,
        /// The value.
        value: String,
        /// The domain.
        rule: String,
    },
    /// Values that contradict each other.
    #[error("{key} = {value}: {rule}")]
    Conflict {
        /// The parameter to change.
        key: &'static str,
        /// Its value.
        value: String,
        /// The violated rule.
        rule: String,
    },
    /// A grid of too many runs.
    #[error("the sweep has {runs} runs, more than {max}: sweep fewer values or seeds")]
    TooMany {
        /// Requested runs.
        runs: usize,
        /// Maximum.
        max: usize,
    },
    /// An experiment without a measurement.
    #[error("{name} cannot be measured on this machine; try {measurable}")]
    NotMeasurable {
        /// The experiment.
        name: String,
        /// Experiments with a measurement.
        measurable: String,
    },
    /// A collective of a measurement failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The ranks of a measurement could not connect.
    #[error(transparent)]
    Loopback(NetError),
    /// A checkpoint of a measurement could not be written or read.
    #[error(transparent)]
    File(#[from] FileError),
}

impl LabError {
    /// The party that must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::NoSuch { .. }
            | Self::NotAPair { .. }
            | Self::BadValue { .. }
            | Self::Conflict { .. }
            | Self::TooMany { .. }
            | Self::NotMeasurable { .. } => Blame::User,
            Self::Comm(error) => error.blame(),
            Self::Loopback(_) => Blame::Peer(0),
            Self::File(_) => Blame::Storage,
        }
    }

    /// An unknown name, with the closest known name.
    pub(crate) fn no_such<'a>(
        kind: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        let hint = nearest(name, known.clone()).map_or_else(
            || format!("try {}", known.collect::<Vec<_>>().join(", ")),
            |known| format!("did you mean {known}?"),
        );
        Self::NoSuch { kind, name: name.to_owned(), hint }
    }

    /// An unknown parameter of an experiment.
    pub(crate) fn no_param(description: &Description, key: &str) -> Self {
        let kind = "parameter of this experiment";
        if let Some(present) = renamed_params::present_name(description.name, key) {
            let hint = format!("it was renamed; use {present}");
            return Self::NoSuch { kind, name: key.to_owned(), hint };
        }
        Self::no_such(kind, key, description.params.iter().map(|p| p.key))
    }

    /// A value outside the domain of its parameter.
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

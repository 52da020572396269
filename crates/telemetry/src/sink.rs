//! Where events go.

use lockstep_platform::FileError;

use crate::Stamped;

/// A destination of events. Writing a step must not allocate once the sink is warm.
pub trait Sink: Send {
    /// Takes one event.
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError>;

    /// Brings everything taken so far to its destination.
    fn flush(&mut self) -> Result<(), TelemetryError>;
}

/// Events that could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// The file of events cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A sink's destination refused an event.
    #[error("cannot write events to {sink}: {reason}")]
    Write {
        /// The sink in words.
        sink: String,
        /// The destination's words.
        reason: String,
    },
    /// A line in the middle of a file is damaged.
    #[error("line {line} is not an event: {reason}")]
    BadLine {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A line comes from a version of the format that this program does not know.
    #[error("line {line} has event format {found}, this program reads up to {known}")]
    NewerVersion {
        /// Counted from 1.
        line: usize,
        /// The version in the line.
        found: u32,
        /// The highest version read here.
        known: u32,
    },
}

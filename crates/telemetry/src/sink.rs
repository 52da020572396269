//! Sinks of events, and their errors.

use lockstep_platform::FileError;

use crate::Stamped;

/// A destination of events. Writing a step must not allocate after the first.
pub trait Sink: Send {
    /// Writes one event.
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError>;

    /// Flushes everything written so far.
    fn flush(&mut self) -> Result<(), TelemetryError>;
}

/// Errors of writing or reading events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    /// The file of events cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A sink's destination refused an event.
    #[error("cannot write events to {sink}: {reason}")]
    Write {
        /// Name of the sink.
        sink: String,
        /// Message of the destination.
        reason: String,
    },
    /// A line in the middle of a file is damaged.
    #[error("line {line} is not an event: {reason}")]
    BadLine {
        /// Counted from 1.
        line: usize,
        /// The error.
        reason: String,
    },
    /// A line has a newer format version.
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

//! Standard output: results only. A closed pipe is a success.

use crate::failure::Failure;
use lockstep_telemetry::console::Sanitized;
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// Prints text.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::new(lockstep_config::Blame::Storage, format!("standard output: {error}")),
    })
}

/// Prints generated text: as it is into a file or pipe, without characters that could change a
/// terminal on one.
pub(crate) fn generated(generated: &str) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        return text(&Sanitized(generated).to_string());
    }
    text(generated)
}

/// Prints one JSON value.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    text(&to_json(value))
}

/// One JSON value as lines of text.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our values are JSON") + "\n"
}

//! Standard output: results only. A closed pipe is a success.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints text.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::new(lockstep_config::Blame::Storage, format!("standard output: {error}")),
    })
}

/// Prints one JSON value.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    text(&to_json(value))
}

/// One JSON value as lines of text.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our values are JSON") + "\n"
}

//! Offload of optimizer state to disk.

use std::fmt;

/// Offload settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offload {
    /// Where the optimizer state is kept.
    pub state: OffloadState,
    /// Folder of the files; empty uses the disk of the run folder.
    pub folder: String,
}

choices! {
    /// Where the optimizer state is kept.
    OffloadState {
        /// In memory.
        None = "none",
        /// In a file that is mapped in pieces.
        File = "file",
    }
}

impl Offload {
    /// No offload.
    pub const fn none() -> Self {
        Self { state: OffloadState::None, folder: String::new() }
    }
}

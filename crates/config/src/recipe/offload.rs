//! What lies on a disk instead of in memory.

use std::fmt;

/// What lies on a disk, and on which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offload {
    /// Where the optimizer's state is.
    pub state: OffloadState,
    /// The folder of the files; empty is on the disk of the run's folder.
    pub folder: String,
}

choices! {
    /// Where the optimizer's state is.
    OffloadState {
        /// In memory.
        None = "none",
        /// In a file that is mapped piece by piece.
        File = "file",
    }
}

impl Offload {
    /// Everything in memory.
    pub const fn none() -> Self {
        Self { state: OffloadState::None, folder: String::new() }
    }
}

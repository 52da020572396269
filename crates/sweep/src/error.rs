//! Errors of this crate.

use lockstep_config::Blame;
use lockstep_platform::FileError;
use std::path::PathBuf;

/// A failure of a sweep's folder.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The folder cannot be used for this sweep.
    #[error("{reason}; {fix}")]
    Folder {
        /// The rule that it breaks.
        reason: String,
        /// A way out.
        fix: &'static str,
    },
    /// A file of the sweep is not valid JSON.
    #[error("{} is damaged: {error}; remove it to resume", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        error: String,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl SweepError {
    /// The party that has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Folder { .. } => Blame::User,
            Self::Damaged { .. } | Self::File(_) => Blame::Storage,
        }
    }
}

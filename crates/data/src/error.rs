//! What can go wrong between a path in a recipe and a batch of tokens.
//!
//! Each message is one line that names the file, the fact and, where there is one, a way out.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lockstep_config::Blame;
use lockstep_platform::FileError;

use crate::documents::DocumentError;
use crate::shards::ShardError;
use crate::tokenizer::TokenizerError;

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Nothing lies at the path that the recipe names.
    #[error(
        "data.source = {} does not exist; give a text file, a folder of them or \"bundled\"",
        .path.display()
    )]
    Missing {
        /// The path as the recipe has it.
        path: PathBuf,
    },
    /// A file or folder is there and cannot be read. The text is the platform's own.
    #[error(transparent)]
    Unreadable(#[from] FileError),
    /// A text file has no bytes.
    #[error("{} is empty; give data.source a file with text", .path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A folder has no file with text, at any depth.
    #[error("{} holds no file with text (hidden files are not read)", .path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Folders lie inside each other without end, as a link to its own parent does.
    #[error(
        "{} lies more than {limit} folders deep; is there a link to a parent folder?",
        .path.display()
    )]
    TooDeep {
        /// The folder that was not opened.
        path: PathBuf,
        /// How deep folders are read.
        limit: usize,
    },
    /// A file is not text.
    #[error("{} is not UTF-8 text: byte {offset_bytes} cannot be read", .path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where the first unreadable byte lies, counted from 0.
        offset_bytes: usize,
    },
    /// A split does not hold one window of `context + 1` tokens.
    #[error(
        "{name} is too short: its {split} split has {num_tokens} tokens and \
         model.context = {context} needs {}; {}",
        .context + 1,
        way_out(*.longest_context)
    )]
    TooShort {
        /// The file, folder or bundled text.
        name: String,
        /// Which part of it.
        split: Split,
        /// How many tokens that part has.
        num_tokens: usize,
        /// The context that the recipe asks for.
        context: usize,
        /// The largest context that both splits have room for; 0 when there is none.
        longest_context: usize,
    },
    /// A saved position belongs to another text.
    #[error(
        "{name} is not the text that this run began with (fingerprint {found}, saved {saved}); \
         resume with the same data.source"
    )]
    OtherCorpus {
        /// The file, folder or bundled text.
        name: String,
        /// The fingerprint of the text at hand.
        found: String,
        /// The fingerprint in the cursor.
        saved: String,
    },
    /// A corpus cannot be read as documents.
    #[error(transparent)]
    Documents(#[from] DocumentError),
    /// A tokenizer cannot be used as asked.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A shard folder cannot be used or made.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// The system gave no thread for the background work.
    #[error("cannot start the thread that makes batches: {reason}")]
    NoThread {
        /// What the system said.
        reason: String,
    },
    /// The thread that makes batches ended by a bug.
    #[error("the thread that makes batches panicked: {message}")]
    Panicked {
        /// The words of the panic.
        message: String,
    },
    /// The thread that makes batches ended without saying why, or failed before.
    #[error("the thread that makes batches has ended")]
    Ended,
    /// No batch came in a time in which thousands could have been made.
    #[error("no batch for step {step} after waiting {waited_seconds} s for it")]
    Stalled {
        /// The step that the batch was for.
        step: u64,
        /// How long the wait was.
        waited_seconds: u64,
    },
}

/// A part of the token stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// What the model learns from.
    Train,
    /// What it is judged by.
    Validation,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Validation => "validation",
        })
    }
}

impl DataError {
    /// Who must act. A bug has no guilty party in that list: a thread that panicked counts as
    /// [`Blame::Storage`], whose policy (stop, go back to what was saved) is the safe one.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing { .. }
            | Self::EmptyFile { .. }
            | Self::EmptyFolder { .. }
            | Self::TooDeep { .. }
            | Self::NotUtf8 { .. }
            | Self::TooShort { .. }
            | Self::OtherCorpus { .. }
            | Self::Documents(_)
            | Self::Tokenizer(_) => Blame::User,
            Self::Shards(error) => error.blame(),
            Self::Unreadable(error) => blame_for_file(error),
            Self::NoThread { .. } | Self::Panicked { .. } | Self::Ended | Self::Stalled { .. } => {
                Blame::Storage
            }
        }
    }

    /// Says in the recipe's words that nothing lies at `path`, where that is what went wrong.
    pub(crate) fn or_missing(self, path: &Path) -> Self {
        match self {
            Self::Unreadable(error) if error.kind() == ErrorKind::NotFound => {
                Self::Missing { path: path.to_owned() }
            }
            other => other,
        }
    }
}

/// A path that is wrong or closed to us is the user's to mend; a disk that fails is not.
fn blame_for_file(error: &FileError) -> Blame {
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidFilename
        | ErrorKind::InvalidInput => Blame::User,
        _ => Blame::Storage,
    }
}

fn way_out(longest_context: usize) -> String {
    match longest_context {
        0 => "give a longer text".to_owned(),
        context => format!("try model.context = {context} or a longer text"),
    }
}

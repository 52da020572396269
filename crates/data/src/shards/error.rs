//! Errors of a shard folder, each with the file.

use std::path::PathBuf;

use lockstep_config::Blame;

/// A shard folder that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The folder has no manifest.
    #[error(
        "{} is no shard folder: it holds no manifest.json; `lockstep data tokenize` makes one",
        .folder.display()
    )]
    NoManifest {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// The manifest is of another format, or contradicts itself.
    #[error("{} cannot be used: {reason}", .path.display())]
    Manifest {
        /// Path of the manifest.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// A file differs in size from the manifest.
    #[error(
        "{} is damaged: it has {found_bytes} bytes and the manifest says {expected_bytes}; \
         tokenize the corpus again",
        .path.display()
    )]
    Size {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file.
        found_bytes: u64,
        /// Size in the manifest.
        expected_bytes: u64,
    },
    /// A file differs in checksum from the manifest.
    #[error(
        "{} is damaged: its BLAKE3 is {found} and the manifest says {expected}; \
         tokenize the corpus again",
        .path.display()
    )]
    Checksum {
        /// Path of the file.
        path: PathBuf,
        /// First digits of the file's checksum.
        found: String,
        /// First digits of the manifest's checksum.
        expected: String,
    },
    /// The document ends are not ascending or do not match the tokens.
    #[error(
        "{} is damaged: document {document} ends at token {end}; tokenize the corpus again",
        .path.display()
    )]
    Documents {
        /// Path of the file.
        path: PathBuf,
        /// Index of the document in the shard.
        document: u64,
        /// Its end.
        end: u64,
    },
    /// A token is outside the vocabulary.
    #[error(
        "{} is damaged: it holds token {token} and the vocabulary has {vocab}; \
         tokenize the corpus again",
        .path.display()
    )]
    Token {
        /// Path of the file.
        path: PathBuf,
        /// The token.
        token: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// The recipe's end-of-document token differs from the shards'.
    #[error(
        "{} has {found:?} after each document and data.end_of_document = {requested:?}; \
         leave that at \"auto\", or tokenize the corpus again",
        .folder.display()
    )]
    OtherEnd {
        /// Path of the folder.
        folder: PathBuf,
        /// End-of-document token of the shards.
        found: String,
        /// End-of-document token of the recipe.
        requested: String,
    },
    /// The target of the shards is not empty.
    #[error(
        "{} is not a new or empty folder; choose another place for the shards",
        .path.display()
    )]
    Occupied {
        /// Path of the target.
        path: PathBuf,
    },
    /// The corpus has no documents.
    #[error("{source_name} has no documents with text, so there is nothing to write")]
    Nothing {
        /// Name of the corpus.
        source_name: String,
    },
    /// The encoding threads stopped.
    #[error("tokenizing stopped: {reason}")]
    Stopped {
        /// Description of the failure.
        reason: String,
    },
}

impl ShardError {
    /// Party that must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Stopped { .. } => Blame::Storage,
            _ => Blame::User,
        }
    }
}

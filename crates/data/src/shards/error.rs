//! What can be wrong with a shard folder: one line each that names the file.

use std::path::PathBuf;

use lockstep_config::Blame;

/// A shard folder that cannot be used, or cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A folder without a manifest.
    #[error(
        "{} is no shard folder: it holds no manifest.json; `lockstep data tokenize` makes one",
        .folder.display()
    )]
    NoManifest {
        /// The folder.
        folder: PathBuf,
    },
    /// A manifest that is not one of ours, or contradicts itself.
    #[error("{} cannot be used: {reason}", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file does not have the size that the manifest gives it.
    #[error(
        "{} is damaged: it has {found_bytes} bytes and the manifest says {expected_bytes}; \
         tokenize the corpus again",
        .path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size it should have.
        expected_bytes: u64,
    },
    /// A file does not have the checksum that the manifest gives it.
    #[error(
        "{} is damaged: its BLAKE3 is {found} and the manifest says {expected}; \
         tokenize the corpus again",
        .path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The first digits of its checksum.
        found: String,
        /// The first digits of the manifest's.
        expected: String,
    },
    /// Documents that end before they begin, or elsewhere than the tokens do.
    #[error(
        "{} is damaged: document {document} ends at token {end}; tokenize the corpus again",
        .path.display()
    )]
    Documents {
        /// The file.
        path: PathBuf,
        /// Which document of the shard, from 0.
        document: u64,
        /// Where it is said to end.
        end: u64,
    },
    /// A token that the vocabulary does not have.
    #[error(
        "{} is damaged: it holds token {token} and the vocabulary has {vocab}; \
         tokenize the corpus again",
        .path.display()
    )]
    Token {
        /// The file.
        path: PathBuf,
        /// The token.
        token: u32,
        /// The size of the vocabulary.
        vocab: usize,
    },
    /// A recipe asks for another end of documents than the one that was written.
    #[error(
        "{} has {found:?} after each document and data.end_of_document = {asked:?}; \
         leave that at \"auto\", or tokenize the corpus again",
        .folder.display()
    )]
    OtherEnd {
        /// The folder.
        folder: PathBuf,
        /// What stands after its documents.
        found: String,
        /// What the recipe asks for.
        asked: String,
    },
    /// Something lies where the folder should go.
    #[error(
        "{} is not a new or empty folder; choose another place for the shards",
        .path.display()
    )]
    Occupied {
        /// The place.
        path: PathBuf,
    },
    /// A corpus without a single document.
    #[error("{source_name} has no documents with text, so there is nothing to write")]
    Nothing {
        /// The corpus.
        source_name: String,
    },
    /// The threads that encode did not go on.
    #[error("tokenizing stopped: {reason}")]
    Stopped {
        /// What happened.
        reason: String,
    },
}

impl ShardError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Stopped { .. } => Blame::Storage,
            _ => Blame::User,
        }
    }
}

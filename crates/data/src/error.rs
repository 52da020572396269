//! Errors between a path in a recipe and a batch of tokens.
//!
//! Each message is one line that names the file, the problem and, if there is one, a remedy.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use lockstep_config::Blame;
use lockstep_platform::FileError;

use crate::chat::ChatError;
use crate::documents::DocumentError;
use crate::shards::ShardError;
use crate::tasks::TaskError;
use crate::tokenizer::TokenizerError;

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The recipe's data source does not exist.
    #[error(
        "data.source = {} does not exist; give a file, a folder, a glob such as \
         \"texts/*.jsonl\" or \"bundled\"",
        .path.display()
    )]
    Missing {
        /// Path in the recipe.
        path: PathBuf,
    },
    /// A file or folder cannot be read.
    #[error(transparent)]
    Unreadable(#[from] FileError),
    /// The text file is empty.
    #[error("{} is empty; give data.source a file with text", .path.display())]
    EmptyFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The folder has no file with text, at any depth.
    #[error("{} holds no file with text (hidden files are not read)", .path.display())]
    EmptyFolder {
        /// Path of the folder.
        path: PathBuf,
    },
    /// Folders are nested too deeply, as by a link to a parent.
    #[error(
        "{} lies more than {limit} folders deep; is there a link to a parent folder?",
        .path.display()
    )]
    TooDeep {
        /// Path of the folder.
        path: PathBuf,
        /// Maximum depth.
        limit: usize,
    },
    /// The file is not text.
    #[error("{} is not UTF-8 text: byte {offset_bytes} cannot be read", .path.display())]
    NotUtf8 {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the first invalid byte, from 0.
        offset_bytes: usize,
    },
    /// A split does not hold one window of `context + 1` tokens.
    #[error(
        "{name} is too short: its {split} split has {num_tokens} tokens and \
         model.context = {context} needs {}; {}",
        .context + 1,
        remedy(*.longest_context)
    )]
    TooShort {
        /// Name of the corpus.
        name: String,
        /// Split that is too short.
        split: Split,
        /// Number of tokens in the split.
        num_tokens: usize,
        /// Context of the recipe.
        context: usize,
        /// Largest context that fits both splits; 0 if none does.
        longest_context: usize,
    },
    /// A text for evaluation is too short.
    #[error("{name} has {num_tokens} tokens, and an evaluation needs at least 2")]
    NothingToPredict {
        /// Name of the text.
        name: String,
        /// Number of tokens.
        num_tokens: usize,
    },
    /// No document of a split has a target.
    #[error(
        "no document in the {split} split of {name} has two tokens, which data.documents = \
         \"padded\" needs; give more documents, or try data.documents = \"packed\""
    )]
    NoDocument {
        /// Name of the corpus.
        name: String,
        /// Split without targets.
        split: Split,
    },
    /// Conversations cannot be divided into training and validation.
    #[error(
        "{name} has {num} {unit}{} with an answer, of which data.validation = {fraction} holds out \
         none whole; give more data, a larger fraction, or data.validation = \"held-out.jsonl\"",
        if *.num == 1 { "" } else { "s" }
    )]
    Undivided {
        /// Name of the corpus.
        name: String,
        /// Number of conversations or pairs.
        num: usize,
        /// Conversation or pair.
        unit: &'static str,
        /// Fraction to hold out.
        fraction: f64,
    },
    /// A leaf's part of the corpus does not hold one sequence.
    #[error(
        "{name} is too short for data.placement = \"partitioned\": part {part} of \
         {num_parts} (numerics.invariant_up_to) has {num_tokens} tokens and no sequence of \
         model.context = {context}; give a longer text, or try data.placement = \"shared\""
    )]
    PartTooShort {
        /// Name of the corpus.
        name: String,
        /// Index of the part.
        part: usize,
        /// Number of parts.
        num_parts: usize,
        /// Number of tokens in the part.
        num_tokens: usize,
        /// Context of the recipe.
        context: usize,
    },
    /// An epoch is shorter than a batch, and incomplete batches are dropped.
    #[error(
        "{name} has {num_windows} sequences per epoch and a step takes {per_step}, so \
         data.last_batch = \"drop\" leaves none; try data.last_batch = \"pad\" or a longer text"
    )]
    EmptyEpoch {
        /// Name of the corpus.
        name: String,
        /// Number of sequences in an epoch.
        num_windows: u64,
        /// Number of sequences per step.
        per_step: usize,
    },
    /// The hashes of a deduplication exceed their memory.
    #[error(
        "the hashes of the documents so far need {needed_bytes} bytes and --memory allows \
         {limit_bytes}; give more, or deduplicate parts of the corpus first"
    )]
    DedupMemory {
        /// Memory that one more document needs.
        needed_bytes: u64,
        /// Limit as given.
        limit_bytes: u64,
    },
    /// No document of a source has text.
    #[error("{name} has no documents with text to train on; give more text or remove the source")]
    NoDocuments {
        /// Source as in the recipe.
        name: String,
    },
    /// A saved position is not one of this data.
    #[error(
        "the saved position does not exist in {name}: its documents have changed, or the run that \
         saved it had another mixture; restore the data, or start a new run"
    )]
    OtherPosition {
        /// Name of the source or mixture.
        name: String,
    },
    /// Tokens cannot be cut as text.
    #[error(
        "{} holds shards, which are tokens already, and data.fim_rate cuts text; give the text, or \
         set data.fim_rate = 0",
        .path.display()
    )]
    InfillingOfShards {
        /// Path of the shard folder.
        path: PathBuf,
    },
    /// The shards were made by another tokenizer.
    #[error(
        "{} was tokenised with another tokenizer than {tokenizer}; use its own tokenizer.json, or \
         tokenise the text again",
        .shards.display()
    )]
    OtherTokenizer {
        /// Path of the shard folder.
        shards: PathBuf,
        /// Tokenizer of the recipe.
        tokenizer: String,
    },
    /// The data server refuses this worker.
    #[error("the data server {addr} refuses this worker: {reason}")]
    Refused {
        /// Address of the server.
        addr: String,
        /// Reason given by the server.
        reason: String,
    },
    /// The data server is unreachable, gone, or violates the protocol.
    #[error("the data server {addr} failed: {reason}; start it again, then the run")]
    Server {
        /// Address of the server.
        addr: String,
        /// Description of the failure.
        reason: String,
    },
    /// The shared secret is missing or invalid.
    #[error("a data server needs a shared secret{why}: {hint}")]
    Secret {
        /// Problem with the given secret, or empty.
        why: String,
        /// Remedy.
        hint: &'static str,
    },
    /// The data server cannot listen.
    #[error(transparent)]
    Listen(#[from] lockstep_platform::NetError),
    /// The cursor belongs to another corpus.
    #[error(
        "{name} is not the text that this run began with (fingerprint {found}, saved {saved}); \
         resume with the same data.source"
    )]
    OtherCorpus {
        /// Name of the corpus.
        name: String,
        /// Fingerprint of the corpus.
        found: String,
        /// Fingerprint in the cursor.
        saved: String,
    },
    /// The corpus cannot be read as documents.
    #[error(transparent)]
    Documents(#[from] DocumentError),
    /// The tokenizer is unusable.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template is unusable, or refuses a conversation.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The shard folder is unusable or cannot be written.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// The evaluation task is unusable.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The loader thread could not be started.
    #[error("cannot start the thread that makes batches: {reason}")]
    NoThread {
        /// Message of the system.
        reason: String,
    },
    /// The loader thread panicked.
    #[error("the thread that makes batches panicked: {message}")]
    Panicked {
        /// Panic message.
        message: String,
    },
    /// The loader thread has ended.
    #[error("the thread that makes batches has ended")]
    Ended,
    /// No batch arrived within a generous timeout.
    #[error("no batch for step {step} after waiting {waited_seconds} s for it")]
    Stalled {
        /// Step of the batch.
        step: u64,
        /// Duration of the wait.
        waited_seconds: u64,
    },
}

/// Part of the token stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Training split.
    Train,
    /// Validation split.
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
    /// Party that must act. A panic counts as [`Blame::Storage`], whose policy (stop and return to
    /// the last checkpoint) is the safe one.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing { .. }
            | Self::EmptyFile { .. }
            | Self::EmptyFolder { .. }
            | Self::TooDeep { .. }
            | Self::NotUtf8 { .. }
            | Self::TooShort { .. }
            | Self::NothingToPredict { .. }
            | Self::NoDocument { .. }
            | Self::Undivided { .. }
            | Self::PartTooShort { .. }
            | Self::EmptyEpoch { .. }
            | Self::DedupMemory { .. }
            | Self::NoDocuments { .. }
            | Self::OtherPosition { .. }
            | Self::InfillingOfShards { .. }
            | Self::OtherTokenizer { .. }
            | Self::Refused { .. }
            | Self::Secret { .. }
            | Self::Listen(_)
            | Self::OtherCorpus { .. }
            | Self::Documents(_)
            | Self::Chat(_)
            | Self::Task(_)
            | Self::Tokenizer(_) => Blame::User,
            Self::Shards(error) => error.blame(),
            // The data server counts as a failed peer.
            Self::Server { .. } => Blame::Peer(0),
            Self::Unreadable(error) => blame_for_file(error),
            Self::NoThread { .. } | Self::Panicked { .. } | Self::Ended | Self::Stalled { .. } => {
                Blame::Storage
            }
        }
    }
}

/// A wrong or unreadable path is a user error; a failing disk is not.
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

fn remedy(longest_context: usize) -> String {
    match longest_context {
        0 => "give a longer text".to_owned(),
        context => format!("try model.context = {context} or a longer text"),
    }
}

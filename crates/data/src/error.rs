//! What can go wrong between a path in a recipe and a batch of tokens.
//!
//! Each message is one line that names the file, the fact and, where there is one, a way out.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

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
        "data.source = {} does not exist; give a file, a folder, a glob such as \
         \"texts/*.jsonl\" or \"bundled\"",
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
    /// A text to judge a model by is too short.
    #[error("{name} has {num_tokens} tokens, and the least that can be judged is 2")]
    NothingToPredict {
        /// The text.
        name: String,
        /// Its tokens.
        num_tokens: usize,
    },
    /// No document of a split has anything to predict.
    #[error(
        "no document in the {split} split of {name} has two tokens, which data.documents = \
         \"padded\" needs; give more documents, or try data.documents = \"packed\""
    )]
    NoDocument {
        /// The file, folder or bundled text.
        name: String,
        /// Which part of it.
        split: Split,
    },
    /// A leaf's part of the text does not hold one sequence.
    #[error(
        "{name} is too short for data.placement = \"partitioned\": part {part} of \
         {num_parts} (numerics.invariant_up_to) has {num_tokens} tokens and no sequence of \
         model.context = {context}; give a longer text, or try data.placement = \"shared\""
    )]
    PartTooShort {
        /// The file, folder or bundled text.
        name: String,
        /// Which part of it.
        part: usize,
        /// How many parts there are.
        num_parts: usize,
        /// How many tokens that part has.
        num_tokens: usize,
        /// The context that the recipe asks for.
        context: usize,
    },
    /// An epoch has less than a batch, and what is less is dropped.
    #[error(
        "{name} gives {num_windows} sequences an epoch and a step takes {per_step}, so data.last = \
         \"drop\" leaves none; try data.last = \"pad\" or a longer text"
    )]
    EmptyEpoch {
        /// The file, folder or bundled text.
        name: String,
        /// How many sequences it has.
        num_windows: u64,
        /// How many a step takes.
        per_step: usize,
    },
    /// Shards were made by another tokenizer than the one that is asked for.
    #[error(
        "{} was tokenised with another tokenizer than {tokenizer}; use its own tokenizer.json, or \
         tokenise the text again",
        .shards.display()
    )]
    OtherTokenizer {
        /// The shard folder.
        shards: PathBuf,
        /// The tokenizer that is asked for.
        tokenizer: String,
    },
    /// The data server does not serve this worker.
    #[error("the data server {addr} refuses this worker: {reason}")]
    Refused {
        /// Where the server is.
        addr: String,
        /// Its words.
        reason: String,
    },
    /// The data server cannot be reached, is gone, or does not keep to the protocol.
    #[error("the data server {addr} failed: {reason}; start it again, then the run")]
    Server {
        /// Where the server is.
        addr: String,
        /// What happened.
        reason: String,
    },
    /// There is no secret to prove with that a worker belongs to the run.
    #[error("a data server needs a shared secret{why}: {hint}")]
    Secret {
        /// What is wrong with the one there is, or nothing.
        why: String,
        /// How to give one.
        hint: &'static str,
    },
    /// The data server cannot listen.
    #[error(transparent)]
    Listen(#[from] lockstep_platform::NetError),
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
            | Self::NothingToPredict { .. }
            | Self::NoDocument { .. }
            | Self::PartTooShort { .. }
            | Self::EmptyEpoch { .. }
            | Self::OtherTokenizer { .. }
            | Self::Refused { .. }
            | Self::Secret { .. }
            | Self::Listen(_)
            | Self::OtherCorpus { .. }
            | Self::Documents(_)
            | Self::Tokenizer(_) => Blame::User,
            Self::Shards(error) => error.blame(),
            // Not a worker, but like one: somebody else has failed us.
            Self::Server { .. } => Blame::Peer(0),
            Self::Unreadable(error) => blame_for_file(error),
            Self::NoThread { .. } | Self::Panicked { .. } | Self::Ended | Self::Stalled { .. } => {
                Blame::Storage
            }
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

//! The text the model learns from, and how it reaches the workers.

use std::fmt;

/// The text the model learns from.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// Where the text comes from.
    pub source: Source,
    /// How much more common the common tokens are, where they are drawn.
    pub zipf: f64,
    /// The field of JSON Lines and the column of Parquet that holds the text.
    pub field: String,
    /// How text becomes tokens.
    pub tokenizer: Tokenizer,
    /// What stands after each document: auto, none or the text of a token.
    pub end_of_document: String,
    /// What is held out for validation.
    pub validation: ValidationSource,
    /// How documents become sequences.
    pub documents: Documents,
    /// In which order sequences come.
    pub order: Order,
    /// What becomes of the sequences that do not fill a batch.
    pub last_batch: EpochEnd,
    /// What each worker reads.
    pub placement: Placement,
    /// Address of the data server; empty unless `placement` is served.
    pub server: String,
}

/// What a model is judged by.
#[derive(Debug, Clone, PartialEq)]
pub enum ValidationSource {
    /// The last part of the tokens: above 0 and at most one half of them.
    Fraction(f64),
    /// A text of its own.
    Path(String),
}

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The corpus inside the binary.
    Bundled,
    /// Tokens that are drawn by Zipf's law.
    Zipf,
    /// A file, a folder, a shard folder or a pattern; may hold `{rank}`.
    Path(String),
}

impl Source {
    /// What stands for the worker's number in a path.
    pub const RANK: &'static str = "{rank}";

    /// Whether every worker reads another path.
    pub fn depends_on_rank(&self) -> bool {
        matches!(self, Self::Path(path) if path.contains(Self::RANK))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bundled => "bundled",
            Self::Zipf => "zipf",
            Self::Path(path) => path,
        })
    }
}

/// How text becomes tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokenizer {
    /// One token per byte: 256 tokens, nothing to learn or download.
    Byte,
    /// A tokenizer.json, or a folder that holds one.
    File(String),
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Byte => "byte",
            Self::File(path) => path,
        })
    }
}

choices! {
    /// How documents become sequences.
    Documents {
        /// One behind the other, with a token between two where the tokenizer has one for that.
        Packed = "packed",
        /// Each in sequences of its own, the last of them filled up with what counts for nothing.
        Padded = "padded",
    }
}

choices! {
    /// In which order sequences come.
    Order {
        /// Another permutation in every epoch.
        Random = "random",
        /// As they are read.
        Sequential = "sequential",
    }
}

choices! {
    /// What becomes of the sequences at the end of an epoch that do not fill a batch.
    EpochEnd {
        /// The first of the next epoch fill it up.
        Wrap = "wrap",
        /// They are left out.
        Drop = "drop",
        /// Sequences that count for nothing fill it up.
        Pad = "pad",
    }
}

choices! {
    /// What each worker reads.
    Placement {
        /// Everything.
        Shared = "shared",
        /// The parts that belong to its leaves.
        Partitioned = "partitioned",
        /// Its own file, which nobody else sees.
        Local = "local",
        /// What a data server sends it.
        Served = "served",
    }
}

//! Training data and its distribution to workers.

use std::fmt;

/// Training data.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// Source of the data.
    pub source: Source,
    /// Exponent of Zipf's law for synthetic tokens.
    pub zipf: f64,
    /// Field of JSON Lines or column of Parquet with the text.
    pub field: String,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Token after each document: auto, none or the text of a token.
    pub end_of_document: String,
    /// Validation data.
    pub validation: ValidationSource,
    /// How documents become sequences.
    pub documents: Documents,
    /// Order of the sequences.
    pub order: Order,
    /// Treatment of the last, incomplete batch of an epoch.
    pub last_batch: EpochEnd,
    /// Data that each worker reads.
    pub placement: Placement,
    /// Address of the data server; empty unless `placement` is served.
    pub server: String,
}

/// Source of the validation data.
#[derive(Debug, Clone, PartialEq)]
pub enum ValidationSource {
    /// Last fraction of the tokens: above 0 and at most one half.
    Fraction(f64),
    /// Path of separate data.
    Path(String),
}

/// Source of the training data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The corpus inside the binary.
    Bundled,
    /// Synthetic tokens drawn by Zipf's law.
    Zipf,
    /// A file, folder, shard folder or pattern; may contain `{rank}`.
    Path(String),
}

impl Source {
    /// Placeholder of the rank in a path.
    pub const RANK: &'static str = "{rank}";

    /// Whether every worker reads its own path.
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

/// Tokenizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokenizer {
    /// One token per byte value: 256 tokens.
    Byte,
    /// A tokenizer.json, or a folder with one.
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
        /// Concatenated, with the end-of-document token between two if the tokenizer has one.
        Packed = "packed",
        /// Each in sequences of its own, the last one padded with positions without loss.
        Padded = "padded",
    }
}

choices! {
    /// Order of the sequences.
    Order {
        /// A new permutation in every epoch.
        Random = "random",
        /// Reading order.
        Sequential = "sequential",
    }
}

choices! {
    /// Treatment of the last, incomplete batch of an epoch.
    EpochEnd {
        /// Filled with sequences of the next epoch.
        Wrap = "wrap",
        /// Left out.
        Drop = "drop",
        /// Filled with sequences without loss.
        Pad = "pad",
    }
}

choices! {
    /// Data that each worker reads.
    Placement {
        /// All data.
        Shared = "shared",
        /// The part of its leaves.
        Partitioned = "partitioned",
        /// A local file of its own.
        Local = "local",
        /// Batches from a data server.
        Served = "served",
    }
}

//! Sources of training data, and how documents become sequences and reach the workers.

use crate::field::field;
use crate::topic::choices;
use crate::value::Value;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::ValueType;

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

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

impl std::fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Byte => "byte",
            Self::File(path) => path,
        })
    }
}

field!(
    Source: ValueType::Text { may_be_empty: false },
    blank Self::Bundled,
    to |source| Value::Text(source.to_string()),
    from |v| match v.as_text() {
        "bundled" => Self::Bundled,
        "zipf" => Self::Zipf,
        path => Self::Path(path.to_owned()),
    }
);

field!(
    Tokenizer: ValueType::Text { may_be_empty: false },
    blank Self::Byte,
    to |tokenizer| Value::Text(tokenizer.to_string()),
    from |v| match v.as_text() {
        "byte" | "bytes" => Self::Byte,
        path => Self::File(path.to_owned()),
    }
);

field!(
    ValidationSource: ValueType::OrText(&f64::TYPE.float(Open(0.0), Closed(0.5))),
    blank Self::Path(String::new()),
    to |validation| match validation {
        Self::Fraction(fraction) => Value::Float(*fraction),
        Self::Path(path) => Value::Text(path.clone()),
    },
    from |v| match v {
        Value::Text(path) => Self::Path(path.clone()),
        number => Self::Fraction(number.as_float()),
    }
);

choices! {
    /// Form of the data.
    DataFormat {
        /// Text, every token of which is learnt.
        Text = "text",
        /// Conversations.
        Chat = "chat",
    }

    /// How documents become sequences.
    Documents {
        /// Concatenated, with the end-of-document token between two if the tokenizer has one.
        Packed = "packed",
        /// Concatenated, with attention that does not cross documents.
        Masked = "masked",
        /// Each in sequences of its own, the last one padded with positions without loss.
        Padded = "padded",
    }

    /// Order of the sequences.
    Order {
        /// A new permutation in every epoch.
        Random = "random",
        /// Reading order.
        Sequential = "sequential",
    }

    /// Treatment of the last, incomplete batch of an epoch.
    EpochEnd {
        /// Filled with sequences of the next epoch.
        Wrap = "wrap",
        /// Left out.
        Drop = "drop",
        /// Filled with sequences without loss.
        Pad = "pad",
    }

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

impl Placement {
    /// Whether a worker trains only on a part of the data.
    pub(super) const fn divides(self) -> bool {
        matches!(self, Self::Partitioned | Self::Local)
    }
}

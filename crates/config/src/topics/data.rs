//! Training data and its distribution to workers.
//!
//! A key added after the first recipes is part of the identity only if it differs from its default,
//! so that hashes of older runs stay valid.

use super::Family;
use crate::field::field;
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value::Value;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::ValueType;

topic! {
    /// Training data.
    pub struct Data at data, table "data", when("model.family", Family::OF_TEXT) {
        /// Training data: bundled, or the path of a file (text, JSON Lines, Parquet), a folder of
        /// files, a shard folder, or a pattern such as texts/*.txt; {rank} stands for the rank of
        /// the worker (data.placement = local). zipf draws tokens from model.vocab by Zipf's law,
        /// low ids being frequent.
        source: Source = "bundled";

        /// Exponent of Zipf's law with data.source = zipf: token k has a probability proportional
        /// to 1 / (k + 1) to this power.
        zipf: f64 = 1.0, float(Closed(0.0), Closed(4.0)),
            in_identity_when(|r| r.data.source == Source::Zipf);

        /// Field of JSON Lines or column of Parquet with the text.
        field: String = "text", not_empty(), in_identity_unless_default();

        /// Tokenizer: byte makes one token of each of the 256 byte values; otherwise the path of a
        /// tokenizer.json or of a folder with one. Shards bring their own.
        tokenizer: Tokenizer = "byte";

        /// Token after each document: auto is the tokenizer's end-of-document token if it has one,
        /// none adds no token, any other value is the text of the token. Byte documents are
        /// separated by a line break, or by the one byte given here.
        end_of_document: String = "auto", not_empty(), in_identity_unless_default();

        /// Fraction of the data held out for validation, or the path of separate validation data.
        validation: ValidationSource = 0.05;

        /// How documents become sequences: packed concatenates them, with the end-of-document token
        /// between two; padded starts every document in a new sequence and pads its last one with
        /// positions without loss.
        documents: Documents = "packed", in_identity_unless_default();

        /// Order of the sequences: random is a new permutation in every epoch, sequential is
        /// reading order.
        order: Order = "random", in_identity_unless_default();

        /// Treatment of the last, incomplete batch of an epoch: wrap fills it with sequences of the
        /// next epoch, drop leaves it out, pad fills it with sequences without loss.
        last_batch: EpochEnd = "wrap", in_identity_unless_default();

        /// Data that each worker reads: shared reads everything; partitioned reads only the part of
        /// its leaves, each of which learns from its own part; local reads a file of its own that
        /// never leaves the worker ({rank} in data.source; the bits then depend on the number of
        /// workers); served receives batches from a lockstep data-server, with the same bits as
        /// shared.
        placement: Placement = "shared", in_identity_when(|r| r.data.placement.divides());

        /// Address of the data server, host:port.
        server: String = "", when("data.placement", &["served"]), in_identity_when(|_| false);
    }
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
    /// How documents become sequences.
    Documents {
        /// Concatenated, with the end-of-document token between two if the tokenizer has one.
        Packed = "packed",
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

pub(crate) const RULES: Rules = Rules::new(&[
    // A path contains the rank if and only if workers read local files.
    Rule::new(&["data.source", "data.placement"], |c| {
        let (rank, is_local) = (Source::RANK, c.data.placement == Placement::Local);
        let (rule, fix) = match c.data.source.depends_on_rank() {
            depends if depends == is_local => return None,
            true => (
                format!("has {rank} in it, which only data.placement = \"local\" fills in"),
                "set data.placement = \"local\" or remove it".to_owned(),
            ),
            false => (
                format!("has no {rank} in it, which data.placement = \"local\" needs"),
                format!("try a path with {rank}, such as \"text-{rank}.txt\""),
            ),
        };
        Some(c.error(rule, fix))
    }),
    Rule::new(&["data.server", "data.placement"], |c| {
        let has_port = c.data.server.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        let rule = "is not the host:port of a data server, which data.placement = \"served\" needs";
        let is_served = c.data.placement == Placement::Served;
        c.refuse(is_served && !has_port, rule, "\"127.0.0.1:7777\"")
    }),
]);

pub(crate) const LINTS: &[Lint] = lints! {
    "local-data": "workers train on different data, so their gradients are heterogeneous";
        if "data.placement = local with several workers";
        advice "compare with data.placement = \"partitioned\" where the data may be shared";
        |r| when r.data.placement == Placement::Local && r.run.workers > 1 =>
                "data.placement = \"local\" gives each worker data of its own";

    "sequential-order": "a batch holds neighbouring sequences, so its samples are correlated";
        if "data.order = sequential"; advice "use \"random\" unless the order matters";
        |r| when r.data.order == Order::Sequential =>
                "data.order = \"sequential\" fills batches with neighbouring sequences";
};

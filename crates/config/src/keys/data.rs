//! Keys of the training data and its distribution to workers.
//!
//! A key added after the first recipes is part of the identity only if it differs from its default,
//! so that hashes of older runs stay valid.

use crate::key::{Default, Field, Key, field};
use crate::recipe::{Documents, EpochEnd, Order, Placement, Source, Tokenizer, ValidationSource};
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::{Closed, Open};
use Default::Fixed;

pub(super) const DATA: &[Key] = &[
    Key::new(
        "data.source",
        ValueType::Text { may_be_empty: false },
        Fixed("\"bundled\""),
        Field {
            get: |r| Some(Value::Text(r.data.source.to_string())),
            set: |r, v| {
                r.data.source = match v.as_text() {
                    "bundled" => Source::Bundled,
                    "zipf" => Source::Zipf,
                    path => Source::Path(path.to_owned()),
                };
            },
        },
        "Training data: bundled, or the path of a file (text, JSON Lines, Parquet), a folder of \
         files, a shard folder, or a pattern such as texts/*.txt; {rank} stands for the rank of \
         the worker (data.placement = local). zipf draws tokens from model.vocab by Zipf's law, \
         low ids being frequent.",
    ),
    Key::new(
        "data.zipf",
        super::float(Closed(0.0), Closed(4.0)),
        Fixed("1.0"),
        field!(data.zipf: f64),
        "Exponent of Zipf's law with data.source = zipf: token k has a probability proportional to \
         1 / (k + 1) to this power.",
    )
    .in_identity_when(|r| r.data.source == Source::Zipf),
    Key::new(
        "data.field",
        ValueType::Text { may_be_empty: false },
        Fixed("\"text\""),
        field!(data.field: String),
        "Field of JSON Lines or column of Parquet with the text.",
    )
    .in_identity_when(|r| r.data.field != "text"),
    Key::new(
        "data.tokenizer",
        ValueType::Text { may_be_empty: false },
        Fixed("\"byte\""),
        Field {
            get: |r| Some(Value::Text(r.data.tokenizer.to_string())),
            set: |r, v| {
                r.data.tokenizer = match v.as_text() {
                    "byte" | "bytes" => Tokenizer::Byte,
                    path => Tokenizer::File(path.to_owned()),
                };
            },
        },
        "Tokenizer: byte makes one token of each of the 256 byte values; otherwise the path of a \
         tokenizer.json or of a folder with one. Shards bring their own.",
    ),
    Key::new(
        "data.end_of_document",
        ValueType::Text { may_be_empty: false },
        Fixed("\"auto\""),
        field!(data.end_of_document: String),
        "Token after each document: auto is the tokenizer's end-of-document token if it has one, \
         none adds no token, any other value is the text of the token. Byte documents are \
         separated by a line break, or by the one byte given here.",
    )
    .in_identity_when(|r| r.data.end_of_document != "auto"),
    Key::new(
        "data.validation",
        ValueType::FloatOrText { low: Open(0.0), high: Closed(0.5) },
        Fixed("0.05"),
        Field {
            get: |r| {
                Some(match &r.data.validation {
                    ValidationSource::Fraction(fraction) => Value::Float(*fraction),
                    ValidationSource::Path(path) => Value::Text(path.clone()),
                })
            },
            set: |r, v| {
                r.data.validation = match v {
                    Value::Text(path) => ValidationSource::Path(path.clone()),
                    number => ValidationSource::Fraction(number.as_float()),
                };
            },
        },
        "Fraction of the data held out for validation, or the path of separate validation data.",
    ),
    Key::new(
        "data.documents",
        ValueType::Choice(Documents::NAMES),
        Fixed("\"packed\""),
        field!(data.documents: choice Documents),
        "How documents become sequences: packed concatenates them, with the end-of-document token \
         between two; padded starts every document in a new sequence and pads its last one with \
         positions without loss.",
    )
    .in_identity_when(|r| r.data.documents != Documents::Packed),
    Key::new(
        "data.order",
        ValueType::Choice(Order::NAMES),
        Fixed("\"random\""),
        field!(data.order: choice Order),
        "Order of the sequences: random is a new permutation in every epoch, sequential is reading \
         order.",
    )
    .in_identity_when(|r| r.data.order != Order::Random),
    Key::new(
        "data.last_batch",
        ValueType::Choice(EpochEnd::NAMES),
        Fixed("\"wrap\""),
        field!(data.last_batch: choice EpochEnd),
        "Treatment of the last, incomplete batch of an epoch: wrap fills it with sequences of the \
         next epoch, drop leaves it out, pad fills it with sequences without loss.",
    )
    .in_identity_when(|r| r.data.last_batch != EpochEnd::Wrap),
    Key::new(
        "data.placement",
        ValueType::Choice(Placement::NAMES),
        Fixed("\"shared\""),
        field!(data.placement: choice Placement),
        "Data that each worker reads: shared reads everything; partitioned reads only the part of \
         its leaves, each of which learns from its own part; local reads a file of its own that \
         never leaves the worker ({rank} in data.source; the bits then depend on the number of \
         workers); served receives batches from a lockstep data-server, with the same bits as \
         shared.",
    )
    .in_identity_when(|r| matches!(r.data.placement, Placement::Partitioned | Placement::Local)),
    Key::new(
        "data.server",
        ValueType::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(data.server: String),
        "Address of the data server, host:port.",
    )
    .only_when("data.placement", &["served"])
    .in_identity_when(|_| false),
];

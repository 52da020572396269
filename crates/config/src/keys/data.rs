//! Keys of the text that a model learns from, and of how it reaches the workers.
//!
//! Most of them came after the first recipes. Each counts in a recipe's identity only where it
//! differs from what was the only way before, so that hashes of older runs still stand.

use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Documents, EpochEnd, HeldOut, Order, Placement, Source, Tokenizer};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::Fixed;

pub(super) const DATA: &[Key] = &[
    Key::new(
        "data.source",
        Kind::Text { may_be_empty: false },
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
        "Where the text comes from: bundled, or the path of a file (text, JSON Lines, Parquet), of \
         a folder of them, of a shard folder, or a pattern such as texts/*.txt; {rank} stands for \
         the worker's number (data.placement = local). zipf draws tokens of all of model.vocab by \
         Zipf's law, low numbers being the common ones.",
    ),
    Key::new(
        "data.zipf",
        super::float(Closed(0.0), Closed(4.0)),
        Fixed("1.0"),
        field!(data.zipf: f64),
        "The exponent of Zipf's law, where data.source = zipf: token k comes in proportion to \
         1 / (k + 1) to this power.",
    )
    .counting_when(|r| r.data.source == Source::Zipf),
    Key::new(
        "data.field",
        Kind::Text { may_be_empty: false },
        Fixed("\"text\""),
        field!(data.field: String),
        "The field of JSON Lines and the column of Parquet that holds the text.",
    )
    .counting_when(|r| r.data.field != "text"),
    Key::new(
        "data.tokenizer",
        Kind::Text { may_be_empty: false },
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
        "How text becomes tokens: byte makes one token of each of the 256 byte values; else the \
         path of a tokenizer.json, or of a folder that holds one. Shards bring their own.",
    ),
    Key::new(
        "data.end_of_document",
        Kind::Text { may_be_empty: false },
        Fixed("\"auto\""),
        field!(data.end_of_document: String),
        "What stands after each document: auto is the tokenizer's own token where it has one, none \
         is nothing, and else it is the token with this text. Between byte documents stands a line \
         break, or the one byte named here.",
    )
    .counting_when(|r| r.data.end_of_document != "auto"),
    Key::new(
        "data.validation",
        Kind::FloatOrText { low: Open(0.0), high: Closed(0.5) },
        Fixed("0.05"),
        Field {
            get: |r| {
                Some(match &r.data.validation {
                    HeldOut::Fraction(fraction) => Value::Float(*fraction),
                    HeldOut::Path(path) => Value::Text(path.clone()),
                })
            },
            set: |r, v| {
                r.data.validation = match v {
                    Value::Text(path) => HeldOut::Path(path.clone()),
                    number => HeldOut::Fraction(number.as_float()),
                };
            },
        },
        "Fraction of the text held out for validation, or the path of a text of its own.",
    ),
    Key::new(
        "data.documents",
        Kind::Choice(Documents::NAMES),
        Fixed("\"packed\""),
        field!(data.documents: choice Documents),
        "How documents become sequences: packed joins them, with the end-of-document token between \
         two where the tokenizer has one; padded begins each in a sequence of its own and fills up \
         its last sequence with positions that count for nothing.",
    )
    .counting_when(|r| r.data.documents != Documents::Packed),
    Key::new(
        "data.order",
        Kind::Choice(Order::NAMES),
        Fixed("\"random\""),
        field!(data.order: choice Order),
        "Order of the sequences: random is another permutation in every epoch, sequential is \
         reading order.",
    )
    .counting_when(|r| r.data.order != Order::Random),
    Key::new(
        "data.last",
        Kind::Choice(EpochEnd::NAMES),
        Fixed("\"wrap\""),
        field!(data.last: choice EpochEnd),
        "What becomes of the sequences at the end of an epoch that do not fill a batch: wrap fills \
         it with the first of the next epoch, drop leaves them out, pad fills it with sequences \
         that count for nothing.",
    )
    .counting_when(|r| r.data.last != EpochEnd::Wrap),
    Key::new(
        "data.placement",
        Kind::Choice(Placement::NAMES),
        Fixed("\"shared\""),
        field!(data.placement: choice Placement),
        "What each worker reads: shared is everything; partitioned only the parts of its leaves, \
         which all learn from their own part of the text; local its own file, which never leaves \
         it ({rank} in data.source; the bits then depend on the workers); served is what a \
         lockstep data-server sends, the same bits as shared.",
    )
    .counting_when(|r| matches!(r.data.placement, Placement::Partitioned | Placement::Local)),
    Key::new(
        "data.server",
        Kind::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(data.server: String),
        "Address of the data server, host:port.",
    )
    .only_when("data.placement", &["served"])
    .counting_when(|_| false),
];

//! Training data and its distribution to workers.
//!
//! A key added after the first recipes is part of the identity only if it differs from its default,
//! so that hashes of older runs stay valid.

use super::data_source::{
    DataFormat, Documents, EpochEnd, Order, Placement, Source, Tokenizer, ValidationSource,
};
use super::{Family, Infilling, Mixture, Recipe};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::topic;
use crate::value_type::Bound::Closed;

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

        /// Form of the data: text trains on every token of a field or file; chat reads JSON Lines
        /// or Parquet of conversations (messages, conversations, instruction and output, or prompt
        /// and completion) and renders them with the tokenizer's chat template.
        format: DataFormat = "text", in_identity_unless_default();

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
        /// between two; masked packs them with a document mask, so that a token attends to its own
        /// document only and positions restart with each; padded starts every document in a new
        /// sequence and pads its last one with positions without loss.
        documents: Documents = ("packed, or padded with data.format = chat", documents),
            in_identity_unless_default();

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

        /// Weighted mixture of several sources.
        part mixture: Mixture;

        /// Fill-in-the-middle.
        part infilling: Infilling;
    }
}

/// Conversations do not see each other.
fn documents(recipe: &Recipe) -> Documents {
    match recipe.data.format {
        DataFormat::Text => Documents::Packed,
        DataFormat::Chat => Documents::Padded,
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
    Rule::new(&["data.documents", "data.placement"], |c| {
        let is_served = c.data.placement == Placement::Served;
        let rule = "needs the ends of documents, which a data server does not send";
        let fix = "\"packed\", or data.placement = \"shared\"";
        c.refuse(is_served && c.data.documents == Documents::Masked, rule, fix)
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

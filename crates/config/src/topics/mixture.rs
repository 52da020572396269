//! Weighted mixtures of several sources, read and tokenized during training.

use super::data_source::{DataFormat, Documents, EpochEnd, Placement, Source, ValidationSource};
use super::{Recipe, SyncMode};
use crate::rule::{Rule, Rules};
use crate::topic::{entry, topic};
use crate::value_type::Bound::{Closed, Open};

/// Largest number of sources.
const MAX_SOURCES: usize = 256;

entry! {
    /// A source of a mixture.
    pub struct MixtureSource {
        /// Path of a file (text, JSON Lines, Parquet), a folder, a glob or a shard folder.
        source: String = required, not_empty();
        /// Share of the sequences, relative to the other weights.
        weight: f64 = required, float(Open(0.0), Closed(1e9));
        /// Field of JSON Lines or column of Parquet; none takes that of the recipe.
        field: String = none, not_empty();
        /// Separator of the documents of a plain text.
        separator: String = none, not_empty();
        /// Number of passes after which the source ends; without it the source repeats.
        epochs: Option<u64> = none, integer(1, 1_000_000_000);
    }
}

topic! {
    /// A weighted mixture of several sources.
    pub struct Mixture at data.mixture, among "data" {
        /// Weighted sources that replace data.source: each sequence comes from one of them, chosen
        /// by weight. They are read and tokenized during training, so none has to fit into memory.
        /// A source repeats, or ends after its epochs and leaves its share to the others; one
        /// source at least repeats. Weights may change where a run resumes: every source then
        /// continues where it stood.
        sources as mixture: Vec<MixtureSource> = none, at_most(MAX_SOURCES);

        /// Number of documents that each stream of a mixture shuffles at a time, with data.order =
        /// random. Files are shuffled as a whole.
        shuffle_buffer: usize = 64, integer(1, 65_536), in_identity_when(is_on);

        /// Number of threads per worker that read and tokenize a mixture; at most one for each
        /// reduction leaf of the worker works.
        tokenizer_threads: usize = 1, integer(1, 256), in_identity_when(|_| false);
    }
}

impl Mixture {
    /// Whether the recipe has a mixture.
    pub fn is_on(&self) -> bool {
        !self.sources.is_empty()
    }

    /// The mixture with the weights of another one, where the sources are otherwise equal.
    pub fn with_weights_of(&self, other: &Self) -> Self {
        let mut weighted = self.clone();
        for (own, other) in weighted.sources.iter_mut().zip(&other.sources) {
            own.weight = other.weight;
        }
        weighted
    }
}

fn is_on(recipe: &Recipe) -> bool {
    recipe.data.mixture.is_on()
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["data.mixture", "data.source"], |c| {
        // A recipe that was printed lists the default source too.
        if c.data.source == Source::Bundled {
            return None;
        }
        let rule = format!("replaces data.source, which is {}", c.text_of("data.source"));
        Some(c.error(rule, "remove data.source, or add it to the mixture"))
    }),
    Rule::new(&["data.mixture", "data.format"], |c| {
        let rule = "reads texts, and mixtures of conversations are not supported";
        let fix = "put the files of conversations into one folder and set data.source to it";
        (c.data.format == DataFormat::Chat).then(|| c.error(rule, fix))
    }),
    // Each step needs the targets of the whole batch, which only full sequences give in advance.
    Rule::new(&["data.mixture"], |c| {
        let repeats = c.data.mixture.sources.iter().any(|source| source.epochs.is_none());
        let rule = "ends: every source has a number of epochs";
        (!repeats).then(|| c.error(rule, "leave out the epochs of one source, which then repeats"))
    }),
    Rule::new(&["data.mixture", "data.validation"], |c| {
        let ValidationSource::Path(path) = &c.data.validation else { return None };
        let is_part = c.data.mixture.sources.iter().any(|source| source.source == *path);
        let rule = "has data.validation among its sources, so the run would train on it";
        is_part.then(|| c.error(rule, "remove it from the mixture, or hold out a fraction"))
    }),
    Rule::conflict(&["data.mixture"], "[]", |c, r| {
        let sync = &r.sync;
        let is_text = r.data.format == DataFormat::Text;
        let is_in_step = matches!(sync.mode, SyncMode::AllReduce | SyncMode::LocalSgd);
        c.because("fills every sequence from one source")
            .with("data.documents", "\"packed\"", is_text && r.data.documents == Documents::Padded)
            .because("has no last batch: its sources repeat")
            .with("data.last_batch", "\"wrap\"", r.data.last_batch != EpochEnd::Wrap)
            .because("is read by each worker for its own leaves")
            .with("data.placement", "\"shared\"", r.data.placement != Placement::Shared)
            .because("has no list of samples to divide")
            .with("sync.partition", "\"shared\"", r.is_partitioned())
            .because("needs workers that draw their batches in lockstep")
            .with("sync.mode", "\"all-reduce\"", !is_in_step);
    }),
])
.when(&["data.mixture"], is_on);

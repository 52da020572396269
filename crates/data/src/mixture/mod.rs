//! Weighted mixtures: many sources, read and tokenized during training, and resumed exactly.
//!
//! Each sequence of a batch is one window of one source. The source is a function of (seed, leaf,
//! number of the sequence in the leaf): a low-discrepancy sequence over the cumulative weights.
//! Each source has one stream per reduction leaf. The training documents of a source are numbered
//! from its first epoch on, and the stream of leaf *l* of *G* holds the documents whose number is
//! *l* modulo *G*: all workers together tokenize every document once, and a leaf reads the same
//! tokens on any worker. A stream is packed into windows that are `context` tokens apart, over
//! documents and epochs.
//!
//! Nothing is known of a source in advance, so its order has two stages: the files are permuted as
//! a whole, by (seed, source, epoch), and the documents of a stream within consecutive blocks.
//!
//! A checkpoint holds the position of every stream. Weights are not part of it: a run that resumes
//! with other weights draws other sources from then on, and each stream continues where it stood.
//!
//! # Layout
//!
//! - `blend`: source of a sequence
//! - `source`: an open source and its rows; `reader`: training documents of one leaf
//! - `stream`: windows of one leaf from one source; [`position`]: position of a stream
//! - `leaf`: windows of one leaf from all sources
//! - `producer`: threads that fill the batches
//! - `held_out`: validation documents

mod blend;
mod held_out;
mod leaf;
pub mod position;
mod producer;
mod reader;
mod source;
mod stream;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use lockstep_config::{Recipe, ValidationSource};
use lockstep_platform::World;

use crate::corpus::{TokenCounts, TokenSpan, combined, held_out_span, tokenizer_of};
use crate::error::{DataError, Split};
use crate::permutation::mix;
use crate::tokenizer::Tokenizer;
use reader::{RowPosition, RowReader, Share};
use source::Source;

pub use position::{SourceProgress, progress};
pub(crate) use producer::{STALL, fill};

/// Memory of a stream: its buffers of reading, its block of documents and its tokens.
const STREAM_BYTES: usize = 1 << 19;

/// Purpose keys of the random numbers of a mixture.
const SOURCE_SEED: u64 = 16;
const HELD_OUT: u64 = 17;
const FILES: u64 = 18;
const BLOCK: u64 = 19;
const BLEND: u64 = 20;
const INFILLING: u64 = 21;

/// Open sources of a recipe.
pub struct Mixture {
    sources: Vec<Arc<Source>>,
    weights: Vec<f64>,
    tokenizer: Tokenizer,
    validation: TokenSpan,
    fingerprint: String,
}

impl Mixture {
    /// Opens all sources, reads a document of each, and reads the validation split.
    pub fn open(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        let tokenizer = tokenizer_of(recipe, None, world)?;
        let entries = &recipe.data.mixture.sources;
        let open = |(index, entry)| {
            let seed = mix(mix(recipe.train.seed, SOURCE_SEED), index as u64);
            Source::open(entry, seed, recipe, &tokenizer, world).map(Arc::new)
        };
        let sources: Vec<_> = entries.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        sources.iter().try_for_each(probe)?;
        let weights: Vec<f64> = entries.iter().map(|entry| entry.weight).collect();
        let mut fingerprint = vec![fingerprint_of(&sources, &tokenizer)];
        let validation = match &recipe.data.validation {
            ValidationSource::Fraction(_) => {
                held_out::read(&sources, &weights, &tokenizer, recipe)?
            }
            ValidationSource::Path(path) => {
                let (span, text) = held_out_span(recipe, path, &tokenizer, world)?;
                fingerprint.push(text);
                span
            }
        };
        let mixture =
            Self { sources, weights, tokenizer, validation, fingerprint: combined(fingerprint) };
        mixture.require_validation(recipe)?;
        Ok(mixture)
    }

    /// Checks that the validation split holds a window.
    fn require_validation(&self, recipe: &Recipe) -> Result<(), DataError> {
        let (num_tokens, context) = (self.validation.len(), recipe.model.context);
        if num_tokens > context {
            return Ok(());
        }
        Err(DataError::TooShort {
            name: self.name(),
            split: Split::Validation,
            num_tokens,
            context,
            longest_context: num_tokens.saturating_sub(1),
        })
    }

    /// Name in messages.
    pub fn name(&self) -> String {
        match &*self.sources {
            [source] => source.name().to_owned(),
            sources => format!("the mixture of {} sources", sources.len()),
        }
    }

    /// Fingerprint of the sources and the tokenizer, without the weights: 16 hexadecimal digits. Of
    /// each file it covers the size, the beginning and the end.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    /// Validation split.
    pub fn validation(&self) -> &TokenSpan {
        &self.validation
    }

    /// Entropy of the validation split, the baseline of a loss on it; [`crate::baseline`] defines
    /// it.
    pub(crate) fn entropy(&self) -> f64 {
        let mut counts = TokenCounts::new(self.tokenizer.vocab());
        let read = self.validation.visit(|tokens| counts.take(tokens.iter().copied()));
        read.map_or(f64::NAN, |()| counts.entropy())
    }

    /// Tokenizer of all sources.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Memory of the streams of this many leaves.
    pub(crate) fn held_bytes(&self, num_leaves: usize) -> usize {
        num_leaves * self.sources.len() * STREAM_BYTES + self.validation.held_bytes()
    }
}

impl fmt::Debug for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mixture({}, {:?})", self.name(), self.weights)
    }
}

fn fingerprint_of(sources: &[Arc<Source>], tokenizer: &Tokenizer) -> String {
    let tokenizer = tokenizer.blake3()[..16].to_owned();
    combined(sources.iter().map(|source| source.fingerprint()).chain([tokenizer]))
}

/// Reads one document, so that an unreadable source is found before the run starts.
fn probe(source: &Arc<Source>) -> Result<(), DataError> {
    let start = RowPosition::default();
    let mut reader = RowReader::training(Arc::clone(source), Share::WHOLE, start);
    let found = reader.next_document()?;
    found.map(drop).ok_or_else(|| DataError::NoDocuments { name: source.name().to_owned() })
}

/// Whether a path is a shard folder.
fn is_shards(path: &str, world: &World) -> bool {
    crate::shards::ShardSet::is_at(Path::new(path), world.files())
}

#[cfg(test)]
mod tests;

//! From text to batches: documents, tokenizers, shards, samplers and the background loader.
//!
//! The sample at each position of each step is a function of (seed, epoch, index) alone: it does
//! not depend on the number of workers, the micro-batch size or restarts.
//!
//! # Layout
//!
//! - [`documents`]: text, JSON Lines, Parquet, folders and globs as a stream of documents
//! - [`mod@dedup`]: removes repeated documents; [`mod@filter`]: removes documents of low quality
//! - [`tokenizer`]: byte tokens or any `tokenizer.json`
//! - [`chat`]: conversations as text, by chat templates
//! - [`shards`]: tokens on disk, mapped into memory
//! - [`corpus`]: a token stream with a validation split
//! - [`permutation`]: a keyed shuffle without memory
//! - [`sampler`]: from sample number to token window; `sample_order`: assignment of samples to
//!   sequences
//! - [`clients`]: client sampling of federated learning
//! - [`partition`]: non-IID partitions of the samples
//! - [`batch`]: samples of one step, in micro-batches
//! - [`loader`]: batches prepared in the background
//! - [`mixture`]: weighted mixtures, read during training; `infilling`: fill-in-the-middle
//! - [`placement`]: the data of each worker; [`serve`]: the data server
//! - [`cursor`]: position in the data, for checkpoints
//! - [`validation`]: the fixed micro-batches of evaluations
//! - [`baseline`]: bigram or unigram entropy, the loss to beat
//! - [`windows`]: overlapping windows over a text, for evaluation
//! - [`tasks`]: multiple choice in the format of lm-evaluation-harness
//! - `problem`: sample numbers of small problems, which have no text
//! - `zipf`: synthetic tokens by Zipf's law
//! - [`error`]: errors, each with the party that must act
//! - `bundled`: the corpus inside the binary
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use lockstep_data::{Corpus, Cursor, Loader};
//!
//! let recipe = lockstep_config::resolve(&lockstep_config::Sources::default()).unwrap();
//! let world = lockstep_platform::real();
//! let corpus = Arc::new(Corpus::load(&recipe, &world)?);
//!
//! let mut loader = Loader::open(&recipe, &world, Arc::clone(&corpus), Cursor::start())?;
//! let first = loader.next_batch()?;
//! let (inputs, targets) = first.microbatch(0);
//! assert_eq!(inputs[1], targets[0]);
//!
//! // A saved cursor continues where the first loader stands.
//! let saved = loader.cursor();
//! let mut resumed = Loader::open(&recipe, &world, corpus, saved)?;
//! assert_eq!(resumed.next_batch()?, loader.next_batch()?);
//! # Ok::<(), lockstep_data::DataError>(())
//! ```

pub mod documents;

pub mod dedup;
pub mod filter;

pub mod tokenizer;

pub mod chat;

pub mod shards;

mod bundled;
pub mod corpus;

pub mod sampler;

pub mod clients;
pub mod partition;
mod sample_order;

pub mod batch;
pub mod cursor;
pub mod loader;

mod infilling;
pub mod mixture;

pub mod placement;
pub mod serve;

pub mod loading_speed;

pub mod validation;

pub mod baseline;
pub mod tasks;
pub mod windows;

mod problem;
mod zipf;

pub mod error;

pub use baseline::{baseline_loss, baseline_name};
pub use batch::{Batch, IGNORE, PAD};
pub use corpus::{ConversationCounts, Corpus, TokenSpan};
pub use cursor::Cursor;
pub use documents::{Documents, Piece, ReadOptions};
pub use error::{DataError, Split};
pub use loader::Loader;
pub use lockstep_config::permutation::{self, Permutation};
pub use mixture::Mixture;
pub use placement::{DataRank, Feed};
pub use sampler::{Sampler, Window};
pub use shards::ShardSet;
pub use tokenizer::{EndOfDocument, Tokenizer};
pub use validation::{Validation, ValidationMicrobatch, validation_microbatches};

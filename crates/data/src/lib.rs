//! Text in, batches out: documents, tokenizers, shards, the sampler and the background loader.
//!
//! Which sample lands at which position of which step is a function of (seed, epoch, index) only:
//! no worker count, micro-batch size or restart can change it.
//!
//! # Layout
//!
//! - [`documents`]: text, JSON Lines, Parquet, folders and globs as a stream of documents
//! - [`tokenizer`]: text to tokens and back, by bytes or by any `tokenizer.json`
//! - [`shards`]: tokens on disk, mapped into memory
//! - [`corpus`]: a text or shards as one token stream with a validation split
//! - [`permutation`]: a keyed shuffle that needs no memory
//! - [`sampler`]: sample number to window of tokens; `deal`: which sampler a sequence comes from
//! - [`clients`]: who takes part in a round of federated learning
//! - [`partition`]: parts of the samples that differ, and by how much
//! - [`batch`]: one step's samples, cut into micro-batches
//! - [`loader`]: batches made in the background, one step ahead
//! - [`placement`]: what each worker reads; [`serve`]: batches over the network
//! - [`cursor`]: the position that a checkpoint stores
//! - [`validation`]: the fixed micro-batches a model is judged by
//! - [`baseline`]: the entropy of byte pairs or tokens, the loss to beat
//! - [`windows`]: a whole text cut into overlapping windows, to judge a model by
//! - `problem`: the numbers of samples, for small problems, which have no text
//! - [`error`]: everything that can go wrong, with who must act
//! - `bundled`: the text inside the binary
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
//! let (inputs, targets) = first.micro-batch(0);
//! assert_eq!(inputs[1], targets[0]);
//!
//! // A saved cursor continues where the first loader stands.
//! let saved = loader.cursor();
//! let mut resumed = Loader::open(&recipe, &world, corpus, saved)?;
//! assert_eq!(resumed.next_batch()?, loader.next_batch()?);
//! # Ok::<(), lockstep_data::DataError>(())
//! ```

pub mod documents;
pub mod tokenizer;

pub mod shards;

mod bundled;
pub mod corpus;

pub mod permutation;
pub mod sampler;

pub mod clients;
mod deal;
pub mod partition;

pub mod batch;
pub mod cursor;
pub mod loader;

pub mod placement;
pub mod serve;

pub mod validation;

pub mod baseline;
pub mod windows;

mod problem;
mod zipf;

pub mod error;

pub use baseline::{baseline_loss, baseline_name};
pub use batch::{Batch, IGNORE, PAD};
pub use corpus::{Corpus, Stretch};
pub use cursor::Cursor;
pub use documents::{Documents, Piece, ReadOptions};
pub use error::{DataError, Split};
pub use loader::Loader;
pub use permutation::Permutation;
pub use placement::{Feed, Seat};
pub use sampler::{Sampler, Window};
pub use shards::ShardSet;
pub use tokenizer::{EndOfDocument, Tokenizer};
pub use validation::{Validation, ValidationMicrobatch, validation_microbatches};

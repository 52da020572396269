//! Token shards: files that are written once and mapped into memory.
//!
//! Tokenizing takes minutes to hours; training reads the same tokens many times, in random order,
//! from many processes. The tokens of a corpus are therefore written once into *shards*: flat files
//! of little-endian numbers, the ends of the documents, and a manifest with checksums. Every
//! process maps the files, so a sample costs one copy of its length, and all workers of a host
//! share the page cache.
//!
//! A folder appears atomically: it is written under a temporary name, the manifest last, and then
//! renamed.
//!
//! # Layout
//!
//! - [`manifest`]: content of the folder
//! - [`writer`]: writes a folder, document by document
//! - [`reader`]: [`ShardSet`], the tokens of a folder as one stream
//! - [`mod@build`]: tokenizes a corpus on several threads
//! - [`error`]: errors of a shard folder

pub mod manifest;

pub mod writer;

pub mod reader;

pub mod build;

pub mod error;

pub use build::{BuildOptions, BuildProgress, Built, bench_tokenizers_crate, build};
pub use error::ShardError;
pub use manifest::{MANIFEST, Manifest, ManifestShard, ManifestTokenizer};
pub use reader::ShardSet;
pub use writer::{ShardWriter, WriterOptions};

#[cfg(test)]
mod tests;

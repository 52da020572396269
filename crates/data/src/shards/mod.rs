//! Tokens on disk: numbered files that are written once, mapped into memory and never changed.
//!
//! Tokenising costs minutes to hours; training reads the same tokens many times, in random order,
//! from many processes. So the tokens of a corpus are written once into *shards*, flat files of
//! little-endian numbers, with the end of each document beside them and a manifest that describes
//! and checksums all of it. Every process maps the files: a sample costs a copy of its own length,
//! the kernel keeps one copy of each page for all workers of a host, and memory stays free.
//!
//! A folder appears whole or not at all: it is filled under a temporary name, its manifest last,
//! and then renamed.
//!
//! # Layout
//!
//! - [`manifest`]: what is in the folder
//! - [`writer`]: making one, document by document
//! - [`reader`]: [`ShardSet`], the tokens of one as a single stream
//! - [`mod@build`]: a corpus through a tokenizer into a folder, on several threads
//! - [`error`]: what can be wrong with one

pub mod manifest;

pub mod writer;

pub mod reader;

pub mod build;

pub mod error;

pub use build::{BuildOptions, BuildProgress, Built, build, crate_alone};
pub use error::ShardError;
pub use manifest::{MANIFEST, Manifest, ManifestShard, ManifestTokenizer};
pub use reader::ShardSet;
pub use writer::{ShardWriter, WriterOptions};

#[cfg(test)]
mod tests;

//! The description of a shard folder, small enough to be read before anything else.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::ShardError;

/// The manifest's name in its folder.
pub const MANIFEST: &str = "manifest.json";

/// The layout of folder and files that this program writes and reads.
pub const FORMAT: u32 = 1;

/// How many tokens fit into two bytes.
const NARROW_VOCAB: usize = 1 << 16;

/// What is in a shard folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The layout of folder and files; [`FORMAT`].
    pub format: u32,
    /// What made tokens of the text.
    pub tokenizer: ManifestTokenizer,
    /// How many different tokens there are.
    pub vocab: usize,
    /// Bytes of a token in the files: 2 or 4.
    pub token_bytes: usize,
    /// The token that stands after each document, if any. It counts as the document's last.
    pub end_of_document: Option<u32>,
    /// Tokens of all shards.
    pub num_tokens: u64,
    /// Documents of all shards.
    pub num_documents: u64,
    /// Bytes of the text that was tokenised.
    pub num_bytes: u64,
    /// The shards, in the order of the corpus.
    pub shards: Vec<ManifestShard>,
}

/// The tokenizer of a shard folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTokenizer {
    /// A copy of the `tokenizer.json` in the folder; nothing where a token is a byte.
    pub file: Option<String>,
    /// Its checksum; of nothing where there is no file.
    pub blake3: String,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestShard {
    /// The file of its tokens, little-endian.
    pub tokens: String,
    /// The file with the end of each document, in tokens of this shard, as little-endian `u64`.
    pub documents: String,
    /// How many tokens.
    pub num_tokens: u64,
    /// How many documents.
    pub num_documents: u64,
    /// Checksum of the file of tokens.
    pub tokens_blake3: String,
    /// Checksum of the file of documents.
    pub documents_blake3: String,
}

/// Bytes that a token of a vocabulary of this size takes.
pub(super) const fn token_bytes(vocab: usize) -> usize {
    if vocab <= NARROW_VOCAB { 2 } else { 4 }
}

/// What every format of a manifest has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Manifest {
    /// Reads a manifest and proves that it does not contradict itself.
    pub(super) fn parse(path: &Path, json: &[u8]) -> Result<Self, ShardError> {
        let manifest = |reason| ShardError::Manifest { path: path.to_owned(), reason };
        let version: Version =
            serde_json::from_slice(json).map_err(|error| manifest(error.to_string()))?;
        if version.format != FORMAT {
            return Err(manifest(format!("it has format {}, not {FORMAT}", version.format)));
        }
        let parsed: Self =
            serde_json::from_slice(json).map_err(|error| manifest(error.to_string()))?;
        parsed.prove().map_err(manifest)?;
        Ok(parsed)
    }

    fn prove(&self) -> Result<(), String> {
        if self.vocab == 0 || self.vocab > u32::MAX as usize {
            return Err(format!("vocab = {} is no size of a vocabulary", self.vocab));
        }
        let token_bytes = token_bytes(self.vocab);
        if self.token_bytes != token_bytes {
            let (vocab, found) = (self.vocab, self.token_bytes);
            return Err(format!("token_bytes = {found} where vocab = {vocab} takes {token_bytes}"));
        }
        if let Some(end) = self.end_of_document.filter(|&end| end as usize >= self.vocab) {
            return Err(format!("end_of_document = {end} is not below vocab = {}", self.vocab));
        }
        let names = self.shards.iter().flat_map(|shard| [&shard.tokens, &shard.documents]);
        if let Some(name) = names.chain(&self.tokenizer.file).find(|name| !is_plain(name)) {
            return Err(format!("{name:?} is not the name of a file in this folder"));
        }
        let tokens = self.shards.iter().map(|shard| shard.num_tokens);
        let documents = self.shards.iter().map(|shard| shard.num_documents);
        if sum(tokens) != Some(self.num_tokens) || sum(documents) != Some(self.num_documents) {
            return Err("its shards do not add up to num_tokens and num_documents".to_owned());
        }
        Ok(())
    }
}

/// A sum that a forged manifest cannot overflow, not even as a number of bytes.
fn sum(mut counts: impl Iterator<Item = u64>) -> Option<u64> {
    let total = counts.try_fold(0, u64::checked_add)?;
    total.checked_mul(8).map(|_| total)
}

/// A manifest names files of its own folder only.
fn is_plain(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file_name| file_name == name)
}

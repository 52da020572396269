//! Manifest of a shard folder.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::ShardError;

/// File name of the manifest.
pub const MANIFEST: &str = "manifest.json";

/// Version of the folder format.
pub const FORMAT: u32 = 1;

/// Largest vocabulary with two-byte tokens.
const NARROW_VOCAB: usize = 1 << 16;

/// Content of a shard folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the folder format; [`FORMAT`].
    pub format: u32,
    /// Tokenizer of the shards.
    pub tokenizer: ManifestTokenizer,
    /// Vocabulary size.
    pub vocab: usize,
    /// Bytes per token in the files: 2 or 4.
    pub token_bytes: usize,
    /// Token after each document, if any; it is the document's last token.
    pub end_of_document: Option<u32>,
    /// Number of tokens in all shards.
    pub num_tokens: u64,
    /// Number of documents in all shards.
    pub num_documents: u64,
    /// Bytes of the tokenized text.
    pub num_bytes: u64,
    /// Shards in the order of the corpus.
    pub shards: Vec<ManifestShard>,
}

/// Tokenizer of a shard folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTokenizer {
    /// Copy of `tokenizer.json` in the folder; none for byte tokens.
    pub file: Option<String>,
    /// Checksum of the tokenizer; that of no bytes without a file.
    pub blake3: String,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestShard {
    /// File of little-endian tokens.
    pub tokens: String,
    /// File of document ends, in tokens of this shard, as little-endian `u64`.
    pub documents: String,
    /// Number of tokens.
    pub num_tokens: u64,
    /// Number of documents.
    pub num_documents: u64,
    /// Checksum of the token file.
    pub tokens_blake3: String,
    /// Checksum of the document file.
    pub documents_blake3: String,
}

/// Bytes per token for a vocabulary size.
pub(super) const fn token_bytes(vocab: usize) -> usize {
    if vocab <= NARROW_VOCAB { 2 } else { 4 }
}

/// Fields common to all manifest formats.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Manifest {
    /// Parses a manifest and checks that it is consistent.
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

/// Sum that cannot overflow, also as a number of bytes.
fn sum(mut counts: impl Iterator<Item = u64>) -> Option<u64> {
    let total = counts.try_fold(0, u64::checked_add)?;
    total.checked_mul(8).map(|_| total)
}

/// Whether a name is a plain file name: manifests refer to their own folder only.
fn is_plain(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file_name| file_name == name)
}

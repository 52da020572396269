//! Reads the tokens of a shard folder as one stream from mapped files.
//!
//! Tokens and documents are numbered through all shards. Sizes and document ends are checked when
//! the folder is opened. Tokens are compared with the vocabulary when they are copied, so a damaged
//! file is named and never reaches a model. Small sets also have their checksums verified on
//! opening.

use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileMap, Files};

use super::error::ShardError;
use super::manifest::{MANIFEST, Manifest, ManifestShard};
use crate::error::DataError;
use crate::tokenizer::{EndOfDocument, Tokenizer};

/// Size below which checksums are verified on every opening.
const CHECK_BYTES: u64 = 1 << 30;

/// Number of bytes copied from a map at once.
const PORTION_BYTES: usize = 1 << 14;

/// Bytes of an entry in a document file.
const END_BYTES: u64 = 8;

/// Number of checksum digits in a message.
const SHOWN_DIGITS: usize = 16;

/// An open shard folder.
pub struct ShardSet {
    folder: PathBuf,
    manifest: Manifest,
    fingerprint: String,
    shards: Vec<Shard>,
}

struct Shard {
    tokens: Box<dyn FileMap>,
    documents: Box<dyn FileMap>,
    /// First token in the whole stream.
    first_token: u64,
    first_document: u64,
}

impl ShardSet {
    /// Whether a folder holds a manifest.
    pub fn is_at(folder: &Path, files: &dyn Files) -> bool {
        files.metadata(&folder.join(MANIFEST)).is_some()
    }

    /// Opens a folder; verifies checksums of sets below 1 GiB.
    pub fn open(folder: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let set = Self::open_unchecked(folder, files)?;
        if set.file_bytes() < CHECK_BYTES {
            set.verify()?;
        }
        Ok(set)
    }

    /// Opens a folder without verifying checksums.
    pub fn open_unchecked(folder: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let path = folder.join(MANIFEST);
        let json = files.read(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                ShardError::NoManifest { folder: folder.to_owned() }.into()
            }
            _ => DataError::from(error),
        })?;
        let manifest = Manifest::parse(&path, &json)?;
        let (mut first_token, mut first_document) = (0, 0);
        let mut shards = Vec::with_capacity(manifest.shards.len());
        for entry in &manifest.shards {
            let map = |name: &str, bytes| map_sized(&folder.join(name), bytes, files);
            let tokens = map(&entry.tokens, entry.num_tokens * manifest.token_bytes as u64)?;
            let documents = map(&entry.documents, entry.num_documents * END_BYTES)?;
            shards.push(Shard { tokens, documents, first_token, first_document });
            first_token += entry.num_tokens;
            first_document += entry.num_documents;
        }
        let fingerprint = blake3::hash(&json).to_hex()[..SHOWN_DIGITS].to_owned();
        let set = Self { folder: folder.to_owned(), manifest, fingerprint, shards };
        set.prove_documents()?;
        Ok(set)
    }

    /// Verifies all checksums of the manifest.
    pub fn verify(&self) -> Result<(), DataError> {
        self.verify_with(&mut |_| {})
    }

    /// As [`Self::verify`]; `progress` receives the number of bytes verified.
    pub fn verify_with(&self, progress: &mut dyn FnMut(u64)) -> Result<(), DataError> {
        let mut num_done = 0;
        for (shard, entry) in self.shards.iter().zip(&self.manifest.shards) {
            let files = [
                (&shard.tokens, &entry.tokens, &entry.tokens_blake3),
                (&shard.documents, &entry.documents, &entry.documents_blake3),
            ];
            for (map, name, expected) in files {
                let mut hasher = blake3::Hasher::new();
                portions(map.as_ref(), 0..map.num_bytes(), |bytes| {
                    hasher.update(bytes);
                    num_done += bytes.len() as u64;
                    progress(num_done);
                });
                let found = hasher.finalize().to_hex();
                if found.as_str() != expected {
                    return Err(self.wrong_checksum(name, &found, expected).into());
                }
            }
        }
        Ok(())
    }

    fn wrong_checksum(&self, name: &str, found: &str, expected: &str) -> ShardError {
        let short = |digits: &str| digits.chars().take(SHOWN_DIGITS).collect();
        ShardError::Checksum {
            path: self.folder.join(name),
            found: short(found),
            expected: short(expected),
        }
    }

    /// Checks that document ends ascend to the end of their shard.
    fn prove_documents(&self) -> Result<(), ShardError> {
        for (shard, entry) in self.shards.iter().zip(&self.manifest.shards) {
            let (mut document, mut previous, mut wrong) = (0, 0, None);
            portions(shard.documents.as_ref(), 0..shard.documents.num_bytes(), |bytes| {
                for &end in bytes.as_chunks().0 {
                    let end = u64::from_le_bytes(end);
                    let is_last = document + 1 == entry.num_documents;
                    let in_place = if is_last { end == entry.num_tokens } else { true };
                    if (end < previous || end > entry.num_tokens || !in_place) && wrong.is_none() {
                        wrong = Some((document, end));
                    }
                    (document, previous) = (document + 1, end);
                }
            });
            if entry.num_documents == 0 && entry.num_tokens > 0 {
                wrong = Some((0, 0));
            }
            if let Some((document, end)) = wrong {
                let path = self.folder.join(&entry.documents);
                return Err(ShardError::Documents { path, document, end });
            }
        }
        Ok(())
    }

    /// Number of tokens.
    pub fn num_tokens(&self) -> u64 {
        self.manifest.num_tokens
    }

    /// Number of documents.
    pub fn num_documents(&self) -> u64 {
        self.manifest.num_documents
    }

    /// Number of bytes of the tokenized text.
    pub fn num_bytes(&self) -> u64 {
        self.manifest.num_bytes
    }

    /// Vocabulary size; every token is smaller.
    pub fn vocab(&self) -> usize {
        self.manifest.vocab
    }

    /// Token after each document, if there is one.
    pub fn end_of_document(&self) -> Option<u32> {
        self.manifest.end_of_document
    }

    /// Size of all token and document files.
    pub fn file_bytes(&self) -> u64 {
        self.manifest.num_tokens * self.manifest.token_bytes as u64
            + self.manifest.num_documents * END_BYTES
    }

    /// Manifest of the folder.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fingerprint of the content, from the manifest's checksums.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    /// Tokenizer of the shards.
    pub fn tokenizer(&self, files: &dyn Files) -> Result<Tokenizer, DataError> {
        let tokenizer = match &self.manifest.tokenizer.file {
            None => Tokenizer::bytes(),
            Some(name) => self.tokenizer_in(name, files)?,
        };
        if tokenizer.vocab() != self.vocab() {
            let (found, vocab) = (tokenizer.vocab(), self.vocab());
            let reason = format!("vocab = {vocab} where its tokenizer has {found} tokens");
            return Err(ShardError::Manifest { path: self.folder.join(MANIFEST), reason }.into());
        }
        match self.manifest.end_of_document {
            None => tokenizer.with_end_of_document(&EndOfDocument::Nothing),
            Some(end) => Ok(tokenizer.with_end_token(end)),
        }
    }

    fn tokenizer_in(&self, name: &str, files: &dyn Files) -> Result<Tokenizer, DataError> {
        let tokenizer = Tokenizer::open(&self.folder.join(name).to_string_lossy(), files)?;
        let (found, expected) = (tokenizer.blake3(), &self.manifest.tokenizer.blake3);
        if found != *expected {
            return Err(self.wrong_checksum(name, &found, expected).into());
        }
        Ok(tokenizer)
    }

    /// Tokens of a document, including its end-of-document token, as a range of the stream.
    pub fn document(&self, index: u64) -> Range<u64> {
        assert!(index < self.num_documents(), "document {index} of {}", self.num_documents());
        let shard = &self.shards[self.shard_by(index, |shard| shard.first_document)];
        let own = index - shard.first_document;
        let start = if own == 0 { 0 } else { end_of(shard, own - 1) };
        shard.first_token + start..shard.first_token + end_of(shard, own)
    }

    /// Copies tokens, starting at `start`; the range must lie in the stream.
    pub fn copy(&self, start: u64, out: &mut [u32]) -> Result<(), DataError> {
        let end = start.checked_add(out.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.num_tokens()),
            "{} tokens from {start} of {}",
            out.len(),
            self.num_tokens()
        );
        let mut rest = out;
        let mut position = start;
        while !rest.is_empty() {
            let index = self.shard_by(position, |shard| shard.first_token);
            let (shard, entry) = (&self.shards[index], &self.manifest.shards[index]);
            let own = position - shard.first_token;
            let count = (entry.num_tokens - own).min(rest.len() as u64) as usize;
            let (part, after) = rest.split_at_mut(count);
            self.copy_part(shard, entry, own, part)?;
            position += count as u64;
            rest = after;
        }
        Ok(())
    }

    fn copy_part(
        &self,
        shard: &Shard,
        entry: &ManifestShard,
        start: u64,
        out: &mut [u32],
    ) -> Result<(), ShardError> {
        let width = self.manifest.token_bytes as u64;
        let range = start * width..(start + out.len() as u64) * width;
        let mut rest = out.iter_mut();
        portions(shard.tokens.as_ref(), range, |bytes| {
            if width == 2 {
                let tokens = bytes.as_chunks().0.iter().map(|&two| u16::from_le_bytes(two));
                tokens.zip(rest.by_ref()).for_each(|(token, out)| *out = token.into());
            } else {
                let tokens = bytes.as_chunks().0.iter().map(|&four| u32::from_le_bytes(four));
                tokens.zip(rest.by_ref()).for_each(|(token, out)| *out = token);
            }
        });
        match out.iter().copied().max() {
            Some(token) if token as usize >= self.vocab() => Err(ShardError::Token {
                path: self.folder.join(&entry.tokens),
                token,
                vocab: self.vocab(),
            }),
            _ => Ok(()),
        }
    }

    /// Shard of a position, by first positions. Empty shards hold none.
    fn shard_by(&self, position: u64, first: impl Fn(&Shard) -> u64) -> usize {
        self.shards.partition_point(|shard| first(shard) <= position) - 1
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardSet({}, {} tokens)", self.folder.display(), self.num_tokens())
    }
}

fn map_sized(
    path: &Path,
    expected_bytes: u64,
    files: &dyn Files,
) -> Result<Box<dyn FileMap>, DataError> {
    let map = files.map(path)?;
    let found_bytes = map.num_bytes();
    if found_bytes != expected_bytes {
        let path = path.to_owned();
        return Err(ShardError::Size { path, found_bytes, expected_bytes }.into());
    }
    Ok(map)
}

/// End of a document, in tokens of its shard.
fn end_of(shard: &Shard, own_index: u64) -> u64 {
    let mut end = [0; END_BYTES as usize];
    shard.documents.copy_to(own_index * END_BYTES, &mut end);
    u64::from_le_bytes(end)
}

/// Copies a range of a map in cache-sized portions of whole entries.
fn portions(map: &dyn FileMap, range: Range<u64>, mut each: impl FnMut(&[u8])) {
    let mut buffer = [0; PORTION_BYTES];
    let mut offset = range.start;
    while offset < range.end {
        let count = (range.end - offset).min(PORTION_BYTES as u64) as usize;
        map.copy_to(offset, &mut buffer[..count]);
        each(&buffer[..count]);
        offset += count as u64;
    }
}

//! Tokenizers: byte tokens, or any `tokenizer.json`.
//!
//! A recipe names a tokenizer as `byte` or by a path. Encoding adds no special tokens (no start
//! token, padding or truncation, whatever the file configures): the corpus alone decides which
//! tokens frame a document.
//!
//! # Layout
//!
//! - [`bytes`]: byte tokens
//! - `file`: `tokenizer.json`, by the `tokenizers` crate
//! - [`end`]: the end-of-document token; `sentinels`: those of fill-in-the-middle
//! - [`mod@train`]: trains a byte-level BPE vocabulary
//! - [`error`]: errors of a tokenizer

pub mod bytes;
pub mod file;

pub mod end;
mod sentinels;

pub mod train;

pub mod error;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use lockstep_platform::Files;

use crate::error::DataError;
use file::TokenizerFile;

pub use end::EndOfDocument;
pub use error::TokenizerError;
pub use train::{TrainOptions, TrainProgress, Trained, train};

/// Names of the byte tokenizer in recipes and on the command line.
const BYTE_NAMES: [&str; 2] = ["byte", "bytes"];

/// Encodes text and decodes tokens. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    kind: Kind,
    end_of_document: Option<u32>,
    /// Start token that the tokenizer's configuration names.
    start_of_text: Option<u32>,
}

#[derive(Clone)]
enum Kind {
    Bytes,
    File(Arc<TokenizerFile>),
}

impl Tokenizer {
    /// Byte tokenizer without an end-of-document token.
    pub const fn bytes() -> Self {
        Self { kind: Kind::Bytes, end_of_document: None, start_of_text: None }
    }

    /// Opens the tokenizer of this name: `byte`, the path of a `tokenizer.json`, or of a folder
    /// that holds one. The end-of-document token is found as for [`EndOfDocument::Auto`].
    pub fn open(name: &str, files: &dyn Files) -> Result<Self, DataError> {
        if BYTE_NAMES.contains(&name) {
            return Ok(Self::bytes());
        }
        let file = TokenizerFile::open(Path::new(name), files)?;
        let end_of_document = end::find(&file, files);
        let start_of_text = end::find_start(&file, files);
        Ok(Self { kind: Kind::File(Arc::new(file)), end_of_document, start_of_text })
    }

    /// Tokenizer of a model's folder: its `tokenizer.json`, or bytes where it has no file of a
    /// tokenizer.
    pub fn of_model(folder: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let path = folder.join(file::FILE_NAME);
        if files.metadata(&path).is_some() {
            return Self::open(&path.to_string_lossy(), files);
        }
        match file::older_file(folder, files) {
            None => Ok(Self::bytes()),
            older_file => {
                Err(TokenizerError::NoFile { folder: folder.to_owned(), older_file }.into())
            }
        }
    }

    /// Sets the end-of-document token.
    pub fn with_end_of_document(mut self, choice: &EndOfDocument) -> Result<Self, DataError> {
        match choice {
            EndOfDocument::Auto => {}
            EndOfDocument::Nothing => self.end_of_document = None,
            EndOfDocument::Token(text) => self.end_of_document = Some(self.token(text)?),
        }
        Ok(self)
    }

    /// Sets the end-of-document token, which must exist.
    pub(crate) fn with_end_token(self, token: u32) -> Self {
        assert!((token as usize) < self.vocab(), "the manifest was proven against the vocabulary");
        Self { end_of_document: Some(token), ..self }
    }

    /// Id of the token with exactly this text, if it exists.
    fn find_token(&self, text: &str) -> Option<u32> {
        match &self.kind {
            Kind::Bytes => bytes::token(text),
            Kind::File(file) => file.token(text),
        }
    }

    /// Sentinel tokens of prefix, middle and suffix, which must exist.
    pub(crate) fn sentinels(&self) -> Result<[u32; 3], TokenizerError> {
        sentinels::find(|text| self.find_token(text)).ok_or_else(|| TokenizerError::NoSentinels {
            tokenizer: self.name(),
            expected: sentinels::SENTINELS[0].join(", "),
        })
    }

    /// Id of a token, by its text.
    fn token(&self, text: &str) -> Result<u32, TokenizerError> {
        self.find_token(text).ok_or_else(|| TokenizerError::NoSuchToken {
            tokenizer: self.name(),
            token: text.to_owned(),
            likely: self.likely_end(),
        })
    }

    /// Appends the tokens of a text. Texts cut by [`crate::documents::pieces`] give the same tokens
    /// separately as together.
    pub fn encode(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        match &self.kind {
            Kind::Bytes => bytes::encode(text, tokens),
            Kind::File(file) => file.encode(text, tokens)?,
        }
        Ok(())
    }

    /// Appends the tokens of a text, and whether each has a byte in one of the `marked` ranges,
    /// which are in ascending order.
    pub fn encode_marked(
        &self,
        text: &str,
        marked: &[Range<usize>],
        tokens: &mut Vec<u32>,
        is_marked: &mut Vec<bool>,
    ) -> Result<(), DataError> {
        let mut mark = |bytes: Range<usize>| {
            let next = marked.partition_point(|range| range.end <= bytes.start);
            let overlaps = marked.get(next).is_some_and(|range| range.start < bytes.end);
            is_marked.push(overlaps && !bytes.is_empty());
        };
        match &self.kind {
            Kind::Bytes => {
                bytes::encode(text, tokens);
                (0..text.len()).for_each(|byte| mark(byte..byte + 1));
            }
            Kind::File(file) => file.encode_offsets(text, tokens, &mut mark)?,
        }
        Ok(())
    }

    /// Tokens of a text with the special tokens that `tokenizer.json` puts around it, unless the
    /// text itself begins with the start token. Bytes have none.
    pub fn encode_with_special_tokens(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut tokens = Vec::new();
        match &self.kind {
            Kind::Bytes => bytes::encode(text, &mut tokens),
            Kind::File(file) => {
                let start = self.start_of_text().map(|start| file.decode(&[start]));
                if start.is_some_and(|start| text.starts_with(&start)) {
                    file.encode(text, &mut tokens)?;
                } else {
                    file.encode_with_special_tokens(text, &mut tokens)?;
                }
            }
        }
        Ok(tokens)
    }

    /// Tokens after which a model of a Hugging Face folder stops, by the files beside the
    /// tokenizer; the end of a document where they name none.
    pub fn stops(&self, files: &dyn Files) -> Vec<u32> {
        let mut stops = match &self.kind {
            Kind::Bytes => Vec::new(),
            Kind::File(file) => end::find_stops(file, files),
        };
        if stops.is_empty() {
            stops.extend(self.end_of_document);
        }
        stops
    }

    /// Token that stands for an empty text: the configured start token, or the end of a document.
    pub fn start_of_text(&self) -> Option<u32> {
        self.start_of_text.or(self.end_of_document)
    }

    /// Whether a token stands outside of the learned vocabulary, as special tokens do.
    pub fn is_added(&self, token: u32) -> bool {
        match &self.kind {
            Kind::Bytes => false,
            Kind::File(file) => file.is_added(token),
        }
    }

    /// Decodes tokens; invalid text becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.kind {
            Kind::Bytes => bytes::decode(tokens),
            Kind::File(file) => file.decode(tokens),
        }
    }

    /// Vocabulary size; every token is smaller.
    pub fn vocab(&self) -> usize {
        match &self.kind {
            Kind::Bytes => bytes::VOCAB,
            Kind::File(file) => file.vocab(),
        }
    }

    /// Token after each document, if there is one.
    pub const fn end_of_document(&self) -> Option<u32> {
        self.end_of_document
    }

    /// Text of the end-of-document token.
    pub fn end_of_document_text(&self) -> Option<String> {
        let end = self.end_of_document?;
        Some(match &self.kind {
            Kind::Bytes => bytes::decode(&[end]),
            Kind::File(file) => file.text_of(end).unwrap_or_default(),
        })
    }

    /// Checks that a model's vocabulary covers all tokens.
    pub fn require(&self, model_vocab: usize) -> Result<(), DataError> {
        if self.vocab() <= model_vocab {
            return Ok(());
        }
        let error = TokenizerError::VocabTooLarge {
            tokenizer: self.name(),
            vocab: self.vocab(),
            model_vocab,
        };
        Err(error.into())
    }

    /// `byte`, or the path of the file.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Bytes => BYTE_NAMES[0].to_owned(),
            Kind::File(file) => file.path().display().to_string(),
        }
    }

    /// Whether tokens are bytes.
    pub const fn is_bytes(&self) -> bool {
        matches!(self.kind, Kind::Bytes)
    }

    /// Content of `tokenizer.json`; none for bytes.
    pub fn json(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::File(file) => Some(file.json()),
        }
    }

    /// BLAKE3 hash of `tokenizer.json`, or of no bytes, in hexadecimal.
    pub fn blake3(&self) -> String {
        ::blake3::hash(self.json().unwrap_or_default()).to_hex().to_string()
    }

    /// The `tokenizers` crate's type, for benchmarks.
    pub(crate) fn of_the_crate(&self) -> Option<&tokenizers::Tokenizer> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::File(file) => Some(file.of_the_crate()),
        }
    }

    fn likely_end(&self) -> Option<String> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::File(file) => end::known(file).map(|(text, _)| text.to_owned()),
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.name(), self.vocab())
    }
}

#[cfg(test)]
pub(crate) mod tests;

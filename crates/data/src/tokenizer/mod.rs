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
//! - [`end`]: the end-of-document token
//! - [`mod@train`]: trains a byte-level BPE vocabulary
//! - [`error`]: errors of a tokenizer

pub mod bytes;
pub mod file;

pub mod end;

pub mod train;

pub mod error;

use std::fmt;
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
}

#[derive(Clone)]
enum Kind {
    Bytes,
    File(Arc<TokenizerFile>),
}

impl Tokenizer {
    /// Byte tokenizer without an end-of-document token.
    pub const fn bytes() -> Self {
        Self { kind: Kind::Bytes, end_of_document: None }
    }

    /// Opens the tokenizer of this name: `byte`, the path of a `tokenizer.json`, or of a folder
    /// that holds one. The end-of-document token is found as for [`EndOfDocument::Auto`].
    pub fn open(name: &str, files: &dyn Files) -> Result<Self, DataError> {
        if BYTE_NAMES.contains(&name) {
            return Ok(Self::bytes());
        }
        let file = TokenizerFile::open(Path::new(name), files)?;
        let end_of_document = end::find(&file, files);
        Ok(Self { kind: Kind::File(Arc::new(file)), end_of_document })
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

    /// Id of a token, by its text.
    fn token(&self, text: &str) -> Result<u32, TokenizerError> {
        let found = match &self.kind {
            Kind::Bytes => bytes::token(text),
            Kind::File(file) => file.token(text),
        };
        found.ok_or_else(|| TokenizerError::NoSuchToken {
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

//! Text to tokens and back: one token a byte, or any `tokenizer.json`.
//!
//! A tokenizer is named by a recipe as `byte` or by a path, and everything behind it is the same:
//! text is appended to a vector of numbers, numbers become text, and there may be a number that
//! stands between two documents. Encoding adds no special tokens of its own (no start of text, no
//! padding, no truncation, whatever the file asks for): which tokens frame a document is the
//! corpus's decision, made in one place.
//!
//! # Layout
//!
//! - [`bytes`]: a token is a byte
//! - `file`: `tokenizer.json`, by the `tokenizers` crate
//! - [`end`]: which token ends a document
//! - [`mod@train`]: learning a byte-level BPE vocabulary from a corpus
//! - [`error`]: what can be wrong with one

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

/// Names that mean the byte tokenizer, in a recipe and on the command line.
const BYTE_NAMES: [&str; 2] = ["byte", "bytes"];

/// Turns text into tokens and tokens into text. Cheap to clone.
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
    /// One token a byte: 256 of them, and none that ends a document.
    pub const fn bytes() -> Self {
        Self { kind: Kind::Bytes, end_of_document: None }
    }

    /// The tokenizer of this name: `byte`, the path of a `tokenizer.json`, or a folder that holds
    /// one. The token that ends a document is found as [`EndOfDocument::Auto`] says.
    pub fn open(name: &str, files: &dyn Files) -> Result<Self, DataError> {
        if BYTE_NAMES.contains(&name) {
            return Ok(Self::bytes());
        }
        let file = TokenizerFile::open(Path::new(name), files)?;
        let end_of_document = end::find(&file, files);
        Ok(Self { kind: Kind::File(Arc::new(file)), end_of_document })
    }

    /// The same tokenizer with another token between documents.
    pub fn with_end_of_document(mut self, choice: &EndOfDocument) -> Result<Self, DataError> {
        match choice {
            EndOfDocument::Auto => {}
            EndOfDocument::Nothing => self.end_of_document = None,
            EndOfDocument::Token(text) => self.end_of_document = Some(self.token(text)?),
        }
        Ok(self)
    }

    /// The same tokenizer with this token, which it must have, between documents.
    pub(crate) fn with_end_token(self, token: u32) -> Self {
        assert!((token as usize) < self.vocab(), "the manifest was proven against the vocabulary");
        Self { end_of_document: Some(token), ..self }
    }

    /// The number of a token, by its text.
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

    /// Appends the tokens of a text. The tokens of two texts, one after the other, are those of
    /// both together where [`crate::documents::pieces`] cut them apart.
    pub fn encode(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), DataError> {
        match &self.kind {
            Kind::Bytes => bytes::encode(text, tokens),
            Kind::File(file) => file.encode(text, tokens)?,
        }
        Ok(())
    }

    /// The text of some tokens. What is no text reads as U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.kind {
            Kind::Bytes => bytes::decode(tokens),
            Kind::File(file) => file.decode(tokens),
        }
    }

    /// How many different tokens there are; every token is smaller than this.
    pub fn vocab(&self) -> usize {
        match &self.kind {
            Kind::Bytes => bytes::VOCAB,
            Kind::File(file) => file.vocab(),
        }
    }

    /// The token that stands after each document, where there is one.
    pub const fn end_of_document(&self) -> Option<u32> {
        self.end_of_document
    }

    /// The text of the token that ends a document.
    pub fn end_of_document_text(&self) -> Option<String> {
        let end = self.end_of_document?;
        Some(match &self.kind {
            Kind::Bytes => bytes::decode(&[end]),
            Kind::File(file) => file.text_of(end).unwrap_or_default(),
        })
    }

    /// Checks that a model with this many embeddings has one for every token.
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

    /// Whether a token is a byte.
    pub const fn is_bytes(&self) -> bool {
        matches!(self.kind, Kind::Bytes)
    }

    /// The content of the `tokenizer.json`; nothing for bytes.
    pub fn json(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Bytes => None,
            Kind::File(file) => Some(file.json()),
        }
    }

    /// BLAKE3 of the `tokenizer.json`, or of nothing for bytes, in hexadecimal.
    pub fn blake3(&self) -> String {
        ::blake3::hash(self.json().unwrap_or_default()).to_hex().to_string()
    }

    /// The crate's own type, to measure it alone.
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

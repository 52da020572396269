//! `tokenizer.json`, run by the `tokenizers` crate.
//!
//! The file describes a whole pipeline (normalization, splitting, model, added tokens, decoding),
//! so token ids equal those of its author. Truncation, padding and the special-token template
//! concern batches of one kind of model and are ignored.

use std::ops::Range;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileKind, Files};
use tokenizers::Tokenizer;

use super::error::{TokenizerError, one_line};
use crate::error::DataError;

/// Usual file name.
pub const FILE_NAME: &str = "tokenizer.json";

/// Files of older formats.
const OLDER_FILES: [&str; 3] = ["tokenizer.model", "vocab.json", "vocab.txt"];

/// Number of characters of a text in an error.
const EXCERPT_CHARS: usize = 40;

/// Tokenizer from a file.
pub struct TokenizerFile {
    path: PathBuf,
    json: Vec<u8>,
    tokenizer: Tokenizer,
    vocab: usize,
}

impl TokenizerFile {
    /// Reads a file, or the `tokenizer.json` of a folder.
    pub(super) fn open(path: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let path = locate(path, files)?;
        let json = files.read(&path)?;
        Ok(Self::parse(path, json)?)
    }

    fn parse(path: PathBuf, json: Vec<u8>) -> Result<Self, TokenizerError> {
        let invalid = |reason| TokenizerError::Invalid { path: path.clone(), reason };
        let value: serde_json::Value =
            serde_json::from_slice(&json).map_err(|error| invalid(one_line(&error)))?;
        if let Some(dropout) = value["model"]["dropout"].as_f64().filter(|&p| p > 0.0) {
            return Err(TokenizerError::Random { path, dropout });
        }
        // `from_bytes` is generic: it would compile the readers of all tokenizers a second time.
        let text = std::str::from_utf8(&json).map_err(|error| invalid(one_line(&error)))?;
        let mut tokenizer: Tokenizer =
            text.parse().map_err(|error: tokenizers::Error| invalid(one_line(&error)))?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| invalid(one_line(&error)))?;
        // Ids may have gaps; the model needs a row for the largest one.
        let largest = tokenizer.get_vocab(true).into_values().max();
        let largest = largest.ok_or_else(|| invalid("it has no tokens".to_owned()))?;
        Ok(Self { path, json, tokenizer, vocab: largest as usize + 1 })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn json(&self) -> &[u8] {
        &self.json
    }

    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    pub(super) fn of_the_crate(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(super) fn encode(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.encode_as(text, false, tokens)
    }

    /// Encodes with the file's template of special tokens.
    pub(super) fn encode_with_special_tokens(
        &self,
        text: &str,
        tokens: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        self.encode_as(text, true, tokens)
    }

    fn encode_as(
        &self,
        text: &str,
        adds_special_tokens: bool,
        tokens: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let encoding = self.tokenizer.encode_fast(text, adds_special_tokens);
        tokens.extend_from_slice(encoding.map_err(|error| self.failed(text, &error))?.get_ids());
        Ok(())
    }

    /// Encodes a text and passes the bytes of every token to `each`.
    pub(super) fn encode_offsets(
        &self,
        text: &str,
        tokens: &mut Vec<u32>,
        each: &mut dyn FnMut(Range<usize>),
    ) -> Result<(), TokenizerError> {
        let encoding = self.tokenizer.encode(text, false);
        let encoding = encoding.map_err(|error| self.failed(text, &error))?;
        tokens.extend_from_slice(encoding.get_ids());
        encoding.get_offsets().iter().for_each(|&(start, end)| each(start..end));
        Ok(())
    }

    fn failed(&self, text: &str, error: &tokenizers::Error) -> TokenizerError {
        TokenizerError::Encode {
            tokenizer: self.path.display().to_string(),
            excerpt: text.chars().take(EXCERPT_CHARS).collect(),
            reason: one_line(error),
        }
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> String {
        // The decoder fails on token sequences that no text produces, which a model may generate.
        self.tokenizer.decode(tokens, false).unwrap_or_else(|_| "\u{fffd}".to_owned())
    }

    /// Id of the token with exactly this text.
    pub(super) fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// Whether a token was added to the learned vocabulary.
    pub(super) fn is_added(&self, token: u32) -> bool {
        self.tokenizer.get_added_tokens_decoder().contains_key(&token)
    }

    /// Text of a token.
    pub(super) fn text_of(&self, token: u32) -> Option<String> {
        self.tokenizer.id_to_token(token)
    }
}

/// A file of an older format in a folder.
pub(super) fn older_file(folder: &Path, files: &dyn Files) -> Option<&'static str> {
    OLDER_FILES.into_iter().find(|name| files.metadata(&folder.join(name)).is_some())
}

/// File of a path that may be its folder.
fn locate(path: &Path, files: &dyn Files) -> Result<PathBuf, TokenizerError> {
    match files.metadata(path) {
        Some(FileKind::File { .. }) => Ok(path.to_owned()),
        Some(FileKind::Directory) => {
            let inside = path.join(FILE_NAME);
            if files.metadata(&inside).is_some() {
                return Ok(inside);
            }
            let older_file = older_file(path, files);
            Err(TokenizerError::NoFile { folder: path.to_owned(), older_file })
        }
        None => Err(TokenizerError::Missing { path: path.to_owned() }),
    }
}

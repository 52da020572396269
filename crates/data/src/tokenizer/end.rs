//! End-of-document token.
//!
//! A model learns document boundaries from a token after each document. It is found by the common
//! names first, because chat vocabularies use another "end of text" for turns; then by the
//! configuration files beside `tokenizer.json`.

use std::fmt;
use std::str::FromStr;

use lockstep_platform::Files;
use serde_json::Value;

use super::file::TokenizerFile;

/// Common names of the end-of-document token, the most specific first.
const KNOWN: [&str; 6] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]"];

/// Choice of the end-of-document token: `auto`, `none` or the token itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EndOfDocument {
    /// The tokenizer's own token, if it has one.
    #[default]
    Auto,
    /// No token between documents.
    Nothing,
    /// The token with this text.
    Token(String),
}

impl FromStr for EndOfDocument {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::Nothing,
            token => Self::Token(token.to_owned()),
        })
    }
}

impl fmt::Display for EndOfDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Nothing => "none",
            Self::Token(token) => token,
        })
    }
}

/// End-of-document token of a tokenizer file, if one is found.
pub(super) fn find(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let known = known(file).map(|(_, token)| token);
    known.or_else(|| from_tokenizer_config(file, files)).or_else(|| from_config(file, files))
}

/// Token with one of the common names.
pub(super) fn known(file: &TokenizerFile) -> Option<(&'static str, u32)> {
    KNOWN.iter().find_map(|&text| Some((text, file.token(text)?)))
}

/// `eos_token` is a string, or an object with the string as its content.
fn from_tokenizer_config(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let config = beside(file, "tokenizer_config.json", files)?;
    let end = &config["eos_token"];
    file.token(end.as_str().or_else(|| end["content"].as_str())?)
}

/// `eos_token_id` is a number, or a list whose first entry ends documents.
fn from_config(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let config = beside(file, "config.json", files)?;
    let end = &config["eos_token_id"];
    let token = u32::try_from(end.as_u64().or_else(|| end[0].as_u64())?).ok()?;
    ((token as usize) < file.vocab()).then_some(token)
}

/// JSON file in the tokenizer's folder; unreadable files are ignored.
fn beside(file: &TokenizerFile, name: &str, files: &dyn Files) -> Option<Value> {
    let bytes = files.read(&file.path().with_file_name(name)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

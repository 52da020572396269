//! Which token ends a document.
//!
//! A model learns where texts end from one token that stands after each of them. Vocabularies call
//! it by a handful of names, so it can usually be found: first by those names, because a
//! vocabulary for conversations has another "end of text" for turns; then by what the files beside
//! the `tokenizer.json` call the end of a sequence.

use std::fmt;
use std::str::FromStr;

use lockstep_platform::Files;
use serde_json::Value;

use super::file::TokenizerFile;

/// What the well-known vocabularies call the end of a document, the most telling name first.
const KNOWN: [&str; 6] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]"];

/// A choice of the token that ends a document; in text `auto`, `none` or the token itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EndOfDocument {
    /// The tokenizer's own, where it has one.
    #[default]
    Auto,
    /// None: documents follow each other directly.
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

/// The token of a file that ends documents, as far as anything says so.
pub(super) fn find(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let known = known(file).map(|(_, token)| token);
    known.or_else(|| from_tokenizer_config(file, files)).or_else(|| from_config(file, files))
}

/// A token with one of the known names.
pub(super) fn known(file: &TokenizerFile) -> Option<(&'static str, u32)> {
    KNOWN.iter().find_map(|&text| Some((text, file.token(text)?)))
}

/// `eos_token` is a text, or an object with the text as its content.
fn from_tokenizer_config(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let config = beside(file, "tokenizer_config.json", files)?;
    let end = &config["eos_token"];
    file.token(end.as_str().or_else(|| end["content"].as_str())?)
}

/// `eos_token_id` is a number, or several with the one that ends documents in front.
fn from_config(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let config = beside(file, "config.json", files)?;
    let end = &config["eos_token_id"];
    let token = u32::try_from(end.as_u64().or_else(|| end[0].as_u64())?).ok()?;
    ((token as usize) < file.vocab()).then_some(token)
}

/// A JSON file in the tokenizer's folder. One that cannot be read only means that it says nothing.
fn beside(file: &TokenizerFile, name: &str, files: &dyn Files) -> Option<Value> {
    let bytes = files.read(&file.path().with_file_name(name)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

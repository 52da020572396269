//! End-of-document token.
//!
//! A model learns document boundaries from a token after each document. It is found by the common
//! names first, because chat vocabularies use another "end of text" for turns; then by the
//! configuration files beside `tokenizer.json`.

use std::collections::BTreeSet;
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

fn from_tokenizer_config(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    named(file, &beside(file, "tokenizer_config.json", files)?, "eos_token")
}

/// Tokens after which a model stops: those of `generation_config.json` and `config.json`, which
/// may be lists, and the end token of `tokenizer_config.json`.
pub(super) fn find_stops(file: &TokenizerFile, files: &dyn Files) -> Vec<u32> {
    let mut stops = BTreeSet::new();
    for name in ["generation_config.json", "config.json"] {
        let config = beside(file, name, files).unwrap_or_default();
        let ids = &config["eos_token_id"];
        let ids = ids.as_array().map_or_else(|| vec![ids.clone()], Clone::clone);
        stops.extend(ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()));
    }
    stops.extend(from_tokenizer_config(file, files));
    stops.into_iter().collect()
}

/// Start token, or else the end token, of the configuration files beside a tokenizer.
pub(super) fn find_start(file: &TokenizerFile, files: &dyn Files) -> Option<u32> {
    let configs = ["tokenizer_config.json", "special_tokens_map.json"];
    let configs = configs.map(|name| beside(file, name, files));
    let token = |name| configs.iter().flatten().find_map(|config| named(file, config, name));
    token("bos_token").or_else(|| token("eos_token"))
}

/// Token that a configuration names: a string, or an object with the string as its content.
fn named(file: &TokenizerFile, config: &Value, name: &str) -> Option<u32> {
    let token = &config[name];
    file.token(token.as_str().or_else(|| token["content"].as_str())?)
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

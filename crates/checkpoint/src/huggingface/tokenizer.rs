//! Vocabulary size of a `tokenizer.json`: its largest token id plus one.
//!
//! Only ids are read. Most tokenizers have a map from text to id; Unigram has a list whose indices
//! are the ids. Added tokens have ids of their own.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_platform::World;
use serde::Deserialize;
use serde_json::Value;

use crate::CheckpointError;
use crate::error::quoted;

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocab,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vocab {
    Ids(BTreeMap<String, u32>),
    List(Vec<Value>),
}

#[derive(Deserialize)]
struct Added {
    id: u32,
}

/// Vocabulary size of the tokenizer in this file.
pub fn num_tokens(world: &World, path: &Path) -> Result<usize, CheckpointError> {
    let bytes = world.files().read(path)?;
    let file: File = serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Foreign {
        path: path.to_owned(),
        reason: quoted(&format!("not a tokenizer: {error}")),
    })?;
    let of_model = match file.model.vocab {
        Vocab::Ids(ids) => ids.values().max().map_or(0, |highest| *highest as usize + 1),
        Vocab::List(tokens) => tokens.len(),
    };
    let added = file.added_tokens.iter().map(|added| added.id as usize + 1).max();
    Ok(of_model.max(added.unwrap_or(0)))
}

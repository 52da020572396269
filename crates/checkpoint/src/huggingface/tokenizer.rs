//! How many different tokens a `tokenizer.json` makes: its highest number and one.
//!
//! Only the numbers are read. The vocabulary of most kinds of tokenizer is a map from text to
//! number; that of the Unigram kind is a list, whose places are the numbers. Added tokens come on
//! top.

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
    Numbers(BTreeMap<String, u32>),
    Places(Vec<Value>),
}

#[derive(Deserialize)]
struct Added {
    id: u32,
}

/// The number of different tokens that the tokenizer in this file can make.
pub fn num_tokens(world: &World, path: &Path) -> Result<usize, CheckpointError> {
    let bytes = world.files().read(path)?;
    let file: File = serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Foreign {
        path: path.to_owned(),
        reason: quoted(&format!("not a tokenizer: {error}")),
    })?;
    let of_model = match file.model.vocab {
        Vocab::Numbers(numbers) => {
            numbers.values().max().map_or(0, |highest| *highest as usize + 1)
        }
        Vocab::Places(places) => places.len(),
    };
    let added = file.added_tokens.iter().map(|added| added.id as usize + 1).max();
    Ok(of_model.max(added.unwrap_or(0)))
}

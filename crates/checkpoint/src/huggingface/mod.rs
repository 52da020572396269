//! Hugging Face model folders: opened without loading the weights, and written.
//!
//! ```text
//! config.json                   the model configuration
//! model.safetensors             the weights, or, in shards,
//! model-00001-of-00003.safetensors, ...   with the index model.safetensors.index.json
//! tokenizer.json                the tokenizer
//! ```
//!
//! [`Folder::open`] reads and validates `config.json` and the headers of the weights only. Weights
//! are read on demand, a range at a time. [`save`] writes such a folder atomically.
//!
//! - `config`: configuration, read and written; `gpt_neox`, `bloom`: those of their names;
//!   `rope`: rotary angles
//! - `architecture`: supported architectures; `options`: options of all; `reader`: refusals
//! - `names`: tensor names; `shards`: files of the tensors
//! - `export`: writing; `tokenizer`: vocabulary size of a tokenizer

mod options;

mod architecture;

mod reader;

mod rope;

mod gpt_neox;

mod bloom;

mod config;

mod names;

mod shards;

mod export;

mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileKind, World};
use serde_json::{Map, Value};

pub use config::Config;
pub use export::{Companions, Export, Saved, save};
pub use tokenizer::num_tokens;

use crate::{CheckpointError, Tensors};

/// File with the model configuration.
pub const CONFIG: &str = "config.json";

/// File with the tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";

/// Files of a vocabulary, which are copied with the model.
pub const COMPANION_FILES: &[&str] = &[
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    GENERATION,
];

/// File with the special tokens, and often the chat template.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// File with the chat template alone; it is stronger than that of [`TOKENIZER_CONFIG`].
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// File with the generation settings.
pub const GENERATION: &str = "generation_config.json";

/// Elements per comparison.
const PIECE_LEN: usize = 1 << 16;

/// Vocabulary files of a folder.
pub fn companions(world: &World, folder: &Path) -> Companions {
    let files = COMPANION_FILES.iter().map(|name| ((*name).to_owned(), folder.join(name)));
    let files = files.filter(|(_, path)| world.files().metadata(path).is_some()).collect();
    Companions { files, texts: BTreeMap::new() }
}

impl Companions {
    /// Adds the ids of special tokens, if no file has them.
    pub fn with_special_tokens(mut self, special_tokens: &Map<String, Value>) -> Self {
        let known = special_tokens.values().any(|value| !value.is_null());
        let is_there = [self.files.contains_key(GENERATION), self.texts.contains_key(GENERATION)];
        if known && is_there == [false; 2] {
            self.texts.insert(GENERATION.to_owned(), json_text(special_tokens));
        }
        self
    }

    /// Adds the files of others that are not here.
    pub fn or(mut self, others: Self) -> Self {
        for (name, path) in others.files {
            if !self.texts.contains_key(&name) {
                self.files.entry(name).or_insert(path);
            }
        }
        for (name, text) in others.texts {
            if !self.files.contains_key(&name) {
                self.texts.entry(name).or_insert(text);
            }
        }
        self
    }

    /// Puts a text in the place of a file.
    pub fn replace(&mut self, name: &str, text: String) {
        self.files.remove(name);
        self.texts.insert(name.to_owned(), text);
    }

    /// Content of a file; none if it is not here.
    pub fn read(&self, world: &World, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        if let Some(text) = self.texts.get(name) {
            return Ok(Some(text.clone().into_bytes()));
        }
        Ok(self.files.get(name).map(|file| world.files().read(file)).transpose()?)
    }
}

/// Text of a JSON object, as `transformers` lays it out.
pub fn json_text(map: &Map<String, Value>) -> String {
    serde_json::to_string_pretty(map).expect("a map by text is JSON") + "\n"
}

/// Ids of the special tokens that a configuration file names; none if it cannot be read.
pub fn special_tokens_of(world: &World, file: &Path) -> Map<String, Value> {
    special_tokens_in(&world.files().read(file).unwrap_or_default())
}

/// Ids of the special tokens in the content of a configuration file; none if it is no JSON.
pub fn special_tokens_in(json: &[u8]) -> Map<String, Value> {
    config::special_tokens(&serde_json::from_slice(json).unwrap_or_default())
}

/// A folder with validated `config.json` and headers.
pub struct Folder {
    path: PathBuf,
    /// Its `config.json`.
    pub config: Config,
    /// Its weights by the names of the engine, not yet validated against a model.
    pub tensors: Tensors,
}

impl Folder {
    /// Whether a folder has a `config.json`.
    pub fn is_one(world: &World, path: &Path) -> bool {
        matches!(world.files().metadata(&path.join(CONFIG)), Some(FileKind::File { .. }))
    }

    /// Whether a folder has a `config.json` and no weights.
    pub fn has_shape_only(world: &World, path: &Path) -> bool {
        Self::is_one(world, path) && shards::are_missing(world, path)
    }

    /// Opens a folder without weights, which tells the shape of a model.
    pub fn open_shape(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let config = read_config(world, path)?;
        let folder = Self { path: path.to_owned(), config, tensors: Tensors::empty(path) };
        folder.compare_vocabularies(world)?;
        Ok(folder)
    }

    /// Reads `config.json`, the headers of the weights and the vocabulary size of the tokenizer.
    pub fn open(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let config = read_config(world, path)?;
        let mut tensors = shards::open(world, path, &config).map_err(CheckpointError::of_input)?;
        if config.model.tied {
            drop_copy_of_table(path, &mut tensors, config.architecture().ends)?;
        }
        let folder = Self { path: path.to_owned(), config, tensors };
        folder.compare_vocabularies(world)?;
        Ok(folder)
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its `tokenizer.json`, if it has one.
    pub fn tokenizer(&self, world: &World) -> Option<PathBuf> {
        let path = self.path.join(TOKENIZER);
        world.files().metadata(&path).is_some().then_some(path)
    }

    /// Checks that the weights have these names and shapes.
    pub fn prove(&self, needed: &BTreeMap<String, Vec<usize>>) -> Result<(), CheckpointError> {
        self.tensors.prove(needed).map_err(CheckpointError::of_input)
    }

    /// Refuses a tokenizer with a larger vocabulary than the model.
    fn compare_vocabularies(&self, world: &World) -> Result<(), CheckpointError> {
        let Some(path) = self.tokenizer(world) else { return Ok(()) };
        let (num_tokens, vocab) = (num_tokens(world, &path)?, self.config.model.vocab);
        if num_tokens <= vocab {
            return Ok(());
        }
        let config = self.path.join(CONFIG);
        let reason = format!(
            "it makes {num_tokens} different tokens, but {} has vocab_size = {vocab}; \
             use the tokenizer that the model was trained with",
            config.display()
        );
        Err(CheckpointError::Foreign { path, reason })
    }
}

fn read_config(world: &World, path: &Path) -> Result<Config, CheckpointError> {
    let path = path.join(CONFIG);
    Config::parse(&path, &world.files().read(&path)?)
}

/// Drops a stored copy of a tied output projection, after checking that it equals the embedding.
fn drop_copy_of_table(
    path: &Path,
    tensors: &mut Tensors,
    [owner, head]: [&str; 2],
) -> Result<(), CheckpointError> {
    let shape_of = |name| tensors.shape(name).map(<[usize]>::to_vec);
    let (Some(shape), Some(expected)) = (shape_of(head), shape_of(owner)) else { return Ok(()) };
    let (tensor, path) = (head.to_owned(), path.to_owned());
    if shape != expected {
        return Err(CheckpointError::WrongShape { path, tensor, found: shape, expected });
    }
    let num_elements: usize = shape.iter().product();
    let (mut ours, mut theirs) = (vec![0.0; PIECE_LEN], vec![0.0; PIECE_LEN]);
    for first in (0..num_elements).step_by(PIECE_LEN) {
        let len = PIECE_LEN.min(num_elements - first);
        let (ours, theirs) = (&mut ours[..len], &mut theirs[..len]);
        tensors.read(owner, first, ours)?;
        tensors.read(head, first, theirs)?;
        let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if let Some(element) = ours.iter().zip(theirs.iter()).position(differ) {
            let (owner, element) = (owner.to_owned(), first + element);
            return Err(CheckpointError::NotTied { path, tensor, owner, element });
        }
    }
    tensors.remove(head);
    Ok(())
}

#[cfg(test)]
mod tests;

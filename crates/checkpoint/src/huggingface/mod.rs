//! Folders of models as Hugging Face keeps them: read without loading them, and written.
//!
//! ```text
//! config.json                   the shape of the model
//! model.safetensors             its weights, or, in parts,
//! model-00001-of-00003.safetensors, ...   with model.safetensors.index.json: what lies where
//! tokenizer.json                how its text becomes tokens
//! ```
//!
//! [`Folder::open`] reads `config.json` and the headers of the weights, nothing else, and finds
//! whatever could be wrong with them. Weights are read where and when they are needed, a part at a
//! time. [`save`] writes such a folder; it appears whole under its name, or not at all.
//!
//! - `config`: the shape, in both directions; `options`: which options we know
//! - `names`: what tensors are called; `shards`: which file they lie in
//! - `export`: writing; `tokenizer`: how many tokens a tokenizer makes

mod options;

mod config;

mod names;

mod shards;

mod export;

mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileKind, World};

pub use config::Config;
pub use export::{Export, Saved, save};
pub use tokenizer::num_tokens;

use crate::{CheckpointError, Tensors};

/// The file with the shape of the model.
pub const CONFIG: &str = "config.json";

/// The file that says how text becomes tokens.
pub const TOKENIZER: &str = "tokenizer.json";

/// Files that go with a vocabulary, and so with the model wherever it is copied.
pub const COMPANIONS: &[&str] = &[
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
];

/// The embedding table, which the output projection may be a copy of.
const TABLES: [&str; 2] = ["transformer.wte.weight", "model.embed_tokens.weight"];

/// The output projection.
const HEAD: &str = "lm_head.weight";

/// Elements compared at a time.
const PIECE_LEN: usize = 1 << 16;

/// A folder whose `config.json` and headers were read and found good.
pub struct Folder {
    path: PathBuf,
    /// What its `config.json` says.
    pub config: Config,
    /// Its weights, by the names of the engine, not yet compared with a model.
    pub tensors: Tensors,
}

impl Folder {
    /// Whether a folder looks like one of these.
    pub fn is_one(world: &World, path: &Path) -> bool {
        matches!(world.files().metadata(&path.join(CONFIG)), Some(FileKind::File { .. }))
    }

    /// Reads `config.json` and the headers of the weights, and the size of the vocabulary where
    /// there is a tokenizer.
    pub fn open(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let config_path = path.join(CONFIG);
        let bytes = world.files().read(&config_path)?;
        let config = Config::parse(&config_path, &bytes)?;
        let mut tensors =
            shards::open(world, path, config.model.family).map_err(CheckpointError::of_input)?;
        if config.model.tied {
            drop_copy_of_table(path, &mut tensors)?;
        }
        let folder = Self { path: path.to_owned(), config, tensors };
        folder.compare_vocabularies(world)?;
        Ok(folder)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its `tokenizer.json`, if it has one.
    pub fn tokenizer(&self, world: &World) -> Option<PathBuf> {
        let path = self.path.join(TOKENIZER);
        world.files().metadata(&path).is_some().then_some(path)
    }

    /// Proves that the weights are those of a model with these names and shapes.
    pub fn prove(&self, needed: &BTreeMap<String, Vec<usize>>) -> Result<(), CheckpointError> {
        self.tensors.prove(needed).map_err(CheckpointError::of_input)
    }

    /// A tokenizer that makes tokens beyond the embedding table belongs to another model.
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

/// Some writers store a tied output projection as well. It must be the table it is tied to, or the
/// folder contradicts itself; then there is nothing to load from it.
fn drop_copy_of_table(path: &Path, tensors: &mut Tensors) -> Result<(), CheckpointError> {
    let Some(shape) = tensors.shape(HEAD).map(<[usize]>::to_vec) else { return Ok(()) };
    let Some(owner) = TABLES.into_iter().find(|table| tensors.shape(table).is_some()) else {
        return Ok(());
    };
    let expected = tensors.shape(owner).expect("just found").to_vec();
    let (tensor, path) = (HEAD.to_owned(), path.to_owned());
    if shape != expected {
        return Err(CheckpointError::WrongShape { path, tensor, found: shape, expected });
    }
    let num_elements: usize = shape.iter().product();
    let (mut ours, mut theirs) = (vec![0.0; PIECE_LEN], vec![0.0; PIECE_LEN]);
    for first in (0..num_elements).step_by(PIECE_LEN) {
        let len = PIECE_LEN.min(num_elements - first);
        let (ours, theirs) = (&mut ours[..len], &mut theirs[..len]);
        tensors.read(owner, first, ours)?;
        tensors.read(HEAD, first, theirs)?;
        let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        if let Some(element) = ours.iter().zip(theirs.iter()).position(differ) {
            let (owner, element) = (owner.to_owned(), first + element);
            return Err(CheckpointError::NotTied { path, tensor, owner, element });
        }
    }
    tensors.forget(HEAD);
    Ok(())
}

#[cfg(test)]
mod tests;

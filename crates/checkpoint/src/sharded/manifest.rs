//! The manifest: what a checkpoint holds and where.
//!
//! JSON with a version. Its last field is the BLAKE3 of all text before that field, so a bit that
//! flips anywhere in it is noticed. Nothing read is trusted: files lie in the folder itself, pieces
//! lie in their files, and the pieces of a tensor cover it exactly.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_platform::World;
use serde::{Deserialize, Serialize};

use super::MANIFEST;
use crate::CheckpointError;
use crate::error::quoted;

/// The version of the format; raised when a field changes or goes.
pub(super) const VERSION: u32 = 1;

/// What comes before the checksum in the text.
const CHECKSUM: &str = ",\n  \"blake3\": \"";

/// Where in a run a checkpoint was taken, and what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Optimizer steps done.
    pub step: u64,
    /// Fingerprint of the text; together with `step` it is the data's cursor.
    pub corpus: String,
    /// Steps skipped in a row.
    pub num_skipped: u64,
    /// How long the run has taken.
    pub seconds: f64,
    /// The recipe, whole.
    pub recipe: String,
    /// Another recipe than this one cannot go on from here.
    pub recipe_hash: String,
    /// The kernels that computed so far: others may go on, with other bits.
    pub kernel_class: String,
    /// The program that wrote it.
    pub program: String,
    /// How many workers wrote it. Nothing depends on it.
    pub workers: usize,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub v: u32,
    /// The life of the run that wrote it.
    pub generation: u64,
    /// Where in the run.
    pub position: Position,
    /// Its files.
    pub files: Vec<FileEntry>,
    /// Weights by name; the optimizer's state as `name.kind`.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Where the losses of all steps lie, as `f64`.
    pub losses: Stretch,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of all of it, in hexadecimal.
    pub blake3: String,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Its pieces, in the order of their elements.
    pub pieces: Vec<Piece>,
}

/// Elements of a tensor, little-endian `f32`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The first of them, as a number in the whole tensor, row-major.
    pub first: usize,
    /// How many.
    pub len: usize,
    /// The file, as a number in the manifest's list.
    pub file: usize,
    /// Where in the file, in bytes.
    pub offset: u64,
}

/// Numbers that are no tensor, little-endian `f64`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// The file, as a number in the manifest's list.
    pub file: usize,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

impl Manifest {
    /// Writes it into a checkpoint's folder, which makes every name in the folder durable too.
    pub(super) fn save(&self, world: &World, folder: &Path) -> Result<(), CheckpointError> {
        self.prove().unwrap_or_else(|reason| panic!("the manifest is sound: {reason}"));
        Ok(world.files().write_atomic(&folder.join(MANIFEST), self.text().as_bytes())?)
    }

    /// Reads and proves the manifest of a checkpoint's folder.
    pub fn load(world: &World, folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST);
        let bytes = world.files().read(&path)?;
        let bad = |reason: &str| CheckpointError::BadCheckpoint {
            path: folder.to_owned(),
            reason: format!("{MANIFEST}: {}", quoted(reason)),
        };
        let text = String::from_utf8(bytes).map_err(|_| bad("it is not text"))?;
        // What another version puts where is known by its own program alone.
        if let Ok(Version { v }) = serde_json::from_str(&text)
            && v > VERSION
        {
            return Err(CheckpointError::NewerState { path, found: v, known: VERSION });
        }
        let (body, rest) = text.rsplit_once(CHECKSUM).ok_or_else(|| bad("it is cut off"))?;
        let expected = format!("{}\"\n}}\n", blake3::hash(body.as_bytes()).to_hex());
        if rest != expected {
            return Err(bad("its checksum does not fit"));
        }
        let manifest: Self =
            serde_json::from_str(&text).map_err(|error| bad(&error.to_string()))?;
        manifest.prove().map_err(|reason| bad(&reason))?;
        Ok(manifest)
    }

    pub(super) fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("a manifest is plain data");
        let body = text.strip_suffix("\n}").expect("an object ends so");
        format!("{body}{CHECKSUM}{}\"\n}}\n", blake3::hash(body.as_bytes()).to_hex())
    }

    /// Everything that readers rely on.
    fn prove(&self) -> Result<(), String> {
        for file in &self.files {
            let digits =
                file.name.strip_prefix("rank-").and_then(|n| n.strip_suffix(".safetensors"));
            if !digits.is_some_and(|n| n.bytes().all(|byte| byte.is_ascii_digit())) {
                return Err(format!("{} is no name of a file of a checkpoint", file.name));
            }
        }
        let lies = |file: usize, offset: u64, len: usize, width: u64| {
            let end = (len as u64).checked_mul(width).and_then(|bytes| bytes.checked_add(offset));
            let file = self.files.get(file);
            file.is_some_and(|file| end.is_some_and(|end| end <= file.bytes))
        };
        for (name, tensor) in &self.tensors {
            let num_elements = tensor.shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
            let mut next = 0_usize;
            for piece in &tensor.pieces {
                if piece.first != next || !lies(piece.file, piece.offset, piece.len, 4) {
                    return Err(format!("the pieces of {name} do not fit together"));
                }
                next = next.saturating_add(piece.len);
            }
            if Some(next) != num_elements {
                return Err(format!("{name} has {next} elements, not {:?}", tensor.shape));
            }
        }
        let Stretch { file, offset, len } = self.losses;
        if lies(file, offset, len, 8) { Ok(()) } else { Err("the losses lie nowhere".to_owned()) }
    }
}

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
use super::shard::Frames;
use crate::CheckpointError;
use crate::error::quoted;
use crate::state::Scaling;

/// The version of the format; raised when a field changes or goes.
pub(super) const VERSION: u32 = 2;

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
    /// The scale of the loss, and steps that were left out.
    #[serde(default)]
    pub scaling: Scaling,
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
    /// How it is packed, where it is; offsets are those of the plain file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<Frames>,
}

impl FileEntry {
    /// Bytes of the plain file.
    pub fn plain_bytes(&self) -> u64 {
        self.packed.as_ref().map_or(self.bytes, |frames| frames.plain_bytes)
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Its pieces, in the order of their first elements.
    pub pieces: Vec<Piece>,
}

/// Elements of a tensor, little-endian `f32`: one stretch, or several of one length at equal
/// distances, as a slice of columns is. In the file they lie without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The first of them, as a number in the whole tensor, row-major.
    pub first: usize,
    /// How many a stretch has.
    pub len: usize,
    /// How many stretches.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rows: usize,
    /// From the first element of a stretch to that of the next.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stride: usize,
    /// The file, as a number in the manifest's list.
    pub file: usize,
    /// Where in the file, in bytes.
    pub offset: u64,
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_one(rows: &usize) -> bool {
    *rows == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(stride: &usize) -> bool {
    *stride == 0
}

impl Piece {
    /// How many elements it has in all; nothing where that is no number.
    fn num_elements(&self) -> Option<usize> {
        self.len.checked_mul(self.rows)
    }

    /// The first element of a stretch; nothing where that is no number.
    fn first_of(&self, row: usize) -> Option<usize> {
        self.stride.checked_mul(row).and_then(|skipped| skipped.checked_add(self.first))
    }
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
            let stem = file.name.strip_prefix("rank-");
            let stem = match &file.packed {
                None => stem.and_then(|n| n.strip_suffix(".safetensors")),
                Some(_) => stem.and_then(|n| n.strip_suffix(".safetensors.zst")),
            };
            if !stem.is_some_and(|n| n.bytes().all(|byte| byte.is_ascii_digit())) {
                return Err(format!("{} is no name of a file of a checkpoint", file.name));
            }
            if file.packed.as_ref().is_some_and(|frames| !frames.prove(file.bytes)) {
                return Err(format!("the frames of {} do not fit together", file.name));
            }
        }
        self.tensors.iter().try_for_each(|(name, tensor)| self.prove_tensor(name, tensor))?;
        let Stretch { file, offset, len } = self.losses;
        if self.lies(file, offset, Some(len), 8) {
            return Ok(());
        }
        Err("the losses lie nowhere".to_owned())
    }

    /// Whether so many numbers of this width lie in a file.
    fn lies(&self, file: usize, offset: u64, len: Option<usize>, width: u64) -> bool {
        let bytes = len.and_then(|len| (len as u64).checked_mul(width));
        let end = bytes.and_then(|bytes| bytes.checked_add(offset));
        let file = self.files.get(file);
        file.is_some_and(|file| end.is_some_and(|end| end <= file.plain_bytes()))
    }

    /// The pieces of a tensor lie in their files and cover it, each element once.
    fn prove_tensor(&self, name: &str, tensor: &TensorEntry) -> Result<(), String> {
        let num_elements = tensor.shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
        let mut found = 0_usize;
        for piece in &tensor.pieces {
            let len = piece.num_elements();
            if piece.len == 0 || !self.lies(piece.file, piece.offset, len, 4) {
                return Err(format!("the pieces of {name} do not fit together"));
            }
            found = found.saturating_add(len.unwrap_or(usize::MAX));
        }
        if Some(found) != num_elements {
            return Err(format!("{name} has {found} elements, not {:?}", tensor.shape));
        }
        // There are no more stretches than elements, and those lie in files.
        let mut stretches = Vec::new();
        for piece in &tensor.pieces {
            let firsts = (0..piece.rows).map(|row| Some((piece.first_of(row)?, piece.len)));
            let firsts: Option<Vec<_>> = firsts.collect();
            stretches.extend(firsts.ok_or_else(|| format!("{name} has no such elements"))?);
        }
        stretches.sort_unstable();
        let mut next = 0;
        for (first, len) in stretches {
            if first != next {
                return Err(format!("the pieces of {name} do not fit together"));
            }
            next += len;
        }
        Ok(())
    }
}

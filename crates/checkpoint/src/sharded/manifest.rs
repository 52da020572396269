//! Manifest of a checkpoint: versioned JSON with the location of every tensor.
//!
//! Its last field is the BLAKE3 hash of all text before that field, so any bit flip is detected.
//! Contents are validated: files are in the folder itself, pieces are inside their files, and the
//! pieces of a tensor cover it exactly. A manifest may state any numbers, so nothing is allocated
//! by them, and work that grows with a size waits until the file is known to have it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;

use lockstep_platform::World;
use serde::{Deserialize, Serialize};

use super::MANIFEST;
use super::zstd_frames::ZstdFrames;
use crate::CheckpointError;
use crate::error::quoted;
use crate::state::Scaling;

/// Format version; raised when a field is renamed or removed.
pub(super) const VERSION: u32 = 2;

/// Text before the checksum.
const CHECKSUM: &str = ",\n  \"blake3\": \"";

/// Position of a checkpoint in its run, and the recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Fingerprint of the data; with `step` it is the data position.
    pub corpus: String,
    /// Positions of the streams of a mixture: numbers of the data loader. Empty for other data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_positions: Vec<u64>,
    /// Number of consecutive skipped steps.
    pub num_skipped: u64,
    /// Loss scale and skipped steps.
    #[serde(default)]
    pub scaling: Scaling,
    /// Duration of the run so far.
    pub seconds: f64,
    /// The complete recipe.
    pub recipe: String,
    /// Hash of the recipe; another recipe cannot resume from here.
    pub recipe_hash: String,
    /// Kernel class so far; another class may resume, with other bits.
    pub kernel_class: String,
    /// Algorithms of matrix products, where a device chooses among several.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub product_algorithms: String,
    /// Program that wrote the checkpoint.
    pub program: String,
    /// Number of workers that wrote it, for information only.
    pub workers: usize,
}

/// Contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format version.
    pub v: u32,
    /// Attempt of the run that wrote it.
    pub generation: u64,
    /// Position in the run.
    pub position: Position,
    /// Files of the checkpoint.
    pub files: Vec<FileEntry>,
    /// Weights by name; optimizer state as `name.kind`.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Location of the losses of all steps, as `f64`.
    pub losses: F64Span,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 hash of the file in hexadecimal.
    pub blake3: String,
    /// Frames of a compressed file; offsets refer to the uncompressed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<ZstdFrames>,
}

impl FileEntry {
    /// Uncompressed size.
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

/// Elements of a tensor, little-endian `f32`: one range, or several of equal length and spacing, as
/// in a column shard. They are contiguous in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Row-major index of the first element in the tensor.
    pub first: usize,
    /// Number of elements per range.
    pub len: usize,
    /// Number of ranges.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub rows: usize,
    /// Distance between the first elements of two ranges.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stride: usize,
    /// Index of the file in the manifest.
    pub file: usize,
    /// Byte offset in the file.
    pub offset: u64,
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(rows: &usize) -> bool {
    *rows == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(stride: &usize) -> bool {
    *stride == 0
}

impl Piece {
    /// Total number of elements; none on overflow.
    fn num_elements(&self) -> Option<usize> {
        self.len.checked_mul(self.rows)
    }
}

/// Consecutive little-endian `f64` numbers in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct F64Span {
    /// Index of the file in the manifest.
    pub file: usize,
    /// Byte offset in the file.
    pub offset: u64,
    /// Number of values.
    pub len: usize,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

impl Manifest {
    /// Writes the manifest into a checkpoint folder, which also makes the file names durable.
    pub(super) fn save(&self, world: &World, folder: &Path) -> Result<(), CheckpointError> {
        let proof = self.prove_files().and_then(|()| self.prove_contents());
        proof.unwrap_or_else(|reason| panic!("the manifest is valid: {reason}"));
        Ok(world.files().write_atomic(&folder.join(MANIFEST), self.text().as_bytes())?)
    }

    /// Reads the manifest of a checkpoint folder and validates its list of files. The reader checks
    /// their sizes before [`Self::prove_contents`].
    pub(super) fn load(world: &World, folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST);
        let bytes = world.files().read(&path)?;
        let bad = |reason: &str| CheckpointError::BadCheckpoint {
            path: folder.to_owned(),
            reason: format!("{MANIFEST}: {}", quoted(reason)),
        };
        let text = String::from_utf8(bytes).map_err(|_| bad("it is not text"))?;
        // A newer version is refused before its fields are parsed.
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
        manifest.prove_files().map_err(|reason| bad(&reason))?;
        Ok(manifest)
    }

    pub(super) fn text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("a manifest is plain data");
        let body = text.strip_suffix("\n}").expect("an object ends so");
        format!("{body}{CHECKSUM}{}\"\n}}\n", blake3::hash(body.as_bytes()).to_hex())
    }

    /// Checks the names and the frames of the files.
    fn prove_files(&self) -> Result<(), String> {
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
        Ok(())
    }

    /// Checks that tensors and losses are inside the files and complete. Takes time proportional to
    /// the sizes of the files, and memory proportional to the manifest.
    pub(super) fn prove_contents(&self) -> Result<(), String> {
        self.tensors.iter().try_for_each(|(name, tensor)| self.prove_tensor(name, tensor))?;
        let F64Span { file, offset, len } = self.losses;
        if self.contains(file, offset, Some(len), 8) {
            return Ok(());
        }
        Err("the losses are outside of the files".to_owned())
    }

    /// Whether a file contains this many numbers of this width at an offset.
    fn contains(&self, file: usize, offset: u64, len: Option<usize>, width: u64) -> bool {
        let bytes = len.and_then(|len| (len as u64).checked_mul(width));
        let end = bytes.and_then(|bytes| bytes.checked_add(offset));
        let file = self.files.get(file);
        file.is_some_and(|file| end.is_some_and(|end| end <= file.plain_bytes()))
    }

    /// Checks that the pieces of a tensor are inside their files and cover each element once.
    fn prove_tensor(&self, name: &str, tensor: &TensorEntry) -> Result<(), String> {
        let num_elements = tensor.shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
        let mut found = 0_usize;
        for piece in &tensor.pieces {
            let len = piece.num_elements();
            if piece.len == 0 || piece.rows == 0 || !self.contains(piece.file, piece.offset, len, 4)
            {
                return Err(format!("the pieces of {name} do not fit together"));
            }
            found = found.saturating_add(len.unwrap_or(usize::MAX));
        }
        if Some(found) != num_elements {
            return Err(format!("{name} has {found} elements, not {:?}", tensor.shape));
        }
        // Merges the ranges of all pieces: each must begin where the last one ended.
        let first = |(index, piece): (usize, &Piece)| Reverse((piece.first, index, 0));
        let mut heads: BinaryHeap<_> = tensor.pieces.iter().enumerate().map(first).collect();
        let mut next = 0;
        while let Some(Reverse((first, index, row))) = heads.pop() {
            let piece = &tensor.pieces[index];
            if first != next {
                return Err(format!("the pieces of {name} do not fit together"));
            }
            next += piece.len;
            if row + 1 < piece.rows {
                let first = first.checked_add(piece.stride);
                let first = first.ok_or_else(|| format!("{name} has no such elements"))?;
                heads.push(Reverse((first, index, row + 1)));
            }
        }
        Ok(())
    }
}

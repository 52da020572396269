//! One worker's part of a checkpoint: its file, and the note that says what is in it.
//!
//! The note is written after the file is on the disk, and tells the worker that writes the manifest
//! that this part is complete. So workers need no messages for it, and it can happen beside
//! training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::{FileError, World, write_atomic_with};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::body::{Body, Look};
use super::manifest::{FileEntry, Manifest, Piece, Position, Stretch, TensorEntry, VERSION};
use super::shard::{Packed, write_packed};
use super::snapshot::{Snapshot, Taken};
use crate::CheckpointError;
use crate::error::quoted;

/// The header's length is a multiple of this, so that the numbers after it are aligned.
const ALIGNMENT_BYTES: usize = 8;

/// Length of the header's length.
const LENGTH_BYTES: usize = 8;

/// A part that is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    file: FileEntry,
    tensors: BTreeMap<String, TensorEntry>,
    losses: Option<Stretch>,
}

/// What a worker says about its part.
#[derive(Serialize, Deserialize)]
enum Note {
    Complete(Part),
    Failed(String),
}

fn file_name(rank: usize, is_packed: bool) -> String {
    format!("rank-{rank:04}.safetensors{}", if is_packed { ".zst" } else { "" })
}

fn note_path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank:04}.json"))
}

impl Part {
    /// Writes a worker's file, then its note.
    pub(super) fn write(
        world: &World,
        folder: &Path,
        rank: usize,
        snapshot: &Snapshot,
        is_packed: bool,
    ) -> Result<(), CheckpointError> {
        let name = file_name(rank, is_packed);
        let header = header(snapshot);
        let body = Arc::new(Body::of(&header, snapshot));
        let look = Look::start(world, &body, !is_packed);
        let mut packed = None;
        let written = write_atomic_with(world, &folder.join(&name), |out| {
            if !is_packed {
                return body.write(out);
            }
            packed = Some(write_packed(&body, out)?);
            Ok(())
        });
        let found = look.finish().map_err(|place| diverged(snapshot, place))?;
        written?;
        let file = match (packed, found) {
            (Some(Packed { bytes, blake3, frames }), _) => {
                FileEntry { name, bytes, blake3: hex(&blake3), packed: Some(frames) }
            }
            (None, sum) => {
                let blake3 = hex(&sum.expect("it was asked for"));
                FileEntry { name, bytes: body.num_bytes(), blake3, packed: None }
            }
        };
        let part = Self::of(file, header.len(), snapshot);
        Ok(Note::Complete(part).save(world, folder, rank)?)
    }

    /// Makes room and tells whoever waits for this worker's part that it does not come.
    pub(super) fn give_up(world: &World, folder: &Path, rank: usize, reason: &str) {
        // Whatever fails here, the first error is the one that is reported.
        for is_packed in [false, true] {
            let _ = world.files().remove_file(&folder.join(file_name(rank, is_packed)));
        }
        let _ = Note::Failed(reason.to_owned()).save(world, folder, rank);
    }

    fn of(file: FileEntry, header_bytes: usize, snapshot: &Snapshot) -> Self {
        let mut offset = (LENGTH_BYTES + header_bytes) as u64;
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for taken in snapshot.pieces() {
            let Taken { first, len, rows, stride, .. } = *taken;
            let tensor = tensors.entry(taken.name.clone()).or_default();
            tensor.shape.clone_from(&taken.shape);
            tensor.pieces.push(Piece { first, len, rows, stride, file: 0, offset });
            offset += (taken.num_elements() * size_of::<f32>()) as u64;
        }
        let len = snapshot.losses().len();
        let losses = (len > 0).then_some(Stretch { file: 0, offset, len });
        let end = offset + size_of_val(snapshot.losses()) as u64;
        assert_eq!(end, file.plain_bytes(), "all of it is known");
        Self { file, tensors, losses }
    }

    /// The part of a worker, once it is complete; the reason where it does not come.
    pub(super) fn read(
        world: &World,
        folder: &Path,
        rank: usize,
    ) -> Result<Option<Self>, CheckpointError> {
        let path = note_path(folder, rank);
        if world.files().metadata(&path).is_none() {
            return Ok(None);
        }
        let bad = |error: serde_json::Error| {
            let reason = quoted(&error.to_string());
            CheckpointError::BadCheckpoint { path: path.clone(), reason }
        };
        match serde_json::from_slice(&world.files().read(&path)?).map_err(bad)? {
            Note::Complete(part) => Ok(Some(part)),
            Note::Failed(reason) => Err(CheckpointError::PartFailed { rank, reason }),
        }
    }

    /// Removes a note that the manifest has taken the place of.
    pub(super) fn forget_note(
        world: &World,
        folder: &Path,
        rank: usize,
    ) -> Result<(), CheckpointError> {
        Ok(world.files().remove_file(&note_path(folder, rank))?)
    }

    /// The manifest of all parts, by rank.
    pub(super) fn join(parts: Vec<Self>, generation: u64, position: Position) -> Manifest {
        let mut manifest = Manifest {
            v: VERSION,
            generation,
            position,
            files: Vec::new(),
            tensors: BTreeMap::new(),
            losses: Stretch { file: 0, offset: 0, len: 0 },
        };
        for (file, part) in parts.into_iter().enumerate() {
            manifest.files.push(part.file);
            for (name, tensor) in part.tensors {
                let whole = manifest.tensors.entry(name).or_default();
                whole.shape = tensor.shape;
                whole.pieces.extend(tensor.pieces.into_iter().map(|piece| Piece { file, ..piece }));
            }
            if let Some(losses) = part.losses {
                manifest.losses = Stretch { file, ..losses };
            }
        }
        for tensor in manifest.tensors.values_mut() {
            tensor.pieces.sort_by_key(|piece| piece.first);
        }
        manifest
    }
}

impl Note {
    fn save(&self, world: &World, folder: &Path, rank: usize) -> Result<(), FileError> {
        let text = serde_json::to_vec(self).expect("a note is plain data");
        world.files().write_atomic(&note_path(folder, rank), &text)
    }
}

fn hex(sum: &blake3::Hash) -> String {
    sum.to_hex().to_string()
}

fn diverged(snapshot: &Snapshot, place: usize) -> CheckpointError {
    let (tensor, element, value) = snapshot.value_at(place);
    CheckpointError::Diverged { tensor: tensor.to_owned(), element, value: value.to_string() }
}

/// The header of a safetensors file with these pieces: `name@first` for a piece of a tensor.
fn header(snapshot: &Snapshot) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut start = 0;
    for taken in snapshot.pieces() {
        let Taken { name, first, len, rows, .. } = taken;
        let end = start + taken.num_elements() * size_of::<f32>();
        let shape = if *rows == 1 { vec![*len] } else { vec![*rows, *len] };
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        let before = entries.insert(format!("{name}@{first}"), entry);
        assert!(before.is_none(), "{name} has one piece that begins at {first}");
        start = end;
    }
    let len = snapshot.losses().len();
    if len > 0 {
        let end = start + size_of_val(snapshot.losses());
        let entry = json!({ "dtype": "F64", "shape": [len], "data_offsets": [start, end] });
        entries.insert("losses".to_owned(), entry);
    }
    let mut header = serde_json::to_vec(&entries).expect("a map by text is plain data");
    header.resize(header.len().next_multiple_of(ALIGNMENT_BYTES), b' ');
    header
}

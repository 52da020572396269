//! Shard of one rank: its file and its status file.
//!
//! The status file is written after the shard is on disk and lets the rank that writes the manifest
//! know that this shard is complete. Ranks thus need no messages, and checkpoints can be written in
//! the background of training.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::{FileError, World, write_atomic_with};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::manifest::{F64Span, FileEntry, Manifest, Piece, Position, TensorEntry, VERSION};
use super::shard::{Packed, write_packed};
use super::shard_bytes::{ChecksumTask, ShardBytes};
use super::snapshot::{Snapshot, SnapshotPiece};
use crate::CheckpointError;
use crate::error::quoted;

/// Alignment of the header length, which aligns the numbers after it.
const ALIGNMENT_BYTES: usize = 8;

/// Size of the header length field.
const LENGTH_BYTES: usize = 8;

/// A complete shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RankShard {
    file: FileEntry,
    tensors: BTreeMap<String, TensorEntry>,
    losses: Option<F64Span>,
}

/// Content of the status file.
#[derive(Serialize, Deserialize)]
enum ShardStatus {
    Complete(RankShard),
    Failed(String),
}

fn file_name(rank: usize, is_packed: bool) -> String {
    format!("rank-{rank:04}.safetensors{}", if is_packed { ".zst" } else { "" })
}

fn status_path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank:04}.json"))
}

impl RankShard {
    /// Writes the shard of a rank, then its status file.
    pub(super) fn write(
        world: &World,
        folder: &Path,
        rank: usize,
        snapshot: &Snapshot,
        is_packed: bool,
    ) -> Result<(), CheckpointError> {
        let name = file_name(rank, is_packed);
        let header = header(snapshot);
        let body = Arc::new(ShardBytes::of(&header, snapshot));
        let look = ChecksumTask::start(world, &body, !is_packed);
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
                let blake3 = hex(&sum.expect("it was requested"));
                FileEntry { name, bytes: body.num_bytes(), blake3, packed: None }
            }
        };
        let part = Self::of(file, header.len(), snapshot);
        Ok(ShardStatus::Complete(part).save(world, folder, rank)?)
    }

    /// Removes the shard and writes a status file with the failure.
    pub(super) fn report_failure(world: &World, folder: &Path, rank: usize, reason: &str) {
        // The first error is the one that is reported.
        for is_packed in [false, true] {
            let _ = world.files().remove_file(&folder.join(file_name(rank, is_packed)));
        }
        let _ = ShardStatus::Failed(reason.to_owned()).save(world, folder, rank);
    }

    fn of(file: FileEntry, header_bytes: usize, snapshot: &Snapshot) -> Self {
        let mut offset = (LENGTH_BYTES + header_bytes) as u64;
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for taken in snapshot.pieces() {
            let SnapshotPiece { first, len, rows, stride, .. } = *taken;
            let tensor = tensors.entry(taken.name.clone()).or_default();
            tensor.shape.clone_from(&taken.shape);
            tensor.pieces.push(Piece { first, len, rows, stride, file: 0, offset });
            offset += (taken.num_elements() * size_of::<f32>()) as u64;
        }
        let len = snapshot.losses().len();
        let losses = (len > 0).then_some(F64Span { file: 0, offset, len });
        let end = offset + size_of_val(snapshot.losses()) as u64;
        assert_eq!(end, file.plain_bytes(), "the entries cover the file");
        Self { file, tensors, losses }
    }

    /// The shard of a rank, if it is complete; an error if the rank failed.
    pub(super) fn read(
        world: &World,
        folder: &Path,
        rank: usize,
    ) -> Result<Option<Self>, CheckpointError> {
        let path = status_path(folder, rank);
        if world.files().metadata(&path).is_none() {
            return Ok(None);
        }
        let bad = |error: serde_json::Error| {
            let reason = quoted(&error.to_string());
            CheckpointError::BadCheckpoint { path: path.clone(), reason }
        };
        match serde_json::from_slice(&world.files().read(&path)?).map_err(bad)? {
            ShardStatus::Complete(part) => Ok(Some(part)),
            ShardStatus::Failed(reason) => Err(CheckpointError::ShardFailed { rank, reason }),
        }
    }

    /// Removes a status file after the manifest is written.
    pub(super) fn remove_status(
        world: &World,
        folder: &Path,
        rank: usize,
    ) -> Result<(), CheckpointError> {
        Ok(world.files().remove_file(&status_path(folder, rank))?)
    }

    /// The manifest of the shards of all ranks.
    pub(super) fn join(parts: Vec<Self>, generation: u64, position: Position) -> Manifest {
        let mut manifest = Manifest {
            v: VERSION,
            generation,
            position,
            files: Vec::new(),
            tensors: BTreeMap::new(),
            losses: F64Span { file: 0, offset: 0, len: 0 },
        };
        for (file, part) in parts.into_iter().enumerate() {
            manifest.files.push(part.file);
            for (name, tensor) in part.tensors {
                let whole = manifest.tensors.entry(name).or_default();
                whole.shape = tensor.shape;
                whole.pieces.extend(tensor.pieces.into_iter().map(|piece| Piece { file, ..piece }));
            }
            if let Some(losses) = part.losses {
                manifest.losses = F64Span { file, ..losses };
            }
        }
        for tensor in manifest.tensors.values_mut() {
            tensor.pieces.sort_by_key(|piece| piece.first);
        }
        manifest
    }
}

impl ShardStatus {
    fn save(&self, world: &World, folder: &Path, rank: usize) -> Result<(), FileError> {
        let text = serde_json::to_vec(self).expect("a status is plain data");
        world.files().write_atomic(&status_path(folder, rank), &text)
    }
}

fn hex(sum: &blake3::Hash) -> String {
    sum.to_hex().to_string()
}

fn diverged(snapshot: &Snapshot, place: usize) -> CheckpointError {
    let (tensor, element, value) = snapshot.value_at(place);
    CheckpointError::Diverged { tensor: tensor.to_owned(), element, value: value.to_string() }
}

/// The safetensors header of these pieces, with names `name@first`.
fn header(snapshot: &Snapshot) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut start = 0;
    for taken in snapshot.pieces() {
        let SnapshotPiece { name, first, len, rows, .. } = taken;
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

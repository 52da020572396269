//! Reader of a checkpoint: any range of any tensor, from any shard.

use std::path::{Path, PathBuf};

use lockstep_platform::World;

use super::MANIFEST;
use super::manifest::{F64Span, Manifest, Piece};
use super::shard::{ReadFailure, ShardReader};
use crate::CheckpointError;
use crate::error::quoted;

/// Bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// An open checkpoint.
pub struct Reader {
    folder: PathBuf,
    manifest: Manifest,
    files: Vec<ShardReader>,
}

impl Reader {
    /// Opens a checkpoint and checks its manifest and file sizes; [`Self::verify`] checks contents.
    pub fn open(world: &World, folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::load(world, folder)?;
        let mut reader = Self { folder: folder.to_owned(), manifest, files: Vec::new() };
        for entry in &reader.manifest.files {
            let file = world.files().open(&folder.join(&entry.name))?;
            if file.num_bytes() != entry.bytes {
                let (found, expected) = (file.num_bytes(), entry.bytes);
                let reason = format!("{} has {found} bytes, not {expected}", entry.name);
                return Err(reader.bad(reason));
            }
            reader.files.push(ShardReader::new(file, entry));
        }
        reader
            .manifest
            .prove_contents()
            .map_err(|reason| reader.bad(format!("{MANIFEST}: {}", quoted(&reason))))?;
        Ok(reader)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Verifies the checksum of a file. A checkpoint is valid if all its files are; the caller
    /// distributes them over ranks.
    pub fn verify(&self, file: usize) -> Result<(), CheckpointError> {
        let entry = &self.manifest.files[file];
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; PIECE_BYTES.min(entry.bytes as usize)];
        let mut done = 0;
        while done < entry.bytes {
            let len = (entry.bytes - done).min(PIECE_BYTES as u64);
            let piece = &mut buffer[..len as usize];
            self.files[file].on_disk().read_exact_at(done, piece)?;
            hasher.update(piece);
            done += len;
        }
        if hasher.finalize().to_hex().as_str() == entry.blake3 {
            return Ok(());
        }
        Err(self.bad(format!("{} does not have its checksum", entry.name)))
    }

    /// Verifies all files.
    pub fn verify_all(&self) -> Result<(), CheckpointError> {
        (0..self.files.len()).try_for_each(|file| self.verify(file))
    }

    /// Reads elements of a tensor with this shape from index `first` into `out`.
    ///
    /// # Panics
    /// If the shape has fewer.
    pub fn read(
        &self,
        name: &str,
        shape: &[usize],
        first: usize,
        out: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let Some(tensor) = self.manifest.tensors.get(name) else {
            let tensor = name.to_owned();
            return Err(CheckpointError::MissingTensor { path: self.folder.clone(), tensor });
        };
        if tensor.shape != shape {
            return Err(CheckpointError::WrongShape {
                path: self.folder.clone(),
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_owned(),
            });
        }
        let end = first + out.len();
        assert!(end <= shape.iter().product(), "{name} has shape {shape:?}");
        tensor.pieces.iter().try_for_each(|piece| self.read_piece(piece, first, out))
    }

    /// Reads the elements of a piece that fall into `out`, which begins at index `first`.
    fn read_piece(
        &self,
        piece: &Piece,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let Piece { len, rows, stride, .. } = *piece;
        let end = first + out.len();
        // The ranges that end after `first` and begin before `end`.
        let (mut row, last) = match rows {
            1 => (0, usize::from(piece.first < end && first < piece.first + len)),
            _ => (
                first.saturating_sub(piece.first + len - 1).div_ceil(stride),
                end.saturating_sub(piece.first).div_ceil(stride).min(rows),
            ),
        };
        // As many ranges at a time as fit the buffer; they are contiguous in the file.
        let at_once = (PIECE_BYTES / size_of::<f32>() / len).max(1);
        while row < last {
            let next = (row + at_once).min(last);
            let start = piece.first + row * stride;
            let stop = piece.first + (next - 1) * stride + len;
            // The first and the last range may be needed partially.
            let head = first.saturating_sub(start).min(len);
            let tail = stop.saturating_sub(end).min(len);
            let skipped = row * len + head;
            let count = ((next - row) * len).saturating_sub(head + tail);
            let mut place = (start + head).max(first);
            let mut left_in_row = len - head;
            self.read_elements(piece, skipped, count, |values| {
                let mut values = values;
                while !values.is_empty() {
                    let taken = left_in_row.min(values.len());
                    out[place - first..][..taken].copy_from_slice(&values[..taken]);
                    (values, left_in_row) = (&values[taken..], left_in_row - taken);
                    place += taken;
                    if left_in_row == 0 {
                        (place, left_in_row) = (place + stride.saturating_sub(len), len);
                    }
                }
            })?;
            row = next;
        }
        Ok(())
    }

    /// Passes `count` elements of a piece from its index `skipped` to `take`, in order.
    fn read_elements(
        &self,
        piece: &Piece,
        skipped: usize,
        count: usize,
        mut take: impl FnMut(&[f32]),
    ) -> Result<(), CheckpointError> {
        let mut offset = piece.offset + (skipped * size_of::<f32>()) as u64;
        let room = (PIECE_BYTES / size_of::<f32>()).min(count);
        let (mut bytes, mut values) = (vec![0; room * size_of::<f32>()], vec![0.0; room]);
        let mut left = count;
        while left > 0 {
            let len = left.min(room);
            let bytes = &mut bytes[..len * size_of::<f32>()];
            self.read_bytes(piece.file, offset, bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            take(&values[..len]);
            offset += bytes.len() as u64;
            left -= len;
        }
        Ok(())
    }

    fn read_bytes(
        &self,
        file: usize,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.files[file].read(offset, bytes).map_err(|fault| match fault {
            ReadFailure::File(error) => error,
            ReadFailure::Frame(reason) => {
                self.bad(format!("{} does not unpack: {reason}", self.manifest.files[file].name))
            }
        })
    }

    /// The loss of every step before the checkpoint.
    pub fn losses(&self) -> Result<Vec<f64>, CheckpointError> {
        let F64Span { file, offset, len } = self.manifest.losses;
        let (mut losses, mut bytes) = (Vec::new(), Vec::new());
        // Piece by piece: the compressed file may hold less than the manifest states.
        while losses.len() < len {
            let count = (PIECE_BYTES / size_of::<f64>()).min(len - losses.len());
            bytes.resize(count * size_of::<f64>(), 0);
            self.read_bytes(file, offset + (losses.len() * size_of::<f64>()) as u64, &mut bytes)?;
            losses.extend(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)));
        }
        Ok(losses)
    }

    fn bad(&self, reason: String) -> CheckpointError {
        CheckpointError::BadCheckpoint { path: self.folder.clone(), reason }
    }
}

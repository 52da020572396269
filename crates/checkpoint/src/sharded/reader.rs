//! Any stretch of any tensor of a checkpoint, from whichever files have it.

use std::path::{Path, PathBuf};

use lockstep_platform::{FileReader, World};

use super::manifest::{Manifest, Piece, Stretch};
use crate::CheckpointError;

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A checkpoint, open.
pub struct Reader {
    folder: PathBuf,
    manifest: Manifest,
    files: Vec<Box<dyn FileReader>>,
}

impl Reader {
    /// Opens a checkpoint: its manifest is proven and its files have their sizes. What is in them
    /// is proven by [`Self::verify`].
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
            reader.files.push(file);
        }
        Ok(reader)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads a file whole and compares it with its checksum. A checkpoint is sound when all its
    /// files are; who looks at which is up to the caller.
    pub fn verify(&self, file: usize) -> Result<(), CheckpointError> {
        let entry = &self.manifest.files[file];
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; PIECE_BYTES.min(entry.bytes as usize)];
        let mut done = 0;
        while done < entry.bytes {
            let len = (entry.bytes - done).min(PIECE_BYTES as u64);
            let piece = &mut buffer[..len as usize];
            self.files[file].read_exact_at(done, piece)?;
            hasher.update(piece);
            done += len;
        }
        if hasher.finalize().to_hex().as_str() == entry.blake3 {
            return Ok(());
        }
        Err(self.bad(format!("{} does not have its checksum", entry.name)))
    }

    /// Reads all files whole.
    pub fn verify_all(&self) -> Result<(), CheckpointError> {
        (0..self.files.len()).try_for_each(|file| self.verify(file))
    }

    /// The elements of a tensor with this shape from number `first` on, as many as there is room
    /// for.
    ///
    /// # Panics
    /// When the shape has fewer.
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
        let touched = tensor.pieces.partition_point(|piece| piece.first + piece.len <= first);
        for piece in tensor.pieces[touched..].iter().take_while(|piece| piece.first < end) {
            let (from, to) = (piece.first.max(first), (piece.first + piece.len).min(end));
            self.read_piece(piece, from - piece.first, &mut out[from - first..to - first])?;
        }
        Ok(())
    }

    /// Elements of a piece from number `skipped` of it on.
    fn read_piece(
        &self,
        piece: &Piece,
        skipped: usize,
        out: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let mut offset = piece.offset + (skipped * size_of::<f32>()) as u64;
        let mut buffer = vec![0; PIECE_BYTES.min(size_of_val(out))];
        for values in out.chunks_mut(PIECE_BYTES / size_of::<f32>()) {
            let bytes = &mut buffer[..size_of_val(values)];
            self.files[piece.file].read_exact_at(offset, bytes)?;
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// The loss of every step before the checkpoint.
    pub fn losses(&self) -> Result<Vec<f64>, CheckpointError> {
        let Stretch { file, offset, len } = self.manifest.losses;
        let mut bytes = vec![0; len * size_of::<f64>()];
        if len > 0 {
            self.files[file].read_exact_at(offset, &mut bytes)?;
        }
        Ok(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
    }

    fn bad(&self, reason: String) -> CheckpointError {
        CheckpointError::BadCheckpoint { path: self.folder.clone(), reason }
    }
}

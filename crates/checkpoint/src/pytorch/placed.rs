//! Tensors of foreign checkpoints: chunks in files, read by element.
//!
//! A chunk is a box of a tensor's elements. Where its values begin in a file is known, or it is an
//! archive of `torch.save` that is opened when the chunk is first read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lockstep_platform::{FileReader, World};

use super::archive::{Archive, StoredTensor, format_of_dtype};
use super::chunk::{Chunk, prove_cover};
use crate::CheckpointError;
use crate::error::quoted;
use crate::weights::bytes::PIECE_ELEMENTS;
use crate::weights::{ElementType, TensorSource};

/// Tensors by their stored names.
pub(super) struct PlacedTensors {
    path: PathBuf,
    files: Vec<OpenFile>,
    tensors: BTreeMap<String, PlacedTensor>,
}

struct OpenFile {
    name: String,
    reader: Box<dyn FileReader>,
}

/// A tensor and the places of its chunks.
pub(super) struct PlacedTensor {
    /// Name of its `torch.dtype`.
    pub(super) dtype: String,
    /// Its shape, slowest dimension first.
    pub(super) shape: Vec<usize>,
    /// Shape in which its chunks are boxes: its own, or the flattened one.
    pub(super) box_shape: Vec<usize>,
    pub(super) chunks: Vec<PlacedChunk>,
}

/// A chunk and the place of its values.
pub(super) struct PlacedChunk {
    pub(super) chunk: Chunk,
    /// Number of its file.
    pub(super) file: usize,
    pub(super) values: Values,
}

/// Place of values in a file.
pub(super) enum Values {
    /// They begin at this byte.
    At(u64),
    /// They are in an archive that fills this range; found at the first read.
    InArchive { range: Range<u64>, found: OnceLock<Result<u64, String>> },
}

impl PlacedTensors {
    /// No tensors yet, of a folder.
    pub(super) fn empty(path: &Path) -> Self {
        Self { path: path.to_owned(), files: Vec::new(), tensors: BTreeMap::new() }
    }

    /// Number of a file of the folder, which is opened at its first use.
    pub(super) fn file(&mut self, world: &World, name: &str) -> Result<usize, CheckpointError> {
        if let Some(file) = self.files.iter().position(|file| file.name == *name) {
            return Ok(file);
        }
        // A name that leads out of the folder is an attack.
        if name.is_empty() || name.contains(['/', '\\']) || name == ".." {
            let reason = format!("{} is not the name of a file in it", quoted(name));
            return Err(CheckpointError::Foreign { path: self.path.clone(), reason });
        }
        let reader = world.files().open(&self.path.join(name))?;
        self.files.push(OpenFile { name: name.to_owned(), reader });
        Ok(self.files.len() - 1)
    }

    /// An open file.
    pub(super) fn reader(&self, file: usize) -> &dyn FileReader {
        self.files[file].reader.as_ref()
    }

    /// Adds a tensor after checking that its chunks cover it and lie in their files.
    pub(super) fn add(&mut self, name: &str, tensor: PlacedTensor) -> Result<(), CheckpointError> {
        let PlacedTensor { dtype, box_shape, chunks, .. } = &tensor;
        let boxes: Vec<_> = chunks.iter().map(|placed| &placed.chunk).collect();
        let width = format_of_dtype(dtype).map_or(0, ElementType::num_bytes) as u64;
        let proof = prove_cover(box_shape, &boxes).and_then(|()| {
            let is_inside = |placed: &PlacedChunk| {
                let end = match &placed.values {
                    Values::InArchive { range, .. } => Some(range.end),
                    Values::At(start) => (placed.chunk.num_elements())
                        .and_then(|len| (len as u64).checked_mul(width)?.checked_add(*start)),
                };
                end.is_some_and(|end| end <= self.files[placed.file].reader.num_bytes())
            };
            match chunks.iter().find(|placed| !is_inside(placed)) {
                None => Ok(()),
                Some(placed) => {
                    Err(format!("a chunk is outside of {}", self.files[placed.file].name))
                }
            }
        });
        proof.map_err(|reason| CheckpointError::Foreign {
            path: self.path.clone(),
            reason: quoted(&format!("tensor {name}: {reason}")),
        })?;
        self.tensors.insert(name.to_owned(), tensor);
        Ok(())
    }

    /// Reads the elements of a chunk that fall into `out`, which begins at index `first`.
    fn read_chunk(
        &self,
        tensor: &PlacedTensor,
        placed: &PlacedChunk,
        format: ElementType,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), ReadError> {
        let runs = placed.chunk.runs(&tensor.box_shape);
        let requested = first..first + out.len();
        let within = runs.within(&requested);
        if within.is_empty() {
            return Ok(());
        }
        let values = self.start_of(placed, format).map_err(ReadError::Content)?;
        let width = format.num_bytes();
        // Short runs are read several at a time, with the elements between the requested ones.
        let at_once = (PIECE_ELEMENTS / runs.len).max(1);
        let mut buffer = vec![0; PIECE_ELEMENTS.min(runs.len * runs.count) * width];
        let mut piece = vec![0.0; buffer.len() / width];
        for run in within.clone().step_by(at_once) {
            let last = (run + at_once).min(within.end);
            let (mut at, mut end) = (run * runs.len, last * runs.len);
            if at_once == 1 {
                let start = runs.start(run);
                at += requested.start.saturating_sub(start);
                end -= (start + runs.len).saturating_sub(requested.end);
            }
            while at < end {
                let len = (end - at).min(piece.len());
                let (buffer, piece) = (&mut buffer[..len * width], &mut piece[..len]);
                let reader = &self.files[placed.file].reader;
                let read = reader.read_exact_at(values + (at * width) as u64, buffer);
                read.map_err(|error| ReadError::File(error.into()))?;
                format.widen(buffer, piece);
                copy_runs(piece, at, runs.len, |run| runs.start(run), &requested, out);
                at += len;
            }
        }
        Ok(())
    }

    /// Offset of the values of a chunk in its file.
    fn start_of(&self, placed: &PlacedChunk, format: ElementType) -> Result<u64, String> {
        match &placed.values {
            Values::At(start) => Ok(*start),
            Values::InArchive { range, found } => {
                let chunk = &placed.chunk;
                found.get_or_init(|| self.locate(chunk, placed.file, range, format)).clone()
            }
        }
    }

    /// Offset of the values of a chunk that an archive holds.
    fn locate(
        &self,
        chunk: &Chunk,
        file: usize,
        range: &Range<u64>,
        format: ElementType,
    ) -> Result<u64, String> {
        let reader = self.reader(file);
        let archive = Archive::open(reader, range.clone())?;
        let tensor = StoredTensor::of(archive.objects.root()).ok_or("it is not a tensor")??;
        if tensor.format != Some(format) || tensor.num_elements() != chunk.num_elements() {
            return Err("it is not the tensor that .metadata describes".to_owned());
        }
        archive.range_of(reader, &tensor).map(|values| values.start)
    }

    fn name_error(&self, name: &str, placed: &PlacedChunk, error: ReadError) -> CheckpointError {
        match error {
            ReadError::File(error) => error,
            ReadError::Content(reason) => CheckpointError::Foreign {
                path: self.path.join(&self.files[placed.file].name),
                reason: format!("tensor {}: {}", quoted(name), quoted(&reason)),
            },
        }
    }

    fn tensor(&self, name: &str) -> Result<&PlacedTensor, CheckpointError> {
        self.tensors.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: self.path.clone(),
            tensor: quoted(name),
        })
    }
}

impl TensorSource for PlacedTensors {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    fn format(&self, name: &str) -> Result<ElementType, CheckpointError> {
        let dtype = &self.tensor(name)?.dtype;
        format_of_dtype(dtype).ok_or_else(|| CheckpointError::NotFloat {
            path: self.path.clone(),
            tensor: quoted(name),
            dtype: quoted(dtype),
        })
    }

    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let (tensor, format) = (self.tensor(name)?, self.format(name)?);
        let num_elements: usize = tensor.shape.iter().product();
        let end = first.checked_add(out.len());
        assert!(end.is_some_and(|end| end <= num_elements), "{name} has {num_elements} elements");
        for placed in &tensor.chunks {
            self.read_chunk(tensor, placed, format, first, out)
                .map_err(|error| self.name_error(name, placed, error))?;
        }
        match out.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(element) => Err(CheckpointError::NotFinite {
                path: self.path.clone(),
                tensor: quoted(name),
                element: first + element,
                value: out[element].to_string(),
            }),
        }
    }
}

/// Failure of a read.
enum ReadError {
    File(CheckpointError),
    Content(String),
}

/// Copies elements of a chunk, from its index `at` on, to where they are requested.
fn copy_runs(
    piece: &[f32],
    at: usize,
    run_len: usize,
    start: impl Fn(usize) -> usize,
    requested: &Range<usize>,
    out: &mut [f32],
) {
    let mut done = 0;
    while done < piece.len() {
        let (run, inside) = ((at + done) / run_len, (at + done) % run_len);
        let len = (run_len - inside).min(piece.len() - done);
        let index = start(run) + inside;
        let (from, to) = (index.max(requested.start), (index + len).min(requested.end));
        if from < to {
            let source = &piece[done + from - index..done + to - index];
            out[from - requested.start..to - requested.start].copy_from_slice(source);
        }
        done += len;
    }
}

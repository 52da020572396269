//! Saving of weights.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_platform::{FileAction, FileError, World, write_atomic_with};
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;

use super::{ElementType, NamedTensor, bytes, sorted};
use crate::CheckpointError;

/// Header key of the metadata; a tensor cannot have this name.
const METADATA_KEY: &str = "__metadata__";

/// Alignment of the header length, which aligns the values after it.
const ALIGNMENT_BYTES: usize = 8;

/// Replaces the file at `path` by these tensors, atomically. The metadata is written to the header;
/// Hugging Face's loaders require the entry `format = pt`. Non-finite tensors are refused, and the
/// file is left unchanged.
pub fn save(
    world: &World,
    path: &Path,
    tensors: &[NamedTensor<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let tensors = sorted(tensors);
    let outlines: Vec<_> =
        tensors.iter().map(|tensor| (tensor.name.to_owned(), tensor.shape.to_vec())).collect();
    save_each(world, path, &outlines, metadata, |take| {
        tensors.iter().try_for_each(|tensor| take(tensor.data))
    })
}

/// Streaming [`save`]: `produce` passes the elements of each tensor of `outlines` (name and shape)
/// in order.
pub fn save_each<E: From<CheckpointError>>(
    world: &World,
    path: &Path,
    outlines: &[(String, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    produce: impl FnOnce(&mut dyn FnMut(&[f32]) -> Result<(), CheckpointError>) -> Result<(), E>,
) -> Result<(), E> {
    save_each_as(world, path, ElementType::F32, outlines, metadata, produce)
}

/// [`save_each`] in another number format; numbers beyond its range are refused.
pub fn save_each_as<E: From<CheckpointError>>(
    world: &World,
    path: &Path,
    format: ElementType,
    outlines: &[(String, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    produce: impl FnOnce(&mut dyn FnMut(&[f32]) -> Result<(), CheckpointError>) -> Result<(), E>,
) -> Result<(), E> {
    let header = header(outlines, metadata, format);
    let mut failed = None;
    let written = write_atomic_with(world, path, |writer| {
        let mut buffer = Vec::with_capacity(bytes::PIECE_ELEMENTS * format.num_bytes());
        writer.write_all(&(header.len() as u64).to_le_bytes())?;
        writer.write_all(&header)?;
        let mut outlines = outlines.iter();
        let produced = produce(&mut |data| {
            let (name, shape) = outlines.next().expect("as many tensors as outlines");
            assert_eq!(data.len(), shape.iter().product::<usize>(), "tensor {name}");
            refuse_not_representable(name, data, format)?;
            bytes::for_each_piece(data, format, &mut buffer, |piece| writer.write_all(piece))
                .map_err(|error| {
                    CheckpointError::File(FileError::new(FileAction::Write, path, &error))
                })
        });
        produced.map_err(|error| {
            failed = Some(error);
            std::io::Error::other("the tensors could not be produced")
        })
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(written.map_err(CheckpointError::from)?),
    }
}

fn refuse_not_representable(
    name: &str,
    data: &[f32],
    format: ElementType,
) -> Result<(), CheckpointError> {
    let Some(element) = format.first_not_finite(data) else { return Ok(()) };
    Err(not_representable(name, data, element, format.name()))
}

/// Error of an element that has no finite value in a format.
pub(crate) fn not_representable(
    name: &str,
    data: &[f32],
    element: usize,
    format: &'static str,
) -> CheckpointError {
    let (tensor, value) = (name.to_owned(), data[element].to_string());
    if data[element].is_finite() {
        CheckpointError::TooLarge { tensor, element, value, format }
    } else {
        CheckpointError::Diverged { tensor, element, value }
    }
}

/// The JSON header, sorted; the `safetensors` library would write the metadata in random order.
fn header(
    outlines: &[(String, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    format: ElementType,
) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    if !metadata.is_empty() {
        let fields = metadata.iter().map(|(key, value)| (key.clone(), value.clone().into()));
        entries.insert(METADATA_KEY, Value::Object(fields.collect()));
    }
    let mut start = 0;
    for (name, shape) in outlines {
        assert_ne!(name, METADATA_KEY, "the format keeps this name for itself");
        let end = start + shape.iter().product::<usize>() * format.num_bytes();
        let (shape, data_offsets) = (shape.clone(), (start, end));
        let info = TensorInfo { dtype: format.dtype(), shape, data_offsets };
        let info = serde_json::to_value(info).expect("a description of a tensor is plain data");
        entries.insert(name, info);
        start = end;
    }
    let mut header = serde_json::to_vec(&entries).expect("a map by text is plain data");
    header.resize(header.len().next_multiple_of(ALIGNMENT_BYTES), b' ');

    // The reader checks the same invariant.
    let read_back: Metadata = serde_json::from_slice(&header).expect("the header is readable");
    assert_eq!(read_back.data_len(), start, "the header covers the data");
    header
}

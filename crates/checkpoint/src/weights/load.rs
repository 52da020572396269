//! Reading weights, from files that may be anything.
//!
//! Only the header is parsed at first, and every size it claims is compared with the size of the
//! file before memory is set aside for it. The `safetensors` library proves that the tensors lie
//! one after the other without gaps and that each is as long as its shape says.

use std::path::Path;

use lockstep_platform::{FileReader, World};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::{Tensor, Weights, bytes, first_not_finite};
use crate::CheckpointError;
use crate::error::quoted;

/// Length of the header's length.
const LENGTH_BYTES: u64 = 8;

/// The longest header the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Reads a file of weights. Anything but a whole file of finite f32 tensors is an error.
pub fn load(world: &World, path: &Path) -> Result<Weights, CheckpointError> {
    let file = world.files().open(path)?;
    let (header, data_start) = read_header(file.as_ref(), path)?;
    let mut weights = Weights { path: path.to_owned(), tensors: [].into(), metadata: [].into() };
    for name in header.offset_keys() {
        let info = header.info(&name).expect("the header knows its own names");
        let tensor = read_tensor(file.as_ref(), path, &name, info, data_start)?;
        weights.tensors.insert(name, tensor);
    }
    if let Some(notes) = header.metadata() {
        weights.metadata = notes.iter().map(|(key, note)| (key.clone(), note.clone())).collect();
    }
    Ok(weights)
}

/// The header and where the data begins.
fn read_header(file: &dyn FileReader, path: &Path) -> Result<(Metadata, u64), CheckpointError> {
    let damaged =
        |reason: &str| CheckpointError::Damaged { path: path.to_owned(), reason: quoted(reason) };
    let file_bytes = file.num_bytes();
    if file_bytes < LENGTH_BYTES {
        return Err(damaged(&format!("it has {file_bytes} bytes, too few for a header")));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact_at(0, &mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(damaged("it does not begin with the length of a header"));
    }
    if header_bytes > file_bytes - LENGTH_BYTES {
        return Err(damaged("it ends inside its header"));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact_at(LENGTH_BYTES, &mut header)?;
    let header: Metadata = serde_json::from_slice(&header)
        .map_err(|error| damaged(&format!("its header cannot be read: {error}")))?;

    // Sizes in a hostile header can add up to more than any integer holds, so the sum that must
    // equal the file's size is compared the other way round.
    let data_start = LENGTH_BYTES + header_bytes;
    let data_bytes = file_bytes - data_start;
    if header.data_len() as u64 != data_bytes {
        let claimed = header.data_len();
        let reason = format!("its header tells of {claimed} bytes of data, it has {data_bytes}");
        return Err(damaged(&reason));
    }
    Ok((header, data_start))
}

fn read_tensor(
    file: &dyn FileReader,
    path: &Path,
    name: &str,
    info: &TensorInfo,
    data_start: u64,
) -> Result<Tensor, CheckpointError> {
    if info.dtype != Dtype::F32 {
        return Err(CheckpointError::NotF32 {
            path: path.to_owned(),
            tensor: quoted(name),
            dtype: info.dtype.to_string(),
        });
    }
    // The header was proven: the range lies inside the file and is as long as the shape says.
    let (start, end) = info.data_offsets;
    let mut data = Vec::with_capacity((end - start) / bytes::ELEMENT_BYTES);
    let mut buffer = vec![0; bytes::PIECE_BYTES.min(end - start)];
    let mut offset = start;
    while offset < end {
        let piece = &mut buffer[..bytes::PIECE_BYTES.min(end - offset)];
        file.read_exact_at(data_start + offset as u64, piece)?;
        bytes::extend_from_bytes(&mut data, piece);
        offset += piece.len();
    }
    assert_eq!(data.len(), info.shape.iter().product::<usize>(), "the header was proven");

    if let Some(element) = first_not_finite(&data) {
        return Err(CheckpointError::NotFinite {
            path: path.to_owned(),
            tensor: quoted(name),
            element,
            value: data[element].to_string(),
        });
    }
    Ok(Tensor { shape: info.shape.clone(), data })
}

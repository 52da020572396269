//! Random access to a safetensors file.
//!
//! Only the header is read at first, and its sizes are checked against the size of the file. The
//! `safetensors` library checks that the tensors are contiguous and have the length of their
//! shapes. Elements are widened to `f32` and must be finite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileReader, World};
use safetensors::tensor::{Metadata, TensorInfo};

use super::{ElementType, bytes, first_not_finite};
use crate::CheckpointError;
use crate::error::quoted;

/// Size of the header length field.
const LENGTH_BYTES: u64 = 8;

/// Maximum header size of the format.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// An open safetensors file.
pub struct WeightsFile {
    path: PathBuf,
    reader: Box<dyn FileReader>,
    header: Metadata,
    data_start: u64,
}

impl WeightsFile {
    /// Opens a file and validates its header; an incomplete file is an error.
    pub fn open(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let reader = world.files().open(path)?;
        let (header, data_start) = read_header(reader.as_ref(), path)?;
        Ok(Self { path: path.to_owned(), reader, header, data_start })
    }

    /// Path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the tensors, in file order.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Shape of a tensor, slowest dimension first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.info(name).map(|info| info.shape.as_slice())
    }

    /// Metadata of the header.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let entries = self.header.metadata().iter().flatten();
        entries.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Number format of a tensor, if it can be widened to `f32`.
    pub fn format(&self, name: &str) -> Result<ElementType, CheckpointError> {
        let dtype = self.info(name)?.dtype;
        ElementType::from_dtype(dtype).ok_or_else(|| CheckpointError::NotFloat {
            path: self.path.clone(),
            tensor: quoted(name),
            dtype: dtype.to_string(),
        })
    }

    /// Refuses a tensor in another format.
    pub(super) fn expect_format(
        &self,
        name: &str,
        expected: ElementType,
    ) -> Result<(), CheckpointError> {
        let dtype = self.info(name)?.dtype;
        if dtype == expected.dtype() {
            return Ok(());
        }
        Err(CheckpointError::NotF32 {
            path: self.path.clone(),
            tensor: quoted(name),
            dtype: dtype.to_string(),
        })
    }

    /// Reads elements of a tensor from index `first` into `out`.
    ///
    /// # Panics
    /// If the tensor has fewer.
    pub fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let format = self.format(name)?;
        let info = self.info(name)?;
        let num_elements: usize = info.shape.iter().product();
        let end = first.checked_add(out.len());
        assert!(end.is_some_and(|end| end <= num_elements), "{name} has {num_elements} elements");
        // The header was validated: the range is inside the file and has the length of the shape.
        let start = self.data_start + info.data_offsets.0 as u64;
        let mut buffer = vec![0; bytes::PIECE_ELEMENTS.min(out.len()) * format.num_bytes()];
        let mut done = first;
        for piece in out.chunks_mut(bytes::PIECE_ELEMENTS) {
            let buffer = &mut buffer[..piece.len() * format.num_bytes()];
            self.reader.read_exact_at(start + (done * format.num_bytes()) as u64, buffer)?;
            format.widen(buffer, piece);
            if let Some(element) = first_not_finite(piece) {
                return Err(CheckpointError::NotFinite {
                    path: self.path.clone(),
                    tensor: quoted(name),
                    element: done + element,
                    value: piece[element].to_string(),
                });
            }
            done += piece.len();
        }
        Ok(())
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        self.header.info(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: self.path.clone(),
            tensor: quoted(name),
        })
    }
}

/// The header and the offset of the data.
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

    // Sizes in a hostile header can overflow, so they are compared with the difference of known
    // sizes.
    let data_start = LENGTH_BYTES + header_bytes;
    let data_bytes = file_bytes - data_start;
    if header.data_len() as u64 != data_bytes {
        let claimed = header.data_len();
        let reason = format!("its header tells of {claimed} bytes of data, it has {data_bytes}");
        return Err(damaged(&reason));
    }
    Ok((header, data_start))
}

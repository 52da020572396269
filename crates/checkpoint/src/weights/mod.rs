//! Weights: f32 tensors by name, in the safetensors format.
//!
//! The format is a length, a JSON header with the offsets of the tensors, and little-endian values.
//! Tensors and header entries are sorted by name, so equal weights give equal files. Saving and
//! loading are streamed: saving needs no second copy of the model, and ranges of tensors can be
//! read with [`WeightsFile`], or with [`Tensors`] for several files.

pub(crate) mod bytes;
mod element;
mod file;
mod hash;
mod load;
mod save;
mod source;
mod tensors;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use element::ElementType;
pub use file::WeightsFile;
pub use hash::{WeightsHasher, weights_hash};
pub use load::load;
pub(crate) use save::not_representable;
pub use save::{save, save_each, save_each_as};
pub(crate) use source::TensorSource;
pub use tensors::Tensors;

use crate::CheckpointError;

/// Default name of a weight file.
pub const FILE_NAME: &str = "model.safetensors";

/// A named tensor in memory.
#[derive(Clone, Copy, Debug)]
pub struct NamedTensor<'a> {
    /// Its name, unique in the model.
    pub name: &'a str,
    /// Shape, slowest dimension first.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: &'a [f32],
}

/// A tensor read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// Elements, row-major, all finite.
    pub data: Vec<f32>,
}

/// Contents of a weight file.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The file, for messages.
    pub path: PathBuf,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Metadata of the header.
    pub metadata: BTreeMap<String, String>,
}

impl Weights {
    /// Elements of the tensor with this name and shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<&[f32], CheckpointError> {
        let Some(tensor) = self.tensors.get(name) else {
            let (path, tensor) = (self.path.clone(), name.to_owned());
            return Err(CheckpointError::MissingTensor { path, tensor });
        };
        if tensor.shape != shape {
            return Err(CheckpointError::WrongShape {
                path: self.path.clone(),
                tensor: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_owned(),
            });
        }
        Ok(&tensor.data)
    }

    /// The tensors for [`save`] and [`weights_hash`], sorted by name.
    pub fn named(&self) -> Vec<NamedTensor<'_>> {
        let named = self.tensors.iter().map(|(name, tensor)| NamedTensor {
            name,
            shape: &tensor.shape,
            data: &tensor.data,
        });
        named.collect()
    }

    /// The [`weights_hash`] of these weights.
    pub fn hash(&self) -> String {
        weights_hash(&self.named())
    }
}

/// Sorts tensors by name and checks that names are unique and lengths fit the shapes.
fn sorted<'a>(tensors: &[NamedTensor<'a>]) -> Vec<NamedTensor<'a>> {
    let mut sorted = tensors.to_vec();
    sorted.sort_by_key(|tensor| tensor.name);
    for pair in sorted.windows(2) {
        assert_ne!(pair[0].name, pair[1].name, "two tensors have one name");
    }
    for NamedTensor { name, shape, data } in &sorted {
        let num_elements: usize = shape.iter().product();
        assert_eq!(num_elements, data.len(), "tensor {name} has shape {shape:?}");
    }
    sorted
}

/// The first element that is NaN or infinite.
fn first_not_finite(data: &[f32]) -> Option<usize> {
    data.iter().position(|value| !value.is_finite())
}

#[cfg(test)]
mod tests;

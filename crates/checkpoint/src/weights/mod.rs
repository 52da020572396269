//! Weights: f32 tensors by name, in the safetensors format.
//!
//! The format is a length, a JSON header that says where each tensor lies, and the numbers, little
//! endian. Hugging Face and PyTorch read and write it. Tensors are written in the order of their
//! names and the header is sorted too, so equal weights give equal files. Both directions work in
//! small pieces: saving needs no second copy of the model, loading only the one it returns, and
//! whoever needs a part of a tensor reads that part ([`WeightsFile`]; [`Tensors`] where a model
//! lies in several files).

pub(crate) mod bytes;
mod element;
mod file;
mod hash;
mod load;
mod save;
mod tensors;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use element::ElementType;
pub use file::WeightsFile;
pub use hash::{WeightsHasher, weights_hash};
pub use load::load;
pub use save::{save, save_each, save_each_as};
pub use tensors::Tensors;

use crate::CheckpointError;

/// The usual name of a file of weights.
pub const FILE_NAME: &str = "model.safetensors";

/// A tensor that lies in the engine's memory.
#[derive(Clone, Copy, Debug)]
pub struct NamedTensor<'a> {
    /// Its name, unique in the model.
    pub name: &'a str,
    /// Its dimensions, slowest first.
    pub shape: &'a [usize],
    /// Its elements, row-major; as many as the shape says.
    pub data: &'a [f32],
}

/// A tensor read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Its elements, row-major, all finite; as many as the shape says.
    pub data: Vec<f32>,
}

/// The content of a file of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The file, for messages.
    pub path: PathBuf,
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// What the writer noted beside them.
    pub metadata: BTreeMap<String, String>,
}

impl Weights {
    /// The elements of the tensor with this name, which must have this shape.
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

    /// The tensors as [`save`] and [`weights_hash`] take them, in the order of their names.
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

/// Sorts tensors by name and proves what every user of them relies on.
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

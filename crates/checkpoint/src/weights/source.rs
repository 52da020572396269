//! Common interface of files and folders with tensors, whatever their format.

use std::path::Path;

use super::{ElementType, WeightsFile};
use crate::CheckpointError;

/// Tensors by their stored names, read by element.
pub(crate) trait TensorSource: Send + Sync {
    /// File or folder, for messages.
    fn path(&self) -> &Path;

    /// Names of the tensors.
    fn names(&self) -> Vec<String>;

    /// Shape of a tensor, slowest dimension first.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Number format of a tensor, if it can be widened to `f32`.
    fn format(&self, name: &str) -> Result<ElementType, CheckpointError>;

    /// Reads elements of a tensor from index `first` into `out`; all of them are finite.
    ///
    /// # Panics
    /// If the tensor has fewer.
    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError>;
}

impl TensorSource for WeightsFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn names(&self) -> Vec<String> {
        self.names()
    }

    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shape(name)
    }

    fn format(&self, name: &str) -> Result<ElementType, CheckpointError> {
        self.format(name)
    }

    fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        self.read(name, first, out)
    }
}

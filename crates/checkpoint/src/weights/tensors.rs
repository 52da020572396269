//! Tensors of a model in one or several files, by the names of the engine.
//!
//! A file may use other names than the engine; both are kept, for messages and for lookup.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_platform::World;

use super::{ElementType, TensorSource, WeightsFile};
use crate::CheckpointError;
use crate::error::quoted;

/// A position embedding may have more rows than a model with a shorter context needs.
const FIRST_ROWS_SUFFICE: &str = "transformer.wpe.weight";

/// Tensors of a model.
pub struct Tensors {
    /// File or folder, for messages.
    root: PathBuf,
    files: Vec<Box<dyn TensorSource>>,
    places: BTreeMap<String, Place>,
}

/// File and stored name of a tensor.
struct Place {
    file: usize,
    stored_name: String,
}

impl Tensors {
    /// The tensors of one file, by their stored names.
    pub fn open(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let mut tensors = Self::empty(path);
        let file = WeightsFile::open(world, path)?;
        tensors.add(file, |name| Some(name.to_owned()))?;
        Ok(tensors)
    }

    pub(crate) fn empty(root: &Path) -> Self {
        Self { root: root.to_owned(), files: Vec::new(), places: BTreeMap::new() }
    }

    /// Adds the tensors of a file; `name_of` maps a stored name to the engine's, or to none for one
    /// that is left out, such as a buffer.
    pub(crate) fn add(
        &mut self,
        file: impl TensorSource + 'static,
        name_of: impl Fn(&str) -> Option<String>,
    ) -> Result<(), CheckpointError> {
        for stored_name in file.names() {
            let Some(name) = name_of(&stored_name) else { continue };
            let place = Place { file: self.files.len(), stored_name: stored_name.clone() };
            if let Some(first) = self.places.insert(name, place) {
                return Err(CheckpointError::DuplicateTensor {
                    path: file.path().to_owned(),
                    tensor: quoted(&stored_name),
                    other: quoted(&first.stored_name),
                });
            }
        }
        self.files.push(Box::new(file));
        Ok(())
    }

    /// Removes a tensor.
    pub(crate) fn remove(&mut self, name: &str) {
        self.places.remove(name);
    }

    /// Engine names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Shape of a tensor, slowest dimension first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let place = self.places.get(name)?;
        self.files[place.file].shape(&place.stored_name)
    }

    /// Number format of a stored tensor.
    pub fn format(&self, name: &str) -> Result<ElementType, CheckpointError> {
        let (file, stored_name) = self.place(name)?;
        file.format(stored_name)
    }

    /// Checks that the tensors are exactly those of a model with these names and shapes, in number
    /// formats that can be widened.
    pub fn prove(&self, needed: &BTreeMap<String, Vec<usize>>) -> Result<(), CheckpointError> {
        for (name, expected) in needed {
            let (file, stored_name) = self.place(name)?;
            let found = file.shape(stored_name).expect("it was found there");
            let fits = match (found.split_first(), expected.split_first()) {
                (Some((rows, columns)), Some((few, same))) if name == FIRST_ROWS_SUFFICE => {
                    rows >= few && columns == same
                }
                _ => found == expected,
            };
            if !fits {
                return Err(CheckpointError::WrongShape {
                    path: file.path().to_owned(),
                    tensor: quoted(stored_name),
                    found: found.to_owned(),
                    expected: expected.clone(),
                });
            }
            file.format(stored_name)?;
        }
        match self.places.iter().find(|(name, _)| !needed.contains_key(*name)) {
            None => Ok(()),
            Some((_, extra)) => Err(CheckpointError::ExtraTensor {
                path: self.files[extra.file].path().to_owned(),
                tensor: quoted(&extra.stored_name),
            }),
        }
    }

    /// Reads elements of a tensor from index `first` into `out`.
    ///
    /// # Panics
    /// If the tensor has fewer, which [`Self::prove`] rules out.
    pub fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let (file, stored_name) = self.place(name)?;
        file.read(stored_name, first, out)
    }

    fn place(&self, name: &str) -> Result<(&dyn TensorSource, &str), CheckpointError> {
        let place = self.places.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: self.root.clone(),
            tensor: name.to_owned(),
        })?;
        Ok((self.files[place.file].as_ref(), &place.stored_name))
    }
}

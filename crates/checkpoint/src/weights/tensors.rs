//! The tensors of one model, in one file or in several, by the names that the engine uses.
//!
//! A file may call a tensor otherwise than the engine does; the set keeps both names, so that
//! messages speak of the file's and readers ask by the engine's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_platform::World;

use super::{ElementType, WeightsFile};
use crate::CheckpointError;
use crate::error::quoted;

/// A table of positions may have more rows than a model that looks back less far needs.
const FIRST_ROWS_SUFFICE: &str = "transformer.wpe.weight";

/// See the module's text.
pub struct Tensors {
    /// The file or folder that the set stands for, for messages.
    root: PathBuf,
    files: Vec<WeightsFile>,
    places: BTreeMap<String, Place>,
}

/// Where a tensor lies.
struct Place {
    file: usize,
    stored_name: String,
}

impl Tensors {
    /// The tensors of one file, by the names it gives them.
    pub fn open(world: &World, path: &Path) -> Result<Self, CheckpointError> {
        let mut tensors = Self::empty(path);
        let file = WeightsFile::open(world, path)?;
        tensors.add(file, |name| Some(name.to_owned()))?;
        Ok(tensors)
    }

    pub(crate) fn empty(root: &Path) -> Self {
        Self { root: root.to_owned(), files: Vec::new(), places: BTreeMap::new() }
    }

    /// Adds the tensors of a file; `name_of` gives a tensor's name in the engine, or nothing for
    /// one that is no weight.
    pub(crate) fn add(
        &mut self,
        file: WeightsFile,
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
        self.files.push(file);
        Ok(())
    }

    /// Leaves a tensor out.
    pub(crate) fn forget(&mut self, name: &str) {
        self.places.remove(name);
    }

    /// The names in the engine, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The dimensions of a tensor, slowest first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let place = self.places.get(name)?;
        self.files[place.file].shape(&place.stored_name)
    }

    /// The number format that a tensor is stored in.
    pub fn format(&self, name: &str) -> Result<ElementType, CheckpointError> {
        let (file, stored_name) = self.place(name)?;
        file.format(stored_name)
    }

    /// Proves that these are the tensors of a model with these names and shapes: none missing,
    /// none too many, each with its shape and in a number format that can be widened.
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

    /// The elements of a tensor from number `first` on, as many as there is room for.
    ///
    /// # Panics
    /// When the tensor has fewer, which [`Self::prove`] rules out.
    pub fn read(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let (file, stored_name) = self.place(name)?;
        file.read(stored_name, first, out)
    }

    fn place(&self, name: &str) -> Result<(&WeightsFile, &str), CheckpointError> {
        let place = self.places.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            path: self.root.clone(),
            tensor: name.to_owned(),
        })?;
        Ok((&self.files[place.file], &place.stored_name))
    }
}

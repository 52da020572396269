//! Temporary folder that is removed on drop.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{FileError, World};

/// A new, empty folder under the host's temporary folder, removed on drop.
pub struct ScratchDir {
    path: PathBuf,
    world: World,
}

impl ScratchDir {
    /// Creates the folder; the label identifies it if a crash leaves it behind.
    pub fn new(world: &World, label: &str) -> Result<Self, FileError> {
        let name = format!("lockstep-{label}-{:016x}", world.entropy().u64());
        let path = world.host().temp_dir().join(name);
        world.files().create_dir_all(&path)?;
        Ok(Self { path, world: Arc::clone(world) })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // A failure leaves a stray temporary folder only.
        let _ = self.world.files().remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_scratch_folders_are_apart_and_go_away() {
        let world = crate::real();
        let first = ScratchDir::new(&world, "twin").unwrap();
        let second = ScratchDir::new(&world, "twin").unwrap();
        assert_ne!(first.path(), second.path());

        let path = first.path().to_owned();
        world.files().write_atomic(&path.join("file"), b"x").unwrap();
        drop(first);
        assert_eq!(world.files().metadata(&path), None);
    }
}

//! Atomic creation of folders.
//!
//! Files are written into a hidden folder next to the target, which is renamed at the end. Existing
//! folders are never overwritten.

use std::path::{Path, PathBuf};

use lockstep_platform::{FileAction, FileError, World, write_atomic_with};

use crate::CheckpointError;

/// Bytes per copy.
const PIECE_BYTES: usize = 1 << 20;

/// Creates `folder`; `fill` writes its contents into a temporary path.
pub fn create<T, E: From<CheckpointError>>(
    world: &World,
    folder: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    refuse_existing(world, folder)?;
    let partial = partial_path(world, folder)?;
    let done = (|| {
        world.files().create_dir_all(&partial).map_err(CheckpointError::from)?;
        let made = fill(&partial)?;
        // Another process may have created the folder in the meantime.
        refuse_existing(world, folder)?;
        world.files().rename(&partial, folder).map_err(CheckpointError::from)?;
        Ok(made)
    })();
    if done.is_err() {
        // The first error is the one worth reporting.
        let _ = world.files().remove_dir_all(&partial);
    }
    done
}

/// Refuses an existing folder before any work is done.
pub fn refuse_existing(world: &World, folder: &Path) -> Result<(), CheckpointError> {
    match world.files().metadata(folder) {
        None => Ok(()),
        Some(_) => Err(CheckpointError::FolderExists { path: folder.to_owned() }),
    }
}

/// Copies a file.
pub fn copy(world: &World, file: &Path, target: &Path) -> Result<(), CheckpointError> {
    let reader = world.files().open(file)?;
    let num_bytes = reader.num_bytes();
    write_atomic_with(world, target, |writer| {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < num_bytes {
            let len = (num_bytes - done).min(PIECE_BYTES as u64);
            let piece = &mut buffer[..len as usize];
            reader.read_exact_at(done, piece)?;
            writer.write_all(piece)?;
            done += len;
        }
        Ok(())
    })?;
    Ok(())
}

fn partial_path(world: &World, folder: &Path) -> Result<PathBuf, CheckpointError> {
    let Some(name) = folder.file_name() else {
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it names no folder");
        return Err(FileError::new(FileAction::Create, folder, &error).into());
    };
    let unique = world.entropy().u64();
    Ok(folder.with_file_name(format!(".{}.{unique:016x}.partial", name.to_string_lossy())))
}

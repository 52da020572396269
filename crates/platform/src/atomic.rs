//! Atomic file replacement.
//!
//! The new content is written to a temporary file beside the target, synced, and renamed. A crash
//! before the rename leaves the old file and at most a hidden `.partial` file; a crash after it
//! leaves the new file, which was durable before it became visible. The sync must precede the
//! rename: otherwise many file systems keep the new name and lose the bytes.

use std::io;
use std::path::{Path, PathBuf};

use crate::{FileAction, FileError, FileWriter, Files, World};

/// Replaces the file at `path` by the output of `fill`.
///
/// For content too large for memory; [`Files::write_atomic`] is the short form. If `fill` or the
/// disk fails, the old file is untouched and the temporary one is removed.
pub fn write_atomic_with(
    world: &World,
    path: &Path,
    fill: impl FnOnce(&mut dyn FileWriter) -> io::Result<()>,
) -> Result<(), FileError> {
    replace(world.files(), path, world.entropy().u64(), fill)
}

/// As [`write_atomic_with`], for a disk that is not part of a world yet; `unique` separates the
/// temporary files of two writers.
pub(crate) fn replace(
    files: &dyn Files,
    path: &Path,
    unique: u64,
    fill: impl FnOnce(&mut dyn FileWriter) -> io::Result<()>,
) -> Result<(), FileError> {
    let partial = partial_path(path, unique)?;
    let result = write_synced(files, &partial, fill)
        .and_then(|()| files.rename(&partial, path).map_err(io::Error::from));
    result.map_err(|error| {
        // Report the first error; the partial file may be gone already.
        let _ = files.remove_file(&partial);
        // Name the target in the error, not the temporary file.
        FileError::new(FileAction::Write, path, &error)
    })
}

fn write_synced(
    files: &dyn Files,
    partial: &Path,
    fill: impl FnOnce(&mut dyn FileWriter) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = files.create(partial)?;
    fill(writer.as_mut())?;
    writer.flush()?;
    Ok(writer.sync()?)
}

fn partial_path(path: &Path, unique: u64) -> Result<PathBuf, FileError> {
    let Some(name) = path.file_name() else {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "it does not name a file");
        return Err(FileError::new(FileAction::Write, path, &error));
    };
    let name = name.to_string_lossy();
    Ok(path.with_file_name(format!(".{name}.{unique:016x}.partial")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScratchDir;

    #[test]
    fn a_failing_writer_leaves_the_old_file_and_no_litter() {
        let world = crate::real();
        let scratch = ScratchDir::new(&world, "atomic").unwrap();
        let path = scratch.path().join("weights");
        world.files().write_atomic(&path, b"old").unwrap();

        let error = write_atomic_with(&world, &path, |writer| {
            writer.write_all(b"half of the n")?;
            Err(io::Error::other("the model went away"))
        })
        .unwrap_err();

        let expected = format!("cannot write {}: the model went away", path.display());
        assert_eq!(error.to_string(), expected);
        assert_eq!(world.files().read(&path).unwrap(), b"old");
        assert_eq!(world.files().list(scratch.path()).unwrap(), [path]);
    }

    #[test]
    fn a_rename_that_fails_leaves_no_litter() {
        let world = crate::real();
        let scratch = ScratchDir::new(&world, "atomic").unwrap();
        let path = scratch.path().join("taken");
        world.files().create_dir_all(&path.join("by a folder")).unwrap();

        assert!(world.files().write_atomic(&path, b"bytes").is_err());
        assert_eq!(world.files().list(scratch.path()).unwrap(), [path]);
    }

    #[test]
    fn a_path_without_a_file_name_is_refused() {
        let world = crate::real();
        let error = world.files().write_atomic(Path::new("/"), b"").unwrap_err();
        assert_eq!(error.to_string(), "cannot write /: it does not name a file");
    }
}

//! Files of the operating system.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where files are touched"
)]

use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::entropy::RealEntropy;
use super::map::RealMap;
use super::write_behind::WriteBehind;
use crate::{
    Entropy, FileAction, FileError, FileKind, FileMap, FileReader, FileWriter, Files, Paged, atomic,
};

pub(crate) struct RealFiles;

impl Files for RealFiles {
    fn read(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        fs::read(path).map_err(failed(FileAction::Read, path))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn FileReader>, FileError> {
        let open = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
            }
            Ok(RealReader { file, path: path.to_owned(), num_bytes: metadata.len() })
        };
        let reader = open().map_err(failed(FileAction::Read, path))?;
        Ok(Box::new(reader))
    }

    fn map(&self, path: &Path) -> Result<Box<dyn FileMap>, FileError> {
        let map = File::open(path).and_then(|file| RealMap::new(&file));
        Ok(Box::new(map.map_err(failed(FileAction::Read, path))?))
    }

    fn paged(&self, folder: &Path, lens: &[usize]) -> Result<Vec<Box<dyn Paged>>, FileError> {
        super::paged::create(folder, lens)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        atomic::replace(self, path, RealEntropy.u64(), |writer| writer.write_all(bytes))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError> {
        let file = File::create(path).map_err(failed(FileAction::Create, path))?;
        Ok(Box::new(RealWriter::new(file, path)))
    }

    fn append(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError> {
        let open = File::options().append(true).create(true).open(path);
        let file = open.map_err(failed(FileAction::Write, path))?;
        Ok(Box::new(RealWriter::new(file, path)))
    }

    fn create_dir_all(&self, path: &Path) -> Result<(), FileError> {
        // A name is durable once its parent folder is synced, so sync every parent that gets a new
        // entry.
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        let create = || {
            fs::create_dir_all(path)?;
            missing.iter().try_for_each(|folder| sync_folder(&File::open(folder_of(folder))?))
        };
        create().map_err(failed(FileAction::Create, path))
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>, FileError> {
        let entries = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
        };
        let mut paths = entries().map_err(failed(FileAction::List, path))?;
        paths.sort();
        Ok(paths)
    }

    fn metadata(&self, path: &Path) -> Option<FileKind> {
        let metadata = fs::metadata(path).ok()?;
        let file = FileKind::File { bytes: metadata.len() };
        Some(if metadata.is_dir() { FileKind::Directory } else { file })
    }

    fn is_open_to_others(&self, path: &Path) -> Result<bool, FileError> {
        const OTHERS: u32 = 0o077;
        let metadata = fs::metadata(path).map_err(failed(FileAction::Read, path))?;
        Ok(metadata.mode() & OTHERS != 0)
    }

    fn rename(&self, source: &Path, target: &Path) -> Result<(), FileError> {
        let rename = || {
            // Open the folder first: a failure then leaves everything unchanged.
            let folder = File::open(folder_of(target))?;
            fs::rename(source, target)?;
            sync_folder(&folder)
        };
        rename().map_err(failed(FileAction::Rename, source))
    }

    fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        fs::remove_file(path).map_err(failed(FileAction::Remove, path))
    }

    fn remove_dir_all(&self, path: &Path) -> Result<(), FileError> {
        fs::remove_dir_all(path).map_err(failed(FileAction::Remove, path))
    }
}

struct RealWriter {
    file: File,
    path: PathBuf,
    behind: WriteBehind,
}

impl RealWriter {
    fn new(file: File, path: &Path) -> Self {
        Self { file, path: path.to_owned(), behind: WriteBehind::default() }
    }
}

impl Write for RealWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let num_bytes = self.file.write(bytes)?;
        self.behind.wrote(&self.file, num_bytes);
        Ok(num_bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let num_bytes = self.file.write_vectored(pieces)?;
        self.behind.wrote(&self.file, num_bytes);
        Ok(num_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl FileWriter for RealWriter {
    fn sync(&mut self) -> Result<(), FileError> {
        self.file.sync_all().map_err(failed(FileAction::Write, &self.path))
    }
}

struct RealReader {
    file: File,
    path: PathBuf,
    num_bytes: u64,
}

impl FileReader for RealReader {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FileError> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let end = offset.saturating_add(buffer.len() as u64);
                let reason = format!("it ends before byte {end}");
                io::Error::new(io::ErrorKind::UnexpectedEof, reason)
            }
            _ => error,
        })
        .map_err(failed(FileAction::Read, &self.path))
    }
}

fn failed(action: FileAction, path: &Path) -> impl Fn(io::Error) -> FileError {
    move |error| FileError::new(action, path, &error)
}

/// Folder of a path.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes a new name in a folder durable. Some file systems do not support syncing folders and say
/// so.
fn sync_folder(folder: &File) -> io::Result<()> {
    match folder.sync_all() {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScratchDir;

    #[test]
    fn a_name_without_a_folder_lies_in_the_current_one() {
        assert_eq!(folder_of(Path::new("file")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/file")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/file")), Path::new("/"));
    }

    #[test]
    fn a_file_that_others_may_read_or_change_is_open_to_them() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = ScratchDir::new(&crate::real(), "private").unwrap();
        let path = scratch.path().join("file");
        RealFiles.write_atomic(&path, b"secret").unwrap();
        for (mode, is_open) in [(0o600, false), (0o400, false), (0o640, true), (0o602, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(RealFiles.is_open_to_others(&path), Ok(is_open), "{mode:o}");
        }
        assert!(RealFiles.is_open_to_others(&scratch.path().join("none")).is_err());
    }

    #[test]
    fn an_atomic_write_replaces_a_link_and_not_what_it_points_to() {
        let world = crate::real();
        let scratch = ScratchDir::new(&world, "link").unwrap();
        let (kept, link) = (scratch.path().join("kept"), scratch.path().join("link"));
        world.files().write_atomic(&kept, b"kept").unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();

        world.files().write_atomic(&link, b"new").unwrap();
        assert_eq!(world.files().read(&kept).unwrap(), b"kept");
        assert_eq!(world.files().read(&link).unwrap(), b"new");
    }

    #[test]
    fn a_full_disk_has_its_own_error_kind() {
        let full = Path::new("/dev/full");
        if RealFiles.metadata(full).is_none() {
            return;
        }
        let mut writer = RealFiles.append(full).unwrap();
        let error = writer.write_all(b"bytes").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}

//! Files of the operating system.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where files are touched"
)]

use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::entropy::RealEntropy;
use super::map::RealMap;
use super::write_behind::WriteBehind;
use crate::{
    Entropy, FileAction, FileError, FileKind, FileMap, FileReader, FileWriter, Files, InUse,
    MAX_PRIVATE_BYTES, Paged, atomic,
};

/// Attempts to lock a file, and the pause between two of them.
const NUM_LOCK_ATTEMPTS: usize = 50;
const LOCK_RETRY: Duration = Duration::from_millis(1);

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

    fn modified(&self, path: &Path) -> Option<Duration> {
        let modified = fs::metadata(path).ok()?.modified().ok()?;
        modified.duration_since(SystemTime::UNIX_EPOCH).ok()
    }

    fn mark_in_use(&self, path: &Path) -> Result<Box<dyn InUse>, FileError> {
        let mark = || {
            let file = File::open(path)?;
            for _ in 0..NUM_LOCK_ATTEMPTS {
                // A reader that asks holds the lock for a moment.
                match file.try_lock() {
                    Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY),
                    Err(fs::TryLockError::Error(error)) => return Err(error),
                    Ok(()) => return Ok(Lock { _file: file }),
                }
            }
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another process uses it"))
        };
        Ok(Box::new(mark().map_err(failed(FileAction::Write, path))?))
    }

    fn is_in_use(&self, path: &Path) -> bool {
        let Ok(file) = File::open(path) else { return false };
        // Readers share the lock, so none takes another one for a user of the file.
        matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
    }

    fn is_open_to_others(&self, path: &Path) -> Result<bool, FileError> {
        const OTHERS: u32 = 0o077;
        let metadata = fs::metadata(path).map_err(failed(FileAction::Read, path))?;
        Ok(metadata.mode() & OTHERS != 0)
    }

    fn read_or_create_private(&self, path: &Path, bytes: &[u8]) -> Result<Vec<u8>, FileError> {
        let folder = folder_of(path);
        let prepare = || {
            match fs::DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created?,
            }
            // A link could lead into a folder that others control.
            check_private(&fs::symlink_metadata(folder)?, folder)
        };
        prepare().map_err(failed(FileAction::Create, folder))?;
        if fs::symlink_metadata(path).is_err() {
            create_private(path, bytes).map_err(failed(FileAction::Create, path))?;
        }
        let read = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            check_private(&metadata, path)?;
            if metadata.len() > MAX_PRIVATE_BYTES {
                let reason = format!("it is larger than {MAX_PRIVATE_BYTES} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            let mut content = Vec::new();
            file.take(MAX_PRIVATE_BYTES).read_to_end(&mut content)?;
            Ok(content)
        };
        read().map_err(failed(FileAction::Read, path))
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

/// File with an advisory lock, which the kernel releases with the process.
struct Lock {
    _file: File,
}

impl InUse for Lock {}

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

/// Creates a file with its content unless it exists: written under another name first, so that no
/// reader finds a part of it.
fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let written = folder_of(path).join(format!(".{name}.{:016x}", RealEntropy.u64()));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&written)?;
    let linked = file.write_all(bytes).and_then(|()| fs::hard_link(&written, path));
    fs::remove_file(&written)?;
    match linked {
        // Another process was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// Refuses a file or folder that another user owns or may access.
fn check_private(metadata: &fs::Metadata, path: &Path) -> io::Result<()> {
    const OTHERS: u32 = 0o077;
    let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.is_symlink() {
        return refuse("it belongs to another user".to_owned());
    }
    if metadata.mode() & OTHERS != 0 {
        let path = path.display();
        return refuse(format!("other users can access it; try chmod go= {path}"));
    }
    Ok(())
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
    fn a_file_is_in_use_as_long_as_its_mark() {
        let world = crate::real();
        let scratch = ScratchDir::new(&world, "mark").unwrap();
        let path = scratch.path().join("file");
        assert!(!RealFiles.is_in_use(&path) && RealFiles.modified(&path).is_none());
        RealFiles.write_atomic(&path, b"x").unwrap();
        assert!(!RealFiles.is_in_use(&path));
        let mark = RealFiles.mark_in_use(&path).unwrap();
        assert!(RealFiles.is_in_use(&path));
        let error = RealFiles.mark_in_use(&path).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(mark);
        assert!(!RealFiles.is_in_use(&path));
        // Clocks of files may be coarse by a few milliseconds.
        let modified = RealFiles.modified(&path).unwrap();
        assert!(modified <= world.clock().wall() + Duration::from_secs(1));
    }

    #[test]
    fn one_of_many_writers_creates_a_private_file_and_all_read_it() {
        use std::os::unix::fs::PermissionsExt;
        use std::sync::{Arc, Mutex};
        let world = crate::real();
        let scratch = ScratchDir::new(&world, "private").unwrap();
        let path = scratch.path().join("own").join("secret");
        let contents = Arc::new(Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..8_u8)
            .map(|index| {
                let (path, contents) = (path.clone(), Arc::clone(&contents));
                let body = Box::new(move || {
                    let content = RealFiles.read_or_create_private(&path, &[index; 32]).unwrap();
                    contents.lock().unwrap().push(content);
                });
                world.threads().spawn("writer", body).unwrap()
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let contents = contents.lock().unwrap();
        assert_eq!(contents.len(), 8);
        assert!(contents.iter().all(|content| *content == contents[0] && content.len() == 32));
        let folder = path.parent().unwrap();
        assert_eq!(
            world.files().list(folder).unwrap(),
            std::slice::from_ref(&path),
            "no temporary file is left"
        );
        for (changed, mode) in [(folder, 0o700), (&path, 0o600)] {
            assert_eq!(fs::metadata(changed).unwrap().mode() & 0o777, mode);
            fs::set_permissions(changed, fs::Permissions::from_mode(mode | 0o040)).unwrap();
            let error = RealFiles.read_or_create_private(&path, b"").unwrap_err();
            assert!(error.to_string().contains("; try chmod go= "), "{error}");
            fs::set_permissions(changed, fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(RealFiles.read_or_create_private(&path, b"").unwrap(), contents[0]);
    }

    #[test]
    fn a_private_file_is_bounded_and_not_behind_a_linked_folder() {
        let world = crate::real();
        let scratch = ScratchDir::new(&world, "bounds").unwrap();
        let path = scratch.path().join("own").join("secret");
        let most = usize::try_from(MAX_PRIVATE_BYTES).unwrap();
        RealFiles.read_or_create_private(&path, &vec![7; most + 1]).unwrap_err();
        RealFiles.remove_file(&path).unwrap();
        assert_eq!(RealFiles.read_or_create_private(&path, &vec![7; most]).unwrap().len(), most);
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(path.parent().unwrap(), &link).unwrap();
        let error = RealFiles.read_or_create_private(&link.join("secret"), b"").unwrap_err();
        assert!(error.to_string().ends_with("it belongs to another user"), "{error}");
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

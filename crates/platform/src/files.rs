//! Files and folders, whole or open, with errors that name the path.
//!
//! Small files are read and written whole; large ones are opened and accessed in parts, or mapped
//! and copied from. A map lends no reference into the file, so a simulated disk can stand behind it
//! and tear writes, fill up or fail under production code.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::file_error::{FileAction, FileError};
use crate::paged::{InMemory, Paged};

/// Largest private file, in bytes.
pub const MAX_PRIVATE_BYTES: u64 = 4096;

/// A disk.
pub trait Files: Send + Sync {
    /// Reads a whole file.
    fn read(&self, path: &Path) -> Result<Vec<u8>, FileError>;

    /// Reads a whole text file; invalid UTF-8 is an error with its position.
    fn read_to_string(&self, path: &Path) -> Result<String, FileError> {
        String::from_utf8(self.read(path)?).map_err(|error| {
            let byte = error.utf8_error().valid_up_to();
            let reason = format!("not UTF-8 text from byte {byte} on");
            let error = io::Error::new(io::ErrorKind::InvalidData, reason);
            FileError::new(FileAction::Read, path, &error)
        })
    }

    /// Opens a file for reading at any offset. The handle stays on the same file even if the path
    /// is replaced.
    fn open(&self, path: &Path) -> Result<Box<dyn FileReader>, FileError>;

    /// Maps a file for random reads; the page cache holds what is used. Only for immutable files:
    /// truncating a mapped file kills the process. A disk without maps reads the file whole.
    fn map(&self, path: &Path) -> Result<Box<dyn FileMap>, FileError> {
        Ok(Box::new(WholeFile(self.read(path)?)))
    }

    /// Creates zeroed arrays of these lengths in an unnamed file of a folder; [`crate::paged`]
    /// describes their use. A disk without maps keeps them in memory.
    fn paged(&self, folder: &Path, lens: &[usize]) -> Result<Vec<Box<dyn Paged>>, FileError> {
        match self.metadata(folder) {
            Some(FileKind::Directory) => {}
            _ => return Err(FileError::new(FileAction::Create, folder, &no_folder())),
        }
        Ok(lens.iter().map(|&len| Box::new(InMemory(vec![0.0; len])) as Box<dyn Paged>).collect())
    }

    /// Replaces a file atomically: temporary name, write, sync, rename, sync of the folder. After
    /// any failure or crash the path holds either the old or the new content.
    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError>;

    /// Creates or truncates a file and opens it for writing, unbuffered: written bytes survive the
    /// process, and the machine after [`FileWriter::sync`].
    fn create(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError>;

    /// Opens a file for appending, unbuffered; creates it if it is missing.
    fn append(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError>;

    /// Creates a folder and its parents, durable on return; it may exist already.
    fn create_dir_all(&self, path: &Path) -> Result<(), FileError>;

    /// Entries of a folder, sorted by path.
    fn list(&self, path: &Path) -> Result<Vec<PathBuf>, FileError>;

    /// Kind of a path; `None` if it is missing or inaccessible.
    fn metadata(&self, path: &Path) -> Option<FileKind>;

    /// Time of the last change of a file, since the UNIX epoch; `None` if it is unknown.
    fn modified(&self, path: &Path) -> Option<Duration>;

    /// Marks a file as in use until the handle is dropped or the process ends, however it ends.
    /// Another process that has marked it is an error of kind [`io::ErrorKind::WouldBlock`].
    fn mark_in_use(&self, path: &Path) -> Result<Box<dyn InUse>, FileError>;

    /// Whether a process has marked a file as in use; false if that cannot be known.
    fn is_in_use(&self, path: &Path) -> bool;

    /// Whether users other than the owner (and root) may read or change a file.
    fn is_open_to_others(&self, path: &Path) -> Result<bool, FileError>;

    /// Content of a file that only this user can access. A missing file is created with `bytes` as
    /// its content, and so is its folder; of several processes that do so at once, one creates it
    /// and all return the same content. Refuses a file or folder that belongs to another user or
    /// that others may access, and a file of more than [`MAX_PRIVATE_BYTES`].
    fn read_or_create_private(&self, path: &Path, bytes: &[u8]) -> Result<Vec<u8>, FileError>;

    /// Moves a file or folder, replacing a file at the target; durable on return.
    fn rename(&self, source: &Path, target: &Path) -> Result<(), FileError>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<(), FileError>;

    /// Removes a folder with its content.
    fn remove_dir_all(&self, path: &Path) -> Result<(), FileError>;
}

/// Mark of a file in use; it ends with the handle.
pub trait InUse: Send {}

/// A file open for writing.
pub trait FileWriter: io::Write + Send {
    /// Returns once all written bytes survive a power failure.
    fn sync(&mut self) -> Result<(), FileError>;
}

/// A file open for reading at any offset.
pub trait FileReader: Send + Sync {
    /// Size of the file when it was opened.
    fn num_bytes(&self) -> u64;
    /// Fills the buffer from an offset; a shorter file is an error.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FileError>;
}

/// A mapped file, read by copying.
pub trait FileMap: Send + Sync {
    /// Size of the file when it was mapped.
    fn num_bytes(&self) -> u64;
    /// Fills the buffer from an offset; the range must lie in the file.
    fn copy_to(&self, offset: u64, buffer: &mut [u8]);
}

fn no_folder() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such folder")
}

/// Stand-in for a map, on a disk without maps.
struct WholeFile(Vec<u8>);

impl FileMap for WholeFile {
    fn num_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn copy_to(&self, offset: u64, buffer: &mut [u8]) {
        let start = usize::try_from(offset).expect("the offset lies in the file");
        buffer.copy_from_slice(&self.0[start..][..buffer.len()]);
    }
}

/// Kind of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file.
    File {
        /// Size in bytes.
        bytes: u64,
    },
    /// A folder.
    Directory,
}

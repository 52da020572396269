//! Files and folders, whole or open, with errors that name the path.
//!
//! Small files are read and written whole; large ones are opened and read or written piece by
//! piece, or mapped and copied from at random. A map lends no reference into the file, so a
//! simulated disk can stand behind it, tear writes, fill up or vanish under the same code that
//! runs in production.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::paged::Whole;
use crate::{Paged, reason};

/// A disk.
pub trait Files: Send + Sync {
    /// The whole content of a file.
    fn read(&self, path: &Path) -> Result<Vec<u8>, FileError>;

    /// The whole content of a text file; bytes that are not UTF-8 are an error that says where.
    fn read_to_string(&self, path: &Path) -> Result<String, FileError> {
        String::from_utf8(self.read(path)?).map_err(|error| {
            let byte = error.utf8_error().valid_up_to();
            let reason = format!("not UTF-8 text from byte {byte} on");
            let error = io::Error::new(io::ErrorKind::InvalidData, reason);
            FileError::new(FileAction::Read, path, &error)
        })
    }

    /// Opens a file to read parts of it. The handle keeps showing the same file even when the
    /// path is given to another one meanwhile.
    fn open(&self, path: &Path) -> Result<Box<dyn FileReader>, FileError>;

    /// Maps a file to copy parts of it at random; the system keeps in memory what is used. For
    /// files that nobody changes any more: one that is cut short under its map takes the process
    /// down with it. A disk without maps reads the file whole.
    fn map(&self, path: &Path) -> Result<Box<dyn FileMap>, FileError> {
        Ok(Box::new(WholeFile(self.read(path)?)))
    }

    /// Zeros in a file of a folder, without a name, as stretches of these lengths that are brought
    /// into memory piece by piece; see [`crate::paged`]. A disk without maps has them in memory.
    fn paged(&self, folder: &Path, lens: &[usize]) -> Result<Vec<Box<dyn Paged>>, FileError> {
        match self.metadata(folder) {
            Some(FileKind::Directory) => {}
            _ => return Err(FileError::new(FileAction::Create, folder, &no_folder())),
        }
        Ok(lens.iter().map(|&len| Box::new(Whole(vec![0.0; len])) as Box<dyn Paged>).collect())
    }

    /// Replaces a file by one with these bytes: temporary name, write, sync, rename, sync of the
    /// folder. After any failure or crash the path holds the old content or the new, whole.
    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError>;

    /// Creates a file, or empties it, and opens it for writing. Nothing is buffered: what was
    /// written survives the process, and survives the machine after [`FileWriter::sync`].
    fn create(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError>;

    /// Opens a file for writing at its end, creating it when missing. Not buffered either.
    fn append(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError>;

    /// Creates a folder and its parents, durable on return; an existing folder is fine.
    fn create_dir_all(&self, path: &Path) -> Result<(), FileError>;

    /// The paths of a folder's entries, sorted.
    fn list(&self, path: &Path) -> Result<Vec<PathBuf>, FileError>;

    /// What lies at a path; `None` when nothing does or it may not be asked.
    fn metadata(&self, path: &Path) -> Option<FileKind>;

    /// Whether users other than its owner (and the system's) may read or change a file.
    fn is_open_to_others(&self, path: &Path) -> Result<bool, FileError>;

    /// Moves a file or folder, replacing a file at the target; durable on return.
    fn rename(&self, source: &Path, target: &Path) -> Result<(), FileError>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<(), FileError>;

    /// Removes a folder with everything in it.
    fn remove_dir_all(&self, path: &Path) -> Result<(), FileError>;
}

/// A file open for writing.
pub trait FileWriter: io::Write + Send {
    /// Returns once everything written so far would survive a power cut.
    fn sync(&mut self) -> Result<(), FileError>;
}

/// A file open for reading at any offset.
pub trait FileReader: Send + Sync {
    /// The file's size when it was opened.
    fn num_bytes(&self) -> u64;
    /// Fills the buffer from the given offset; a file that ends before is an error.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FileError>;
}

/// A file that is read by copying from memory.
pub trait FileMap: Send + Sync {
    /// The file's size when it was mapped.
    fn num_bytes(&self) -> u64;
    /// Fills the buffer from the given offset, which must leave room for it.
    fn copy_to(&self, offset: u64, buffer: &mut [u8]);
}

fn no_folder() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such folder")
}

/// A map of a disk that has none.
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

/// What lies at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A folder.
    Directory,
}

/// What was being tried when a [`FileError`] happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Reading a file's bytes.
    Read,
    /// Writing or syncing a file's bytes.
    Write,
    /// Creating a file or a folder.
    Create,
    /// Listing a folder.
    List,
    /// Moving a file or a folder.
    Rename,
    /// Removing a file or a folder.
    Remove,
}

impl fmt::Display for FileAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::List => "list",
            Self::Rename => "rename",
            Self::Remove => "remove",
        })
    }
}

/// A file operation that failed, as one line: `cannot read notes.txt: no such file`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {}: {reason}", path.display())]
pub struct FileError {
    action: FileAction,
    path: PathBuf,
    kind: io::ErrorKind,
    reason: String,
}

impl FileError {
    /// Puts the path and the attempt beside the system's error.
    pub fn new(action: FileAction, path: &Path, error: &io::Error) -> Self {
        let reason = match (action, error.kind()) {
            (FileAction::List, io::ErrorKind::NotFound) => "no such folder".to_owned(),
            (FileAction::Write | FileAction::Create, io::ErrorKind::NotFound) => {
                "its folder does not exist".to_owned()
            }
            _ => reason::of(error),
        };
        Self { action, path: path.to_owned(), kind: error.kind(), reason }
    }

    /// What was being tried.
    pub fn action(&self) -> FileAction {
        self.action
    }

    /// The file or folder it was tried on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The class of the failure, for decisions; the text is for people.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

/// For code that writes through [`io::Write`] and syncs in the same breath.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        Self::new(error.kind, error.reason)
    }
}

//! Errors of file operations, which name the path.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::error_text;

/// Operation of a [`FileError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    /// Reading a file.
    Read,
    /// Writing or syncing a file.
    Write,
    /// Creating a file or folder.
    Create,
    /// Listing a folder.
    List,
    /// Moving a file or folder.
    Rename,
    /// Removing a file or folder.
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

/// A failed file operation, as one line: `cannot read notes.txt: no such file`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {}: {reason}", path.display())]
pub struct FileError {
    action: FileAction,
    path: PathBuf,
    kind: io::ErrorKind,
    reason: String,
}

impl FileError {
    /// Adds the operation and the path to a system error.
    pub fn new(action: FileAction, path: &Path, error: &io::Error) -> Self {
        let reason = match (action, error.kind()) {
            (FileAction::List, io::ErrorKind::NotFound) => "no such folder".to_owned(),
            (FileAction::Write | FileAction::Create, io::ErrorKind::NotFound) => {
                "its folder does not exist".to_owned()
            }
            _ => error_text::of(error),
        };
        Self { action, path: path.to_owned(), kind: error.kind(), reason }
    }

    /// Failed operation.
    pub fn action(&self) -> FileAction {
        self.action
    }

    /// File or folder of the operation.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Class of the error, for decisions in code.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

/// Conversion for code that combines [`io::Write`] and sync.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        Self::new(error.kind, error.reason)
    }
}

//! A corpus as a stream of documents: text, JSON Lines, Parquet, folders and globs, in any mixture.
//!
//! A corpus is a sorted list of files, a file is some documents, and a document comes as *pieces*
//! of bounded size, so that memory depends neither on the size of the corpus nor on that of its
//! largest text. Nothing is guessed about encodings: what is not UTF-8 is an error that names the
//! file and the byte. The order depends on the paths only, never on the file system.
//!
//! # Layout
//!
//! - [`paths`]: which files a name stands for; [`pattern`] is the matching of globs
//! - [`input`]: bytes of a file, decompressed where its name says so
//! - [`pieces`]: where a long text may be cut without changing its tokens
//! - [`text`], [`json_lines`], [`parquet`]: one file a format
//! - [`error`]: what can be wrong with a corpus
//!
//! # Example
//!
//! ```
//! use lockstep_data::documents::{Documents, ReadOptions};
//! use lockstep_platform::ScratchDir;
//!
//! let world = lockstep_platform::real();
//! let folder = ScratchDir::new(&world, "documents")?;
//! let lines = b"{\"text\": \"In the beginning\"}\n{\"text\": \"And the earth\"}\n";
//! world.files().write_atomic(&folder.path().join("a.jsonl"), lines)?;
//!
//! let mut documents = Documents::open(folder.path(), &ReadOptions::default(), &world)?;
//! let mut text = String::new();
//! assert!(documents.next_document(&mut text)?);
//! assert_eq!(text, "In the beginning");
//! # Ok::<(), lockstep_data::DataError>(())
//! ```

pub mod paths;
pub mod pattern;

pub mod input;
pub mod pieces;

pub mod json_lines;
pub mod parquet;
pub mod text;

pub mod error;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::World;

use crate::bundled;
use crate::error::DataError;
use input::Input;
use pieces::Held;

pub use error::DocumentError;
pub use pieces::Piece;

/// The name of the text inside the binary.
pub const BUNDLED: &str = "bundled";

/// How files become documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The field of JSON Lines and the column of Parquet that holds the text.
    pub field: String,
    /// What stands between two documents of a plain text; without it a file is one document.
    pub separator: Option<String>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { field: "text".to_owned(), separator: None }
    }
}

/// The documents of a corpus, in order.
pub struct Documents {
    name: String,
    world: World,
    options: ReadOptions,
    files: Vec<PathBuf>,
    /// The files before this one are read or being read.
    next_file: usize,
    current: Option<Box<dyn Format>>,
    /// Bytes of the files that were read.
    done_bytes: u64,
    total_bytes: u64,
}

/// A file that is being read.
pub(crate) trait Format: Send {
    /// Replaces `text` by the next piece of the file.
    fn next_into(&mut self, text: &mut String) -> Result<Option<Piece>, DataError>;
    /// How many bytes of the file have been read, as they lie on the disk.
    fn position_bytes(&self) -> u64;
}

impl Documents {
    /// The documents of a file, a folder or a glob, or of the text inside the binary.
    pub fn open(source: &Path, options: &ReadOptions, world: &World) -> Result<Self, DataError> {
        if source == Path::new(BUNDLED) {
            return Ok(Self::bundled(world));
        }
        let files = paths::expand(source, world.files())?;
        let sizes = files.iter().map(|path| paths::num_bytes(path, world.files()));
        let total_bytes = sizes.sum();
        Ok(Self {
            name: source.display().to_string(),
            world: Arc::clone(world),
            options: options.clone(),
            files,
            next_file: 0,
            current: None,
            done_bytes: 0,
            total_bytes,
        })
    }

    /// The text inside the binary; its documents are chapters.
    pub fn bundled(world: &World) -> Self {
        let text = bundled::text();
        let total_bytes = text.len() as u64;
        let input = Input::from_bytes(PathBuf::from(bundled::NAME), text);
        let chapters = text::TextFile::new(input, Some("\n\n".to_owned()));
        Self {
            name: bundled::NAME.to_owned(),
            world: Arc::clone(world),
            options: ReadOptions::default(),
            files: Vec::new(),
            next_file: 0,
            current: Some(Box::new(chapters)),
            done_bytes: 0,
            total_bytes,
        }
    }

    /// Replaces `text` by the next piece: all of a document, or a part of a long one with more of
    /// it to follow. Nothing is left when there is no piece. No piece is empty, so a document
    /// without text is not seen; none is much longer than [`pieces::PIECE_BYTES`].
    pub fn next_into(&mut self, text: &mut String) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(format) = &mut self.current {
                if let Some(piece) = format.next_into(text)? {
                    return Ok(Some(piece));
                }
                self.done_bytes += format.position_bytes();
                self.current = None;
            }
            let Some(path) = self.files.get(self.next_file) else {
                text.clear();
                return Ok(None);
            };
            self.current = Some(open_file(path, &self.options, &self.world)?);
            self.next_file += 1;
        }
    }

    /// Replaces `text` by the next document, however long it is. False when there is none.
    pub fn next_document(&mut self, text: &mut String) -> Result<bool, DataError> {
        let mut piece = String::new();
        text.clear();
        loop {
            let Some(kind) = self.next_into(&mut piece)? else { return Ok(false) };
            text.push_str(&piece);
            if kind == Piece::Last {
                return Ok(true);
            }
        }
    }

    /// The source as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files that are read, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Bytes read so far, as they lie on the disk.
    pub fn position_bytes(&self) -> u64 {
        let done = self.done_bytes + self.current.as_ref().map_or(0, |f| f.position_bytes());
        // A file may say of itself that it is longer than it is.
        done.min(self.total_bytes)
    }

    /// Bytes of all files, as they lie on the disk.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Documents({}, file {} of {})", self.name, self.next_file, self.files.len())
    }
}

/// Opens a file by what its name says it is, after a look at its first bytes.
fn open_file(
    path: &Path,
    options: &ReadOptions,
    world: &World,
) -> Result<Box<dyn Format>, DataError> {
    if parquet::is_parquet(path, world.files())? {
        let file = parquet::ParquetFile::open(path, &options.field, world.files())?;
        return Ok(Box::new(Held::new(file)));
    }
    let input = Input::open(path, world.files())?;
    if json_lines::is_json_lines(input.name()) {
        let file = json_lines::JsonLinesFile::new(input, options.field.clone());
        return Ok(Box::new(Held::new(file)));
    }
    Ok(Box::new(text::TextFile::new(input, options.separator.clone())))
}

#[cfg(test)]
mod tests;

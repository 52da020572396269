//! A corpus as a stream of documents: text, JSON Lines, Parquet, folders and globs, in any mixture.
//!
//! A corpus is a sorted list of files, a file is a list of documents, and a document comes in
//! *pieces* of bounded size. Memory depends neither on the size of the corpus nor on its longest
//! document. Encodings are not guessed: invalid UTF-8 is an error that names the file and the byte.
//! The order depends on the paths only, never on the file system.
//!
//! # Layout
//!
//! - [`paths`]: files of a source; [`pattern`]: glob matching
//! - [`input`]: bytes of a file, decompressed by name
//! - [`pieces`]: cutting a long text without changing its tokens
//! - [`text`], [`json_lines`], [`parquet`]: one module per format; `parquet_rows` and
//!   `parquet_record`: whole rows of nested columns
//! - [`writer`]: documents as JSON Lines
//! - [`error`]: errors of a corpus
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
mod parquet_record;
mod parquet_rows;
pub mod text;

pub mod writer;

pub mod error;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::World;

use crate::bundled;
use crate::error::DataError;
use input::Input;
use pieces::{Held, Whole};

pub use error::DocumentError;
pub use pieces::Piece;
pub use writer::DocumentWriter;

/// Name of the bundled corpus.
pub const BUNDLED: &str = "bundled";

/// Options for reading files as documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// JSON Lines field and Parquet column of the text.
    pub field: String,
    /// Separator between documents of a plain text; without one a file is one document.
    pub separator: Option<String>,
    /// Whether a document is a whole line of JSON Lines, or a row of Parquet as such a line,
    /// instead of the text of a field.
    pub whole_rows: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { field: "text".to_owned(), separator: None, whole_rows: false }
    }
}

/// Documents of a corpus, in order.
pub struct Documents {
    name: String,
    world: World,
    options: ReadOptions,
    files: Vec<PathBuf>,
    /// Index of the next file to open.
    next_file: usize,
    current: Option<Box<dyn Format>>,
    /// Bytes of the finished files.
    done_bytes: u64,
    total_bytes: u64,
}

/// Reader of one file.
pub(crate) trait Format: Send {
    /// Replaces `text` by the next piece of the file.
    fn next_into(&mut self, text: &mut String) -> Result<Option<Piece>, DataError>;
    /// Number of bytes read from disk.
    fn position_bytes(&self) -> u64;
    /// Place of the last document in the file, as "line 1"; empty where documents have none.
    fn place(&self) -> String {
        String::new()
    }
}

impl Documents {
    /// Opens a file, a folder, a glob or the bundled corpus.
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

    /// The bundled corpus; its documents are chapters.
    pub fn bundled(world: &World) -> Self {
        let chapters = bundled_chapters();
        Self {
            name: bundled::NAME.to_owned(),
            world: Arc::clone(world),
            options: ReadOptions::default(),
            files: Vec::new(),
            next_file: 0,
            total_bytes: chapters.position_bytes(),
            current: Some(Box::new(chapters)),
            done_bytes: 0,
        }
    }

    /// Replaces `text` by the next piece: a whole document, or a part of a long one. Returns none
    /// at the end. Pieces are never empty, so documents without text are dropped; none is much
    /// longer than [`pieces::PIECE_BYTES`].
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

    /// Replaces `text` by the next whole document. Returns false at the end.
    pub fn next_document(&mut self, text: &mut String) -> Result<bool, DataError> {
        self.next_document_within(text, usize::MAX)
    }

    /// As [`Self::next_document`], with a limit on the length of a document.
    pub fn next_document_within(
        &mut self,
        text: &mut String,
        limit_bytes: usize,
    ) -> Result<bool, DataError> {
        let mut piece = String::new();
        text.clear();
        loop {
            let Some(kind) = self.next_into(&mut piece)? else { return Ok(false) };
            if text.len() + piece.len() > limit_bytes {
                let source_name = self.name.clone();
                return Err(DocumentError::LongDocument { source_name, limit_bytes }.into());
            }
            text.push_str(&piece);
            if kind == Piece::Last {
                return Ok(true);
            }
        }
    }

    /// Source as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Files of the source, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// File of the last document.
    pub(crate) fn current_file(&self) -> &Path {
        self.files.get(self.next_file.saturating_sub(1)).map_or(Path::new(&self.name), |path| path)
    }

    /// Place of the last document in its file, as "line 1" or "row 0", where it has one.
    pub(crate) fn place(&self) -> String {
        self.current.as_ref().map_or_else(String::new, |format| format.place())
    }

    /// Number of bytes read from disk so far.
    pub fn position_bytes(&self) -> u64 {
        let done = self.done_bytes + self.current.as_ref().map_or(0, |f| f.position_bytes());
        // A damaged file may report a position beyond its end.
        done.min(self.total_bytes)
    }

    /// Size of all files on disk.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }
}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Documents({}, file {} of {})", self.name, self.next_file, self.files.len())
    }
}

/// A file, opened by its name and its first bytes.
enum OpenFile {
    Parquet(Box<parquet::ParquetFile>),
    JsonLines(json_lines::JsonLinesFile),
    Text(text::TextFile),
}

impl OpenFile {
    fn open(path: &Path, options: &ReadOptions, world: &World) -> Result<Self, DataError> {
        if parquet::is_parquet(path, world.files())? {
            let file = parquet::ParquetFile::open(path, &options.field, world.files())?;
            return Ok(Self::Parquet(Box::new(file)));
        }
        let input = Input::open(path, world.files())?;
        Ok(if json_lines::is_json_lines(input.name()) {
            Self::JsonLines(json_lines::JsonLinesFile::new(input, options.field.clone()))
        } else {
            Self::Text(text::TextFile::new(input, options.separator.clone()))
        })
    }
}

/// Pieces of a file.
fn open_file(
    path: &Path,
    options: &ReadOptions,
    world: &World,
) -> Result<Box<dyn Format>, DataError> {
    if options.whole_rows {
        if parquet::is_parquet(path, world.files())? {
            let rows = parquet_rows::ParquetRows::open(path, world.files())?;
            return Ok(Box::new(Held::new(rows)));
        }
        let input = Input::open(path, world.files())?;
        if !json_lines::is_json_lines(input.name()) {
            return Err(DocumentError::NotJsonLines { path: path.to_owned() }.into());
        }
        return Ok(Box::new(Held::new(json_lines::JsonLinesFile::rows(input))));
    }
    Ok(match OpenFile::open(path, options, world)? {
        OpenFile::Parquet(file) => Box::new(Held::new(*file)),
        OpenFile::JsonLines(file) => Box::new(Held::new(file)),
        OpenFile::Text(file) => Box::new(file),
    })
}

/// Rows of a file, which can be skipped; a plain text has a row for each of its pieces.
pub(crate) fn open_rows(
    path: &Path,
    options: &ReadOptions,
    world: &World,
) -> Result<Box<dyn Whole>, DataError> {
    Ok(match OpenFile::open(path, options, world)? {
        OpenFile::Parquet(file) => file,
        OpenFile::JsonLines(file) => Box::new(file),
        OpenFile::Text(file) => Box::new(text::TextRows(file)),
    })
}

/// Chapters of the bundled corpus.
pub(crate) fn bundled_rows() -> Box<dyn Whole> {
    Box::new(text::TextRows(bundled_chapters()))
}

fn bundled_chapters() -> text::TextFile {
    let input = Input::from_bytes(PathBuf::from(bundled::NAME), bundled::text());
    text::TextFile::new(input, Some("\n\n".to_owned()))
}

#[cfg(test)]
mod tests;

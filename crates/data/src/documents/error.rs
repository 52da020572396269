//! What can be wrong with a corpus: one line each that names the file and the place in it.

use std::path::PathBuf;

/// A corpus that cannot be read as documents.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Nothing lies at the path.
    #[error("{} does not exist; give a file, a folder, a glob such as \"texts/*.jsonl\" or bundled",
        .path.display())]
    Missing {
        /// The path as it was given.
        path: PathBuf,
    },
    /// A glob that no file matches.
    #[error("no file matches {pattern}; * and ? stay within a folder, ** goes through folders")]
    NoMatch {
        /// The glob.
        pattern: String,
    },
    /// A glob with a bracket or brace that is never closed.
    #[error("{pattern} is no glob: {reason}")]
    Pattern {
        /// The glob.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A folder of tokens where text was asked for.
    #[error("{} holds shards, which are tokens already; give the text they were made of",
        .path.display())]
    Shards {
        /// The folder.
        path: PathBuf,
    },
    /// A text in an encoding of two bytes a character.
    #[error("{} is UTF-16 text (it starts with a byte order mark); convert it: \
             iconv -f UTF-16 -t UTF-8", .path.display())]
    Utf16 {
        /// The file.
        path: PathBuf,
    },
    /// A line that is longer than a document may be.
    #[error("{} line {line} is longer than {limit_bytes} bytes; is it one JSON object a line?",
        .path.display())]
    LongLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The longest line that is read.
        limit_bytes: u64,
    },
    /// A line that is not a JSON object.
    #[error("{} line {line} is no JSON object: {reason}", .path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What the parser said.
        reason: String,
    },
    /// A line without the field.
    #[error("{} line {line} has no field {field:?}; it has {}", .path.display(), list(.found))]
    NoField {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The field.
        field: String,
        /// The fields it has.
        found: Vec<String>,
    },
    /// A field that holds something else than text.
    #[error("{} line {line}: field {field:?} is {found}, not a text", .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The field.
        field: String,
        /// What it is.
        found: &'static str,
    },
    /// A file that is not Parquet, or is damaged.
    #[error("{} cannot be read as Parquet: {reason}", .path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// A Parquet file without the column.
    #[error("{} has no column {column:?}; it has {}", .path.display(), list(.found))]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The columns it has.
        found: Vec<String>,
    },
    /// A Parquet column that holds something else than text.
    #[error("{}: column {column:?} holds {found}, not text; columns with text: {}",
        .path.display(), list(.texts))]
    NotTextColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What it holds.
        found: String,
        /// The columns that hold text.
        texts: Vec<String>,
    },
    /// A value of a Parquet column that is not UTF-8.
    #[error("{} row {row}: column {column:?} is not UTF-8 text: byte {offset_bytes} of it \
             cannot be read", .path.display())]
    NotUtf8Value {
        /// The file.
        path: PathBuf,
        /// The row, from 0.
        row: u64,
        /// The column.
        column: String,
        /// Where the first unreadable byte lies in the value.
        offset_bytes: usize,
    },
    /// A compressed file that cannot be decompressed.
    #[error("{} cannot be decompressed: {reason}", .path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
        /// What the decompressor said.
        reason: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

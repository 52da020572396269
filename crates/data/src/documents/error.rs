//! Errors of a corpus, each with the file and the position in it.

use std::path::PathBuf;

/// A corpus that cannot be read as documents.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The path does not exist.
    #[error("{} does not exist; give a file, a folder, a glob such as \"texts/*.jsonl\" or bundled",
        .path.display())]
    Missing {
        /// Path as given.
        path: PathBuf,
    },
    /// The glob matches no file.
    #[error("no file matches {pattern}; * and ? stay within a folder, ** goes through folders")]
    NoMatch {
        /// Glob as given.
        pattern: String,
    },
    /// The glob has an unclosed bracket or brace.
    #[error("{pattern} is no glob: {reason}")]
    Pattern {
        /// Glob as given.
        pattern: String,
        /// Syntax error.
        reason: &'static str,
    },
    /// A shard folder was given instead of text.
    #[error("{} holds shards, which are tokens already; give the text they were made of",
        .path.display())]
    Shards {
        /// Path of the folder.
        path: PathBuf,
    },
    /// Only JSON Lines and Parquet hold conversations.
    #[error("{} is neither JSON Lines (.jsonl) nor Parquet, which data.format = \"chat\" reads; \
             write each conversation as a JSON object on a line of its own", .path.display())]
    NotJsonLines {
        /// Path of the file.
        path: PathBuf,
    },
    /// The line is not a conversation that the chat template accepts.
    #[error("{} {place} is no conversation to train on: {reason}", .path.display())]
    NotConversation {
        /// Path of the file.
        path: PathBuf,
        /// Line from 1, or row of Parquet from 0.
        place: String,
        /// The fault of the line.
        reason: String,
    },
    /// No conversation has an answer within the context.
    #[error("no conversation of {} has an answer within model.context = {context} tokens; \
             try a longer context", .path.display())]
    LongPrompts {
        /// Path of the source.
        path: PathBuf,
        /// Context of the recipe.
        context: usize,
    },
    /// No conversation has an answer at all.
    #[error("the conversations of {} have no turn of the assistant to learn (role \"assistant\", \
             from \"gpt\", or an output)", .path.display())]
    NoAnswer {
        /// Path of the source.
        path: PathBuf,
    },
    /// The text is UTF-16.
    #[error("{} is UTF-16 text (it starts with a byte order mark); convert it: \
             iconv -f UTF-16 -t UTF-8", .path.display())]
    Utf16 {
        /// Path of the file.
        path: PathBuf,
    },
    /// The line is longer than the limit.
    #[error("{} line {line} is longer than {limit_bytes} bytes; is it one JSON object a line?",
        .path.display())]
    LongLine {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// Maximum length of a line.
        limit_bytes: u64,
    },
    /// The line is not a JSON object.
    #[error("{} line {line} is no JSON object: {reason}", .path.display())]
    NotJson {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// Message of the parser.
        reason: String,
    },
    /// The line lacks the field.
    #[error("{} line {line} has no field {field:?}; it has {}{}", .path.display(), list(.found),
            chat_hint(.found))]
    NoField {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// Name of the field.
        field: String,
        /// Fields of the line.
        found: Vec<String>,
    },
    /// The field is not a string.
    #[error("{} line {line}: field {field:?} is {found}, not a text", .path.display())]
    NotText {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// Name of the field.
        field: String,
        /// Type of its value.
        found: &'static str,
    },
    /// The file is not Parquet, or is damaged.
    #[error("{} cannot be read as Parquet: {reason}", .path.display())]
    Parquet {
        /// Path of the file.
        path: PathBuf,
        /// Message of the reader.
        reason: String,
    },
    /// The Parquet file lacks the column.
    #[error("{} has no column {column:?}; it has {}{}", .path.display(), list(.found),
            chat_hint(.found))]
    NoColumn {
        /// Path of the file.
        path: PathBuf,
        /// Name of the column.
        column: String,
        /// Columns of the file.
        found: Vec<String>,
    },
    /// The Parquet file has no conversations.
    #[error("{} has none of the columns messages, conversations, instruction and output, prompt \
             and completion, or chosen and rejected; it has {}", .path.display(), list(.found))]
    NoConversations {
        /// Path of the file.
        path: PathBuf,
        /// Columns of the file.
        found: Vec<String>,
    },
    /// A Parquet column of conversations is of a type that is not read.
    #[error("{}: column {column:?} is not read as conversations: {reason}; write it with Arrow as \
             text, numbers, structs and lists, or write JSON Lines", .path.display())]
    NestedColumn {
        /// Path of the file.
        path: PathBuf,
        /// Name of the column.
        column: String,
        /// The field that is not supported.
        reason: String,
    },
    /// The Parquet column is not text.
    #[error("{}: column {column:?} holds {found}, not text; columns with text: {}",
        .path.display(), list(.texts))]
    NotTextColumn {
        /// Path of the file.
        path: PathBuf,
        /// Name of the column.
        column: String,
        /// Type of the column.
        found: String,
        /// Columns with text.
        texts: Vec<String>,
    },
    /// A value of a Parquet column is not UTF-8.
    #[error("{} row {row}: column {column:?} is not UTF-8 text: byte {offset_bytes} of it \
             cannot be read", .path.display())]
    NotUtf8Value {
        /// Path of the file.
        path: PathBuf,
        /// Row number, from 0.
        row: u64,
        /// Name of the column.
        column: String,
        /// Offset of the first invalid byte in the value.
        offset_bytes: usize,
    },
    /// A document is longer than the limit.
    #[error(
        "{source_name} has a document longer than {limit_bytes} bytes; give --separator, which \
         cuts a plain text into documents"
    )]
    LongDocument {
        /// Source as given.
        source_name: String,
        /// Maximum length of a document.
        limit_bytes: usize,
    },
    /// The file to write exists.
    #[error("{} exists; give --out another name", .path.display())]
    Exists {
        /// Path as given.
        path: PathBuf,
    },
    /// The folder of the file to write does not exist.
    #[error("cannot write {}: its folder does not exist", .path.display())]
    NoFolder {
        /// Path as given.
        path: PathBuf,
    },
    /// A compressed file cannot be decompressed.
    #[error("{} cannot be decompressed: {reason}", .path.display())]
    Compressed {
        /// Path of the file.
        path: PathBuf,
        /// Message of the decompressor.
        reason: String,
    },
}

/// Advice for a line that is a conversation.
fn chat_hint(found: &[String]) -> &'static str {
    let is_chat = |name: &String| {
        // A nested column is named by its path.
        let column = name.split('.').next().unwrap_or_default();
        ["messages", "conversations", "instruction", "completion", "chosen"].contains(&column)
    };
    if found.iter().any(is_chat) {
        "; to train on conversations set data.format = \"chat\""
    } else {
        ""
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

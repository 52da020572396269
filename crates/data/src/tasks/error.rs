//! Errors of evaluation tasks, each with the file and a remedy.

use std::path::PathBuf;

/// A task that cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The file is not a YAML file of one mapping.
    #[error("{} is no task file: {reason}", .path.display())]
    Yaml {
        /// Path of the file.
        path: PathBuf,
        /// Message of the parser, with the line.
        reason: String,
    },
    /// A key is missing, unknown or has a value that is not supported.
    #[error("{}: {key} {reason}", .path.display())]
    Key {
        /// Path of the task file.
        path: PathBuf,
        /// Key of the task.
        key: String,
        /// Problem and remedy.
        reason: String,
    },
    /// A data file is not JSON Lines or a JSON list of objects.
    #[error("{} is no list of JSON objects: {reason}", .path.display())]
    Documents {
        /// Path of the data file.
        path: PathBuf,
        /// Message of the parser, with the line.
        reason: String,
    },
    /// A data file does not exist.
    #[error(
        "{}: the data file {file} exists neither in the working directory nor beside the task",
        .path.display()
    )]
    NoDataFile {
        /// Path of the task file.
        path: PathBuf,
        /// Name of the data file.
        file: String,
    },
    /// A template cannot be rendered for a document.
    #[error("{}: {key} fails for document {document}: {reason}", .path.display())]
    Template {
        /// Path of the task file.
        path: PathBuf,
        /// Key of the template.
        key: &'static str,
        /// Index of the document in its split.
        document: usize,
        /// Message of the template engine.
        reason: String,
    },
    /// Too few documents for the examples of a prompt.
    #[error(
        "{}: {num_shots} examples are needed, and the split of examples has {num_documents} \
         documents; lower num_fewshot",
        .path.display()
    )]
    TooFewExamples {
        /// Path of the task file.
        path: PathBuf,
        /// Number of examples in a prompt.
        num_shots: usize,
        /// Number of documents to draw from.
        num_documents: usize,
    },
    /// A context is empty, and the tokenizer has no token that starts a text.
    #[error(
        "{}: the context of document {document} is empty, and the tokenizer has no start or end \
         token to stand for it; give doc_to_text or description some text",
        .path.display()
    )]
    EmptyContext {
        /// Path of the task file.
        path: PathBuf,
        /// Index of the document.
        document: usize,
    },
    /// A choice has no tokens of its own.
    #[error(
        "{}: choice {choice} of document {document} has no tokens after its context",
        .path.display()
    )]
    EmptyChoice {
        /// Path of the task file.
        path: PathBuf,
        /// Index of the document.
        document: usize,
        /// Index of the choice.
        choice: usize,
    },
    /// A choice is longer than the model's context.
    #[error(
        "{}: choice {choice} of document {document} has {num_tokens} tokens, more than the \
         model's context of {context}",
        .path.display()
    )]
    LongChoice {
        /// Path of the task file.
        path: PathBuf,
        /// Index of the document.
        document: usize,
        /// Index of the choice.
        choice: usize,
        /// Number of tokens of the choice.
        num_tokens: usize,
        /// Context of the model.
        context: usize,
    },
}

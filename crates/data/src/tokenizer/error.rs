//! Errors of a tokenizer, each with a remedy.

use std::path::PathBuf;

/// A tokenizer that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The path does not exist.
    #[error(
        "tokenizer {} does not exist; give byte, a tokenizer.json or a folder that holds one",
        .path.display()
    )]
    Missing {
        /// Path as given.
        path: PathBuf,
    },
    /// The folder has no `tokenizer.json`.
    #[error(
        "{} holds no tokenizer.json{}", .folder.display(),
        .older_file.map_or_else(String::new, |name| format!(
            ", only {name}, which is not read; write one in Python: \
             AutoTokenizer.from_pretrained({:?}).save_pretrained({:?})",
            .folder.display().to_string(), .folder.display().to_string()
        ))
    )]
    NoFile {
        /// Path of the folder.
        folder: PathBuf,
        /// A file of an older format in it, such as `tokenizer.model`.
        older_file: Option<&'static str>,
    },
    /// The file is not a tokenizer that the `tokenizers` crate supports.
    #[error("{} is no tokenizer.json that can be read: {reason}", .path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Message of the `tokenizers` crate.
        reason: String,
    },
    /// The file enables BPE dropout.
    #[error(
        "{} sets model.dropout = {dropout}, which tokenises the same text differently each time; \
         set it to null",
        .path.display()
    )]
    Random {
        /// Path of the file.
        path: PathBuf,
        /// Dropout probability.
        dropout: f64,
    },
    /// The end-of-document token does not exist.
    #[error(
        "{token:?} is no token of tokenizer {tokenizer}, so it cannot end a document; {}",
        .likely.as_ref().map_or("try \"none\"".to_owned(), |token| format!("try {token:?}"))
    )]
    NoSuchToken {
        /// Name of the tokenizer.
        tokenizer: String,
        /// Text of the token.
        token: String,
        /// Existing token with a common name.
        likely: Option<String>,
    },
    /// The tokenizer cannot mark the parts of a document.
    #[error(
        "tokenizer {tokenizer} has no sentinel tokens for data.fim_rate, such as {expected}; use \
         one that has them, or set data.fim_rate = 0"
    )]
    NoSentinels {
        /// Name of the tokenizer.
        tokenizer: String,
        /// Common names of the tokens.
        expected: String,
    },
    /// The model's vocabulary is smaller than the tokenizer's.
    #[error(
        "model.vocab = {model_vocab} is below the {vocab} tokens of tokenizer {tokenizer}; \
         try {vocab}{}",
        if .vocab.is_multiple_of(64) {
            String::new()
        } else {
            format!(" or {}", .vocab.next_multiple_of(64))
        }
    )]
    VocabTooLarge {
        /// Name of the tokenizer.
        tokenizer: String,
        /// Vocabulary size of the tokenizer.
        vocab: usize,
        /// Vocabulary size of the model.
        model_vocab: usize,
    },
    /// A text has no encoding, for example because the vocabulary lacks an unknown token.
    #[error("tokenizer {tokenizer} cannot encode {excerpt:?}: {reason}")]
    Encode {
        /// Name of the tokenizer.
        tokenizer: String,
        /// Start of the text.
        excerpt: String,
        /// Message of the `tokenizers` crate.
        reason: String,
    },
    /// The requested vocabulary size is impossible.
    #[error(
        "a byte-level vocabulary cannot have {vocab} tokens: the bytes and {end:?} alone are \
             {least}; try a number from {least} to {most}"
    )]
    VocabOutOfRange {
        /// Requested size.
        vocab: usize,
        /// Special token.
        end: &'static str,
        /// Smallest possible size.
        least: usize,
        /// Largest possible size.
        most: usize,
    },
    /// Training failed inside the `tokenizers` crate.
    #[error("the vocabulary could not be learnt: {reason}")]
    Training {
        /// Message of the `tokenizers` crate.
        reason: String,
    },
}

/// First line of an error from the `tokenizers` crate.
pub(super) fn one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or("no reason was given").to_owned()
}

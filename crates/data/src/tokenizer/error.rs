//! What can be wrong with a tokenizer: one line each, with a way out.

use std::path::PathBuf;

/// A tokenizer that cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Nothing lies at the path.
    #[error(
        "tokenizer {} does not exist; give byte, a tokenizer.json or a folder that holds one",
        .path.display()
    )]
    Missing {
        /// The path as it was given.
        path: PathBuf,
    },
    /// A folder has no `tokenizer.json`.
    #[error(
        "{} holds no tokenizer.json{}", .folder.display(),
        if *.has_older_files {
            ", only files of older formats; save_pretrained of a fast tokenizer writes one"
        } else {
            ""
        }
    )]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// Whether it holds `tokenizer.model` or `vocab.json`, which are not read.
        has_older_files: bool,
    },
    /// A file is no tokenizer, or one that the `tokenizers` crate does not know.
    #[error("{} is no tokenizer.json that can be read: {reason}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What the `tokenizers` crate said.
        reason: String,
    },
    /// A file asks for merges that are left out at random.
    #[error(
        "{} sets model.dropout = {dropout}, which tokenises the same text differently each time; \
         set it to null",
        .path.display()
    )]
    Random {
        /// The file.
        path: PathBuf,
        /// The probability it asks for.
        dropout: f64,
    },
    /// A token was asked for by a text that is none.
    #[error(
        "{token:?} is no token of tokenizer {tokenizer}, so it cannot end a document; {}",
        .likely.as_ref().map_or("try \"none\"".to_owned(), |token| format!("try {token:?}"))
    )]
    NoSuchToken {
        /// The tokenizer's name.
        tokenizer: String,
        /// The text.
        token: String,
        /// A token of this tokenizer that ends documents elsewhere.
        likely: Option<String>,
    },
    /// A model has fewer embeddings than the tokenizer has tokens.
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
        /// The tokenizer's name.
        tokenizer: String,
        /// How many tokens it has.
        vocab: usize,
        /// How many the model has.
        model_vocab: usize,
    },
    /// A text has no encoding, as one with unknown characters in a vocabulary without a token for
    /// them.
    #[error("tokenizer {tokenizer} cannot encode {excerpt:?}: {reason}")]
    Encode {
        /// The tokenizer's name.
        tokenizer: String,
        /// How the text begins.
        excerpt: String,
        /// What the `tokenizers` crate said.
        reason: String,
    },
    /// A vocabulary cannot have the size that was asked for.
    #[error(
        "a byte-level vocabulary cannot have {vocab} tokens: the bytes and {end:?} alone are \
             {least}; try a number from {least} to {most}"
    )]
    VocabOutOfRange {
        /// What was asked for.
        vocab: usize,
        /// The special token.
        end: &'static str,
        /// The least that works.
        least: usize,
        /// The most that works.
        most: usize,
    },
    /// Learning a vocabulary failed inside the `tokenizers` crate.
    #[error("the vocabulary could not be learnt: {reason}")]
    Training {
        /// What the `tokenizers` crate said.
        reason: String,
    },
}

/// The first line of an error from the `tokenizers` crate.
pub(super) fn one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or("no reason was given").to_owned()
}

//! Corpus arguments: a path, a field and a separator.

use crate::failure::Failure;
use lockstep_data::documents::{Documents, ReadOptions};
use lockstep_platform::World;
use std::path::PathBuf;

/// Arguments that name a corpus.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CorpusArguments {
    /// A file (text, .jsonl, .parquet; also .gz, .zst), a folder, a glob, or bundled
    corpus: PathBuf,
    /// Field of JSON Lines or column of Parquet with the text
    #[arg(long, default_value = "text")]
    field: String,
    /// Separator of the documents in a plain text (\n for a line break); without it a file is one
    /// document
    #[arg(long)]
    separator: Option<String>,
}

impl CorpusArguments {
    /// Opens the corpus.
    pub(crate) fn open(&self, world: &World) -> Result<Documents, Failure> {
        let separator = self.separator.as_deref().map(unescape).transpose()?;
        let options =
            ReadOptions { field: self.field.clone(), separator, ..ReadOptions::default() };
        Ok(Documents::open(&self.corpus, &options, world)?)
    }

    /// Field or column of the text.
    pub(crate) fn field(&self) -> &str {
        &self.field
    }

    /// The corpus argument.
    pub(crate) fn name(&self) -> String {
        self.corpus.display().to_string()
    }
}

/// Resolves backslash escapes, because shells make it hard to type a line break.
fn unescape(text: &str) -> Result<String, Failure> {
    let mut letters = text.chars();
    let mut out = String::new();
    while let Some(letter) = letters.next() {
        out.push(match (letter, if letter == '\\' { letters.next() } else { None }) {
            ('\\', Some('n')) => '\n',
            ('\\', Some('r')) => '\r',
            ('\\', Some('t')) => '\t',
            ('\\', Some('0')) => '\0',
            ('\\', Some('\\')) => '\\',
            ('\\', _) => {
                let line = format!("--separator {text:?} has a \\ before a letter other than n, r");
                return Err(Failure::user(line + ", t, 0 or \\; write \\\\ for the \\ itself"));
            }
            (letter, _) => letter,
        });
    }
    if out.is_empty() {
        return Err(Failure::user("--separator is empty; leave it out for one document per file"));
    }
    Ok(out)
}

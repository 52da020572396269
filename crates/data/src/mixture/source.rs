//! An open source of a mixture: files of documents, the bundled corpus, or a shard folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_config::{MixtureSource, Order, Recipe, ValidationSource};
use lockstep_platform::{Files, World};

use super::{BLOCK, FILES, HELD_OUT, INFILLING, is_shards};
use crate::corpus::{combined, same_tokenizer};
use crate::documents::pieces::Whole;
use crate::documents::{BUNDLED, ReadOptions, bundled_rows, open_rows, paths};
use crate::error::DataError;
use crate::infilling::Infilling;
use crate::permutation::{Permutation, mix};
use crate::shards::ShardSet;
use crate::tokenizer::Tokenizer;

/// Number of bytes at each end of a file that the fingerprint covers.
const FINGERPRINT_BYTES: u64 = 1 << 16;

/// Part of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    Train,
    Validation,
}

/// Text or tokens of a document.
#[derive(Debug)]
pub(super) enum Content {
    Text(String),
    /// Tokens of a shard, with the end-of-document token.
    Tokens(Vec<u32>),
}

impl Content {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => tokens.is_empty(),
        }
    }

    /// Size in memory.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => 4 * tokens.len(),
        }
    }
}

/// An open source.
pub(super) struct Source {
    name: String,
    files: Vec<SourceFile>,
    options: ReadOptions,
    seed: u64,
    /// Rows below this fraction of 2^64 are held out.
    held_out: u64,
    order: Order,
    /// Number of documents in a block.
    pub(super) block_documents: usize,
    /// Number of passes; none repeats.
    pub(super) epochs: Option<u64>,
    pub(super) tokenizer: Tokenizer,
    /// Token after each document of a text.
    pub(super) end_of_document: Option<u32>,
    pub(super) infilling: Option<Infilling>,
    fingerprint: String,
    world: World,
}

/// A file of a source.
enum SourceFile {
    Path(PathBuf),
    Bundled,
    Shards(Arc<ShardSet>),
}

impl Source {
    pub(super) fn open(
        entry: &MixtureSource,
        seed: u64,
        recipe: &Recipe,
        tokenizer: &Tokenizer,
        world: &World,
    ) -> Result<Self, DataError> {
        let (data, path) = (&recipe.data, Path::new(&entry.source));
        let files = if entry.source == BUNDLED {
            vec![SourceFile::Bundled]
        } else if is_shards(&entry.source, world) {
            if data.infilling.is_on() {
                return Err(DataError::InfillingOfShards { path: path.to_owned() });
            }
            let set = ShardSet::open(path, world.files())?;
            same_tokenizer(&set, tokenizer, world)?;
            vec![SourceFile::Shards(Arc::new(set))]
        } else {
            let paths = paths::expand(path, world.files())?;
            paths.into_iter().map(SourceFile::Path).collect()
        };
        let field = if entry.field.is_empty() { &data.field } else { &entry.field };
        let separator = Some(entry.separator.clone()).filter(|text| !text.is_empty());
        let held_out = match data.validation {
            ValidationSource::Fraction(fraction) => (fraction * 2.0_f64.powi(64)) as u64,
            ValidationSource::Path(_) => 0,
        };
        let infilling = Infilling::new(&data.infilling, mix(seed, INFILLING), tokenizer)?;
        let line_break = tokenizer.is_bytes().then_some(u32::from(b'\n'));
        let mut source = Self {
            name: entry.source.clone(),
            files,
            options: ReadOptions { field: field.clone(), separator, ..ReadOptions::default() },
            seed,
            held_out,
            order: data.order,
            block_documents: match data.order {
                Order::Random => data.mixture.shuffle_buffer,
                Order::Sequential => 1,
            },
            epochs: entry.epochs,
            end_of_document: tokenizer.end_of_document().or(line_break),
            tokenizer: tokenizer.clone(),
            infilling,
            fingerprint: String::new(),
            world: Arc::clone(world),
        };
        source.fingerprint = source.fingerprint_of_files(world.files())?;
        Ok(source)
    }

    /// Source as in the recipe.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn num_files(&self) -> usize {
        self.files.len()
    }

    pub(super) fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    /// Index of the file at a position of an epoch.
    pub(super) fn file_at(&self, epoch: u64, position: u64) -> usize {
        let order = Permutation::new(self.files.len() as u64, mix(mix(self.seed, FILES), epoch));
        match self.order {
            Order::Random => order.apply(position) as usize,
            Order::Sequential => position as usize,
        }
    }

    /// Order of a block of documents whose first one has this number in its source.
    pub(super) fn block_order(&self, leaf: usize, number: u64, len: usize) -> Permutation {
        let key = mix(mix(mix(self.seed, BLOCK), leaf as u64), number);
        Permutation::new(len as u64, key)
    }

    /// Whether a block is shuffled.
    pub(super) fn is_shuffled(&self) -> bool {
        self.order == Order::Random
    }

    /// Split of a row; it depends on neither the epoch nor the order of the files.
    pub(super) fn split_of(&self, file: usize, row: u64) -> Split {
        let word = mix(mix(mix(self.seed, HELD_OUT), file as u64), row);
        if word < self.held_out { Split::Validation } else { Split::Train }
    }

    /// Opens a file.
    pub(super) fn open_file(&self, index: usize) -> Result<Rows, DataError> {
        Ok(match &self.files[index] {
            SourceFile::Bundled => Rows::Documents(bundled_rows()),
            SourceFile::Path(path) => Rows::Documents(open_rows(path, &self.options, &self.world)?),
            SourceFile::Shards(set) => Rows::Shards { set: Arc::clone(set), next: 0 },
        })
    }

    fn fingerprint_of_files(&self, files: &dyn Files) -> Result<String, DataError> {
        let mut hasher = blake3::Hasher::new();
        let ReadOptions { field, separator, .. } = &self.options;
        for text in [field, separator.as_deref().unwrap_or_default()] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        for file in &self.files {
            match file {
                SourceFile::Bundled => drop(hasher.update(BUNDLED.as_bytes())),
                SourceFile::Shards(set) => drop(hasher.update(set.fingerprint().as_bytes())),
                SourceFile::Path(path) => hash_ends(path, files, &mut hasher)?,
            }
        }
        let digits = hasher.finalize().to_hex()[..16].to_owned();
        Ok(combined([digits]))
    }
}

/// Hashes the size of a file, its beginning and its end.
fn hash_ends(path: &Path, files: &dyn Files, hasher: &mut blake3::Hasher) -> Result<(), DataError> {
    let file = files.open(path)?;
    let num_bytes = file.num_bytes();
    hasher.update(&num_bytes.to_le_bytes());
    let len = num_bytes.min(FINGERPRINT_BYTES);
    let mut bytes = vec![0; len as usize];
    for start in [0, num_bytes - len] {
        file.read_exact_at(start, &mut bytes)?;
        hasher.update(&bytes);
    }
    Ok(())
}

/// Rows of a file.
pub(super) enum Rows {
    Documents(Box<dyn Whole>),
    Shards { set: Arc<ShardSet>, next: u64 },
}

impl Rows {
    /// Content of the next row; none at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Content>, DataError> {
        match self {
            Self::Documents(rows) => {
                let mut text = String::new();
                Ok(rows.next_whole(&mut text)?.then_some(Content::Text(text)))
            }
            Self::Shards { set, next } => {
                if *next == set.num_documents() {
                    return Ok(None);
                }
                let range = set.document(*next);
                *next += 1;
                let mut tokens = vec![0; (range.end - range.start) as usize];
                set.copy(range.start, &mut tokens)?;
                Ok(Some(Content::Tokens(tokens)))
            }
        }
    }

    /// Skips up to `count` rows; returns their number, fewer at the end of the file.
    pub(super) fn skip(&mut self, count: u64) -> Result<u64, DataError> {
        match self {
            Self::Documents(rows) => rows.skip(count),
            Self::Shards { set, next } => {
                let skipped = count.min(set.num_documents() - *next);
                *next += skipped;
                Ok(skipped)
            }
        }
    }
}

//! Writes a shard folder under a temporary name, the manifest last, then renames it.
//!
//! Documents go to the current shard until it is full. A document is never divided, so a shard
//! exceeds its size by less than its last document. Checksums are computed while writing. An
//! interrupted process leaves at most a hidden folder; an error leaves nothing.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::{FileAction, FileError, FileKind, FileWriter, Files, World};

use super::error::ShardError;
use super::manifest::{FORMAT, MANIFEST, Manifest, ManifestShard, ManifestTokenizer, token_bytes};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::file::FILE_NAME;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 1 << 18;

/// Sizes of shards.
#[derive(Debug, Clone, Copy)]
pub struct WriterOptions {
    /// Bytes of tokens after which a shard is full.
    pub shard_bytes: u64,
}

/// Writes documents into a shard folder.
pub struct ShardWriter {
    world: World,
    target: PathBuf,
    partial: PathBuf,
    options: WriterOptions,
    manifest: Manifest,
    current: Option<OpenShard>,
    is_finished: bool,
}

struct OpenShard {
    tokens: HashedFile,
    documents: HashedFile,
    num_tokens: u64,
    num_documents: u64,
    /// End of the last document.
    last_end: u64,
}

impl ShardWriter {
    /// Starts a folder that will appear at `target`, which must be missing or empty.
    pub fn create(
        target: &Path,
        tokenizer: &Tokenizer,
        options: WriterOptions,
        world: &World,
    ) -> Result<Self, DataError> {
        let files = world.files();
        require_free(target, files)?;
        let partial = partial_path(target, world.entropy().u64());
        files.create_dir_all(&partial)?;
        let manifest = Manifest {
            format: FORMAT,
            tokenizer: ManifestTokenizer {
                file: tokenizer.json().map(|_| FILE_NAME.to_owned()),
                blake3: tokenizer.blake3(),
            },
            vocab: tokenizer.vocab(),
            token_bytes: token_bytes(tokenizer.vocab()),
            end_of_document: tokenizer.end_of_document(),
            num_tokens: 0,
            num_documents: 0,
            num_bytes: 0,
            shards: Vec::new(),
        };
        let writer = Self {
            world: Arc::clone(world),
            target: target.to_owned(),
            partial,
            options,
            manifest,
            current: None,
            is_finished: false,
        };
        if let Some(json) = tokenizer.json() {
            files.write_atomic(&writer.partial.join(FILE_NAME), json)?;
        }
        Ok(writer)
    }

    /// Appends tokens to the current document.
    /// Adds tokens to the current document.
    pub fn push(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let narrow = self.manifest.token_bytes == 2;
        let shard = match &mut self.current {
            Some(shard) => shard,
            none => {
                let index = self.manifest.shards.len();
                none.insert(OpenShard::create(&self.partial, index, &self.world)?)
            }
        };
        self.manifest.num_tokens += tokens.len() as u64;
        shard.push(tokens, narrow)
    }

    /// Ends the current document, whose text has `text_bytes`. A document without tokens is
    /// dropped.
    pub fn end_document(&mut self, text_bytes: u64) -> Result<(), DataError> {
        self.manifest.num_bytes += text_bytes;
        let Some(shard) = &mut self.current else { return Ok(()) };
        if shard.num_tokens > shard.last_end {
            shard.end_document()?;
            self.manifest.num_documents += 1;
        }
        let shard_bytes = shard.num_tokens * self.manifest.token_bytes as u64;
        if shard_bytes >= self.options.shard_bytes { self.close_shard() } else { Ok(()) }
    }

    /// Syncs all files and renames the folder.
    pub fn finish(mut self) -> Result<Manifest, DataError> {
        self.close_shard()?;
        let files = self.world.files();
        let json = serde_json::to_string_pretty(&self.manifest).expect("a manifest is JSON");
        files.write_atomic(&self.partial.join(MANIFEST), (json + "\n").as_bytes())?;
        // Another process may have created the target meanwhile; renaming onto a non-empty folder
        // fails too.
        require_free(&self.target, files)?;
        files.rename(&self.partial, &self.target)?;
        self.is_finished = true;
        Ok(self.manifest.clone())
    }

    fn close_shard(&mut self) -> Result<(), DataError> {
        if let Some(shard) = self.current.take() {
            assert_eq!(shard.num_tokens, shard.last_end, "every document was ended");
            let index = self.manifest.shards.len();
            let entry = ManifestShard {
                tokens: name(index, "tokens"),
                documents: name(index, "documents"),
                num_tokens: shard.num_tokens,
                num_documents: shard.num_documents,
                tokens_blake3: shard.tokens.finish()?,
                documents_blake3: shard.documents.finish()?,
            };
            self.manifest.shards.push(entry);
        }
        Ok(())
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // A failure here leaves only a hidden folder.
            self.current = None;
            let _ = self.world.files().remove_dir_all(&self.partial);
        }
    }
}

impl OpenShard {
    fn create(folder: &Path, index: usize, world: &World) -> Result<Self, DataError> {
        let file = |kind| HashedFile::create(folder.join(name(index, kind)), world.files());
        let (tokens, documents) = (file("tokens")?, file("documents")?);
        Ok(Self { tokens, documents, num_tokens: 0, num_documents: 0, last_end: 0 })
    }

    fn push(&mut self, tokens: &[u32], narrow: bool) -> Result<(), DataError> {
        let mut buffer = [0; 4096];
        for part in tokens.chunks(buffer.len() / 4) {
            let bytes = if narrow {
                let pairs = buffer.as_chunks_mut().0.iter_mut().zip(part);
                pairs.for_each(|(two, &token)| {
                    *two = u16::try_from(token).expect("it is below the vocabulary").to_le_bytes();
                });
                &buffer[..part.len() * 2]
            } else {
                let pairs = buffer.as_chunks_mut().0.iter_mut().zip(part);
                pairs.for_each(|(four, &token)| *four = token.to_le_bytes());
                &buffer[..part.len() * 4]
            };
            self.tokens.write(bytes)?;
        }
        self.num_tokens += tokens.len() as u64;
        Ok(())
    }

    fn end_document(&mut self) -> Result<(), DataError> {
        self.num_documents += 1;
        self.last_end = self.num_tokens;
        self.documents.write(&self.num_tokens.to_le_bytes())
    }
}

/// A file with a running checksum.
struct HashedFile {
    path: PathBuf,
    writer: BufWriter<Box<dyn FileWriter>>,
    hasher: blake3::Hasher,
}

impl HashedFile {
    fn create(path: PathBuf, files: &dyn Files) -> Result<Self, DataError> {
        let writer = BufWriter::with_capacity(BUFFER_BYTES, files.create(&path)?);
        Ok(Self { path, writer, hasher: blake3::Hasher::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.hasher.update(bytes);
        let written = self.writer.write_all(bytes);
        Ok(written.map_err(|error| FileError::new(FileAction::Write, &self.path, &error))?)
    }

    fn finish(mut self) -> Result<String, DataError> {
        let flushed = self.writer.flush();
        flushed.map_err(|error| FileError::new(FileAction::Write, &self.path, &error))?;
        self.writer.get_mut().sync()?;
        Ok(self.hasher.finalize().to_hex().to_string())
    }
}

fn name(index: usize, kind: &str) -> String {
    format!("shard-{index:05}.{kind}")
}

/// Refuses a target that is not empty.
pub(super) fn require_free(target: &Path, files: &dyn Files) -> Result<(), DataError> {
    let free = match files.metadata(target) {
        None => true,
        Some(FileKind::File { .. }) => false,
        Some(FileKind::Directory) => files.list(target)?.is_empty(),
    };
    if free { Ok(()) } else { Err(ShardError::Occupied { path: target.to_owned() }.into()) }
}

/// Hidden name beside the target, on the same file system.
fn partial_path(target: &Path, unique: u64) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{unique:016x}.partial"))
}

//! Writing a shard folder: under a temporary name, the manifest last, then one rename.
//!
//! Documents go to the current shard until it has its size, and a document is never cut, so a
//! shard is larger than asked for by less than its last document. Checksums are made from the
//! bytes as they leave, so writing reads nothing back. Whoever is interrupted leaves at worst a
//! hidden folder with a telling name; whoever fails leaves nothing.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_platform::{FileAction, FileError, FileKind, FileWriter, Files, World};

use super::error::ShardError;
use super::manifest::{FORMAT, MANIFEST, Manifest, ManifestShard, ManifestTokenizer, token_bytes};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::file::FILE_NAME;

/// Bytes collected before the system is called.
const BUFFER_BYTES: usize = 1 << 18;

/// How shards are cut.
#[derive(Debug, Clone, Copy)]
pub struct WriterOptions {
    /// Bytes of tokens after which a shard is full.
    pub shard_bytes: u64,
}

/// Takes documents and makes a shard folder of them.
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
    /// Where the last document ended.
    last_end: u64,
}

impl ShardWriter {
    /// Starts a folder that will appear at `target`, where nothing or an empty folder lies.
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

    /// Ends the current document, whose text had this many bytes. One without tokens never was.
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

    /// Makes everything durable and lets the folder appear.
    pub fn finish(mut self) -> Result<Manifest, DataError> {
        self.close_shard()?;
        let files = self.world.files();
        let json = serde_json::to_string_pretty(&self.manifest).expect("a manifest is JSON");
        files.write_atomic(&self.partial.join(MANIFEST), (json + "\n").as_bytes())?;
        // Somebody may have come meanwhile; a rename onto a folder that holds anything fails too.
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
            // Litter under a hidden name is all that a failure here leaves.
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

/// A file that knows its checksum.
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

/// Refuses a place that holds anything.
pub(super) fn require_free(target: &Path, files: &dyn Files) -> Result<(), DataError> {
    let free = match files.metadata(target) {
        None => true,
        Some(FileKind::File { .. }) => false,
        Some(FileKind::Directory) => files.list(target)?.is_empty(),
    };
    if free { Ok(()) } else { Err(ShardError::Occupied { path: target.to_owned() }.into()) }
}

/// A hidden name beside the target, so that the rename stays on one disk.
fn partial_path(target: &Path, unique: u64) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{unique:016x}.partial"))
}

//! The bytes of a file from front to back, decompressed where its name ends in `.gz` or `.zst`.
//!
//! Memory holds one buffer of the file and the decompressor's window. The position counts bytes as
//! they lie on the disk, because only those have a known total: progress is a share of them.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use lockstep_platform::{FileAction, FileError, FileReader, Files};

use super::error::DocumentError;
use crate::error::DataError;

/// Bytes that are read from the disk, or decompressed, at a time.
const BUFFER_BYTES: usize = 1 << 17;

/// A file's bytes from front to back.
pub(crate) struct Input {
    path: PathBuf,
    name: String,
    is_compressed: bool,
    reader: Box<dyn BufRead + Send>,
    position: Arc<AtomicU64>,
}

impl Input {
    /// Opens a file.
    pub(crate) fn open(path: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let position = Arc::new(AtomicU64::new(0));
        let file = OpenFile { file: files.open(path)?, position: Arc::clone(&position) };
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let name = path.to_string_lossy().to_lowercase();
        let (name, reader): (&str, Box<dyn BufRead + Send>) =
            if let Some(name) = name.strip_suffix(".gz") {
                (name, buffered(MultiGzDecoder::new(file)))
            } else if let Some(name) = name.strip_suffix(".zst") {
                let decoder = zstd::stream::read::Decoder::with_buffer(file);
                let decoder = decoder.map_err(|error| decompressor(path, &error))?;
                (name, buffered(decoder))
            } else {
                (&name, Box::new(file))
            };
        let is_compressed = name.len() < path.as_os_str().len();
        let name = name.to_owned();
        Ok(Self { path: path.to_owned(), name, is_compressed, reader, position })
    }

    /// Bytes that are in memory; `path` stands for them in messages.
    pub(crate) fn from_bytes(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self {
            path,
            name: String::new(),
            is_compressed: false,
            position: Arc::new(AtomicU64::new(bytes.len() as u64)),
            reader: Box::new(Cursor::new(bytes)),
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name in lower case, without what says how it is compressed.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes have been read from the disk.
    pub(crate) fn position_bytes(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Appends up to `limit` bytes; fewer only where the file ends.
    pub(crate) fn read(&mut self, limit: usize, bytes: &mut Vec<u8>) -> Result<usize, DataError> {
        let read = self.reader.by_ref().take(limit as u64).read_to_end(bytes);
        read.map_err(|error| self.failed(&error))
    }

    /// Appends the rest of the line with its end, but at most `limit` bytes.
    pub(crate) fn read_line(
        &mut self,
        limit: usize,
        line: &mut Vec<u8>,
    ) -> Result<usize, DataError> {
        let read = self.reader.by_ref().take(limit as u64).read_until(b'\n', line);
        read.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> DataError {
        let of_the_disk = error.get_ref().and_then(|inner| inner.downcast_ref::<FromDisk>());
        if self.is_compressed && of_the_disk.is_none() {
            return decompressor(&self.path, error);
        }
        FileError::new(FileAction::Read, &self.path, error).into()
    }
}

fn buffered(reader: impl Read + Send + 'static) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(BUFFER_BYTES, reader))
}

fn decompressor(path: &Path, error: &io::Error) -> DataError {
    DocumentError::Compressed { path: path.to_owned(), reason: error.to_string() }.into()
}

/// Reads a file of the platform in order.
struct OpenFile {
    file: Box<dyn FileReader>,
    position: Arc<AtomicU64>,
}

impl Read for OpenFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let position = self.position.load(Ordering::Relaxed);
        let left = self.file.num_bytes().saturating_sub(position);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_exact_at(position, &mut buffer[..count]);
        read.map_err(|error| io::Error::new(error.kind(), FromDisk(error)))?;
        self.position.store(position + count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Tells a disk that fails from compressed data that is wrong.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct FromDisk(FileError);

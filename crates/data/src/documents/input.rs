//! Sequential bytes of a file, decompressed if its name ends in `.gz` or `.zst`.
//!
//! Memory holds one buffer and the decompressor's window. Positions count bytes on disk, because
//! only their total is known; progress is a fraction of it.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use lockstep_platform::{FileAction, FileError, FileReader, Files};

use super::error::DocumentError;
use crate::error::DataError;

/// Size of the read and decompression buffers.
const BUFFER_BYTES: usize = 1 << 17;

/// Sequential reader of a file.
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

    /// Reader of bytes in memory; `path` identifies them in messages.
    pub(crate) fn from_bytes(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self {
            path,
            name: String::new(),
            is_compressed: false,
            position: Arc::new(AtomicU64::new(bytes.len() as u64)),
            reader: Box::new(Cursor::new(bytes)),
        }
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// File name in lower case, without the compression suffix.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Number of bytes read from disk.
    pub(crate) fn position_bytes(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Appends up to `limit` bytes; fewer only at the end of the file.
    pub(crate) fn read(&mut self, limit: usize, bytes: &mut Vec<u8>) -> Result<usize, DataError> {
        let read = self.reader.by_ref().take(limit as u64).read_to_end(bytes);
        read.map_err(|error| self.failed(&error))
    }

    /// Appends the rest of the line with its line end, at most `limit` bytes.
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

/// Reads a platform file in order.
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

/// Marks a disk error, as opposed to invalid compressed data.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct FromDisk(FileError);

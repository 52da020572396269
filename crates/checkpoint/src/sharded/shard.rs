//! Shard files, plain or compressed with zstd.
//!
//! A compressed file is a sequence of zstd frames of one mebibyte of uncompressed data each, so
//! that a range is read by decompressing only its frames; `zstd -d` restores the plain file. The
//! checksum covers the compressed bytes, so damage is detected before decompression.

use std::io;
use std::sync::{Mutex, PoisonError};

use lockstep_platform::{FileReader, FileWriter};

use super::manifest::FileEntry;
use super::shard_bytes::ShardBytes;
use super::zstd_frames::{FRAME_BYTES, ZstdFrames};
use crate::CheckpointError;

/// Fastest regular zstd level; higher levels gain little on weights.
const LEVEL: i32 = 1;

/// Writes a compressed file and returns its size, checksum and frames.
pub(super) fn write_packed(body: &ShardBytes, out: &mut dyn FileWriter) -> io::Result<Packed> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    let mut hasher = blake3::Hasher::new();
    let (mut num_bytes, mut ends) = (0, Vec::new());
    let mut end_frame = |plain: &mut Vec<u8>| {
        let frame = compressor.compress(plain)?;
        plain.clear();
        hasher.update(&frame);
        num_bytes += frame.len() as u64;
        ends.push(num_bytes);
        out.write_all(&frame)
    };
    let mut plain = Vec::with_capacity(FRAME_BYTES);
    for mut bytes in body.sections() {
        while !bytes.is_empty() {
            let room = (FRAME_BYTES - plain.len()).min(bytes.len());
            plain.extend_from_slice(&bytes[..room]);
            bytes = &bytes[room..];
            if plain.len() == FRAME_BYTES {
                end_frame(&mut plain)?;
            }
        }
    }
    if !plain.is_empty() {
        end_frame(&mut plain)?;
    }
    let frames =
        ZstdFrames { plain_bytes: body.num_bytes(), frame_bytes: FRAME_BYTES as u64, ends };
    Ok(Packed { bytes: num_bytes, blake3: hasher.finalize(), frames })
}

/// A compressed file.
pub(super) struct Packed {
    pub(super) bytes: u64,
    pub(super) blake3: blake3::Hash,
    pub(super) frames: ZstdFrames,
}

/// Reads any range of the uncompressed file.
pub(super) struct ShardReader {
    file: Box<dyn FileReader>,
    packed: Option<ZstdFrames>,
    /// The last decompressed frame with its index, since readers go through a file in order.
    last: Mutex<(usize, Vec<u8>)>,
}

impl ShardReader {
    pub(super) fn new(file: Box<dyn FileReader>, entry: &FileEntry) -> Self {
        let last = Mutex::new((usize::MAX, Vec::new()));
        Self { file, packed: entry.packed.clone(), last }
    }

    /// The file on disk.
    pub(super) fn on_disk(&self) -> &dyn FileReader {
        self.file.as_ref()
    }

    /// Fills the buffer from an offset of the uncompressed file, which the manifest has validated.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ReadFailure> {
        let Some(frames) = &self.packed else {
            return Ok(self.file.read_exact_at(offset, buffer).map_err(CheckpointError::from)?);
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        while done < buffer.len() {
            let place = offset + done as u64;
            let number = usize::try_from(place / frames.frame_bytes).expect("a frame in a list");
            if last.0 != number {
                last.0 = usize::MAX;
                last.1 = self.unpack(frames, number)?;
                last.0 = number;
            }
            let inside = (place % frames.frame_bytes) as usize;
            let rest = last.1.get(inside..).filter(|rest| !rest.is_empty());
            let rest =
                rest.ok_or_else(|| ReadFailure::Frame("the frame is too short".to_owned()))?;
            let len = rest.len().min(buffer.len() - done);
            buffer[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
        }
        Ok(())
    }

    fn unpack(&self, frames: &ZstdFrames, number: usize) -> Result<Vec<u8>, ReadFailure> {
        let start = if number == 0 { 0 } else { frames.ends[number - 1] };
        let mut packed = vec![0; (frames.ends[number] - start) as usize];
        self.file.read_exact_at(start, &mut packed).map_err(CheckpointError::from)?;
        zstd::bulk::decompress(&packed, frames.frame_bytes as usize)
            .map_err(|error| ReadFailure::Frame(error.to_string()))
    }
}

/// Failure of a read.
pub(super) enum ReadFailure {
    /// The file cannot be read.
    File(CheckpointError),
    /// A frame cannot be decompressed.
    Frame(String),
}

impl From<CheckpointError> for ReadFailure {
    fn from(error: CheckpointError) -> Self {
        Self::File(error)
    }
}

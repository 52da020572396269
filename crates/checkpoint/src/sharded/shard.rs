//! The bytes of one file of a checkpoint: as they are, or packed with zstd.
//!
//! A packed file is a row of zstd frames, each of one mebibyte of the plain file, so that any
//! stretch is read by unpacking the frames it lies in; `zstd -d` makes the plain file of it. The
//! checksum is that of what lies on the disk, so damage is noticed before anything is unpacked.

use std::io;
use std::sync::{Mutex, PoisonError};

use lockstep_platform::{FileReader, FileWriter};
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::manifest::FileEntry;
use crate::CheckpointError;

/// Bytes of the plain file in a frame.
const FRAME_BYTES: usize = 1 << 20;

/// The quickest of zstd's levels that are usual; weights are noise, and more effort finds little.
const LEVEL: i32 = 1;

/// How a file is packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Bytes of the plain file.
    pub plain_bytes: u64,
    /// Bytes of the plain file in each frame but the last.
    pub frame_bytes: u64,
    /// Where each frame ends in the file on the disk.
    pub ends: Vec<u64>,
}

impl Frames {
    /// Proves that the frames make a file of so many bytes.
    pub(super) fn prove(&self, bytes: u64) -> bool {
        let is_sane = (1..=FRAME_BYTES as u64).contains(&self.frame_bytes);
        is_sane
            && self.plain_bytes.div_ceil(self.frame_bytes) == self.ends.len() as u64
            && self.ends.is_sorted()
            && self.ends.last().copied().unwrap_or(0) == bytes
    }
}

/// Writes a file packed: the bytes on the disk, their checksum, and how they are packed.
pub(super) fn write_packed(body: &Body, out: &mut dyn FileWriter) -> io::Result<Packed> {
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
    for mut bytes in body.stretches() {
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
    let frames = Frames { plain_bytes: body.num_bytes(), frame_bytes: FRAME_BYTES as u64, ends };
    Ok(Packed { bytes: num_bytes, blake3: hasher.finalize(), frames })
}

/// A file that was packed.
pub(super) struct Packed {
    pub(super) bytes: u64,
    pub(super) blake3: blake3::Hash,
    pub(super) frames: Frames,
}

/// Reads any stretch of the plain file.
pub(super) struct ShardReader {
    file: Box<dyn FileReader>,
    packed: Option<Frames>,
    /// The frame that was unpacked last, by number: readers go through a file in order.
    last: Mutex<(usize, Vec<u8>)>,
}

impl ShardReader {
    pub(super) fn new(file: Box<dyn FileReader>, entry: &FileEntry) -> Self {
        let last = Mutex::new((usize::MAX, Vec::new()));
        Self { file, packed: entry.packed.clone(), last }
    }

    /// The file as it lies on the disk.
    pub(super) fn on_disk(&self) -> &dyn FileReader {
        self.file.as_ref()
    }

    /// Fills the buffer with the plain file from an offset on, which the manifest has proven to be
    /// there; says what is wrong where it is not.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
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
            let rest = rest.ok_or_else(|| Unreadable::Frame("it is too short".to_owned()))?;
            let len = rest.len().min(buffer.len() - done);
            buffer[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
        }
        Ok(())
    }

    fn unpack(&self, frames: &Frames, number: usize) -> Result<Vec<u8>, Unreadable> {
        let start = if number == 0 { 0 } else { frames.ends[number - 1] };
        let mut packed = vec![0; (frames.ends[number] - start) as usize];
        self.file.read_exact_at(start, &mut packed).map_err(CheckpointError::from)?;
        zstd::bulk::decompress(&packed, frames.frame_bytes as usize)
            .map_err(|error| Unreadable::Frame(error.to_string()))
    }
}

/// Why a stretch could not be read.
pub(super) enum Unreadable {
    /// The file itself.
    File(CheckpointError),
    /// A frame of it.
    Frame(String),
}

impl From<CheckpointError> for Unreadable {
    fn from(error: CheckpointError) -> Self {
        Self::File(error)
    }
}

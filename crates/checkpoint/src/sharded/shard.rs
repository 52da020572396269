//! The bytes of one file of a checkpoint: as they are, or packed with zstd.
//!
//! A packed file is a row of zstd frames, each of one mebibyte of the plain file, so that any
//! stretch is read by unpacking the frames it lies in; `zstd -d` makes the plain file of it. The
//! checksum is that of what lies on the disk, so damage is noticed before anything is unpacked.

use std::io;
use std::sync::{Mutex, PoisonError};

use lockstep_platform::{FileReader, FileWriter};
use serde::{Deserialize, Serialize};

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

/// Writes a file and its checksum.
pub(super) struct ShardWriter<'a> {
    out: &'a mut dyn FileWriter,
    hasher: blake3::Hasher,
    num_bytes: u64,
    packer: Option<Packer>,
}

struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
    plain: Vec<u8>,
    frames: Frames,
}

impl<'a> ShardWriter<'a> {
    pub(super) fn new(out: &'a mut dyn FileWriter, is_packed: bool) -> io::Result<Self> {
        let mut packer = None;
        if is_packed {
            let frames =
                Frames { plain_bytes: 0, frame_bytes: FRAME_BYTES as u64, ends: Vec::new() };
            let compressor = zstd::bulk::Compressor::new(LEVEL)?;
            packer = Some(Packer { compressor, plain: Vec::with_capacity(FRAME_BYTES), frames });
        }
        Ok(Self { out, hasher: blake3::Hasher::new(), num_bytes: 0, packer })
    }

    /// Adds bytes of the plain file.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.packer.is_none() {
            return self.put_down(bytes);
        }
        while let Some(packer) = &mut self.packer
            && !bytes.is_empty()
        {
            let room = (FRAME_BYTES - packer.plain.len()).min(bytes.len());
            packer.plain.extend_from_slice(&bytes[..room]);
            bytes = &bytes[room..];
            if packer.plain.len() == FRAME_BYTES {
                self.pack()?;
            }
        }
        Ok(())
    }

    /// The file's entry in the manifest.
    pub(super) fn finish(mut self, name: String) -> io::Result<FileEntry> {
        self.pack()?;
        let blake3 = self.hasher.finalize().to_hex().to_string();
        let packed = self.packer.map(|packer| packer.frames);
        Ok(FileEntry { name, bytes: self.num_bytes, blake3, packed })
    }

    /// Ends a frame.
    fn pack(&mut self) -> io::Result<()> {
        let Some(packer) = self.packer.as_mut().filter(|packer| !packer.plain.is_empty()) else {
            return Ok(());
        };
        let frame = packer.compressor.compress(&packer.plain)?;
        packer.frames.plain_bytes += packer.plain.len() as u64;
        packer.frames.ends.push(self.num_bytes + frame.len() as u64);
        packer.plain.clear();
        self.put_down(&frame)
    }

    fn put_down(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.num_bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
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

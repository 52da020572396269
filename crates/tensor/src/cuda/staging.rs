//! Copies between host memory and a device by way of pinned memory.
//!
//! A device transfers pinned memory only. Two pinned pieces take turns: while the device transfers
//! one, the host copies the other. Small uploads share a piece, so the host waits only when two
//! pieces of uploads are queued. Unlike a copy of the driver from pageable memory, which may read
//! it later on a host whose memory the device can address, an upload has read it when it returns.

use super::driver::{Context, CudaEvent, PinnedMemory};
use crate::device::error::Result;
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;

/// Bytes of a piece: long enough that the start of a transfer costs little.
const PIECE_BYTES: usize = 4 << 20;
/// Alignment of uploads inside a piece: a cache line.
const ALIGNMENT: usize = 64;

/// Pinned memory of one direction.
pub(super) struct Staging {
    context: Arc<Context>,
    pieces: [Piece; 2],
    /// Piece of the next upload, and its bytes that queued uploads may still read.
    current: usize,
    used: usize,
}

struct Piece {
    memory: PinnedMemory,
    /// The last transfer of the piece.
    done: CudaEvent,
}

impl Staging {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        let piece = || -> Result<Piece> {
            let memory = PinnedMemory::new(context, PIECE_BYTES)?;
            Ok(Piece { memory, done: CudaEvent::new(context, CudaEvent::WITHOUT_TIME)? })
        };
        let (context, pieces) = (Arc::clone(context), [piece()?, piece()?]);
        Ok(Self { context, pieces, current: 0, used: 0 })
    }

    /// Queues a copy of host memory to the device; the host's memory has been read on return.
    ///
    /// # Safety
    /// `bytes` must be readable at `from`, and at `to` be memory of the active device.
    pub(super) unsafe fn upload(&mut self, from: *const u8, to: u64, bytes: usize) -> Result<()> {
        let mut start = 0;
        while start < bytes {
            if self.used == PIECE_BYTES {
                self.current = 1 - self.current;
                self.pieces[self.current].done.synchronize()?;
                self.used = 0;
            }
            let piece = &self.pieces[self.current];
            let len = (bytes - start).min(PIECE_BYTES - self.used);
            // SAFETY: the piece has `len` bytes from `used` on, which no queued transfer reads: it
            // was waited for when its first byte came into use. The caller guarantees the rest.
            let code = unsafe {
                let staged = piece.memory.address.add(self.used);
                copy_nonoverlapping(from.add(start), staged, len);
                let (target, stream) = (to + start as u64, self.context.stream);
                (self.context.driver.copy_in)(target, staged.cast(), len, stream)
            };
            self.context.check("cuMemcpyHtoDAsync", code)?;
            piece.done.record()?;
            self.used = (self.used + len).next_multiple_of(ALIGNMENT);
            start += len;
        }
        Ok(())
    }

    /// Copies memory of the device to the host, and waits for it.
    ///
    /// # Safety
    /// `bytes` must be writable at `to`, and at `from` be memory of the active device.
    pub(super) unsafe fn download(&mut self, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        let span = |i: usize| (i * PIECE_BYTES, PIECE_BYTES.min(bytes - i * PIECE_BYTES));
        let num_spans = bytes.div_ceil(PIECE_BYTES);
        for i in 0..=num_spans {
            if i < num_spans {
                let ((start, len), piece) = (span(i), &self.pieces[i % 2]);
                // SAFETY: the host has copied the span before the last one from this piece, which
                // has `len` bytes; the caller guarantees the source.
                let code = unsafe {
                    let (staged, stream) = (piece.memory.address.cast(), self.context.stream);
                    (self.context.driver.copy_out)(staged, from + start as u64, len, stream)
                };
                self.context.check("cuMemcpyDtoHAsync", code)?;
                piece.done.record()?;
            }
            // The device is one span ahead of the host.
            if let Some(before) = i.checked_sub(1) {
                let ((start, len), piece) = (span(before), &self.pieces[before % 2]);
                piece.done.synchronize()?;
                // SAFETY: the transfer of the span is done; the caller guarantees the target.
                unsafe { copy_nonoverlapping(piece.memory.address, to.add(start), len) };
            }
        }
        Ok(())
    }
}

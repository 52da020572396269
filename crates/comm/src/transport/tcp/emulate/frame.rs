//! Frames of emulated links, and the queue of pieces that wait for their arrival time.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Length of a frame.
pub(super) const FRAME_BYTES: usize = 24;

/// First bytes of every frame; missing if the peer does not emulate its links.
const MAGIC: u32 = u32::from_le_bytes(*b"LkE1");

/// Most bytes in transit on one stream. A network holds its bandwidth-delay product, and that must
/// not depend on socket buffers here.
const MAX_BYTES: usize = 16 << 20;

/// Size of one chunk of the queue.
const CHUNK_BYTES: usize = 256 << 10;

/// Header of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) len: usize,
    /// Arrival time.
    pub(super) due: Duration,
    /// Transit time.
    pub(super) hold: Duration,
}

impl Frame {
    pub(super) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let (fields, _) = bytes.as_chunks_mut::<8>();
        fields[0] = (u64::from(MAGIC) | (self.len as u64) << 32).to_le_bytes();
        fields[1] = (self.due.as_nanos() as u64).to_le_bytes();
        fields[2] = (self.hold.as_nanos() as u64).to_le_bytes();
        bytes
    }

    /// Reads a frame; `None` without the magic bytes.
    fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let (fields, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(fields[index]);
        let (magic, len) = (word(0) as u32, (word(0) >> 32) as usize);
        let (due, hold) = (Duration::from_nanos(word(1)), Duration::from_nanos(word(2)));
        (magic == MAGIC && len > 0).then_some(Self { len, due, hold })
    }
}

/// Received bytes of one stream, in recycled chunks.
#[derive(Default)]
pub(super) struct Incoming {
    chunks: VecDeque<Chunk>,
    free: Vec<Chunk>,
    len: usize,
    /// Remaining bytes and arrival time of the first piece; `None` before its frame is complete.
    head: Option<(usize, Duration)>,
    /// The first bytes are not a frame.
    is_broken: bool,
}

struct Chunk {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Incoming {
    /// Whether the queue is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn has_room(&self) -> bool {
        self.len < MAX_BYTES
    }

    /// Time until the first piece arrives, if there is one.
    pub(super) fn arrives_in(&self, now: Duration) -> Option<Duration> {
        if self.is_broken {
            return Some(Duration::ZERO);
        }
        let (_, due) = self.head.filter(|_| !self.is_empty())?;
        Some(due.saturating_sub(now))
    }

    /// Calls `read` once on free space; a full queue would block.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !self.has_room() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.chunks.back().is_none_or(|last| last.end == last.bytes.len()) {
            let new = || Chunk { bytes: vec![0; CHUNK_BYTES].into(), start: 0, end: 0 };
            self.chunks.push_back(self.free.pop().unwrap_or_else(new));
        }
        let last = self.chunks.back_mut().expect("one was added if there was none");
        let num_bytes = read(&mut last.bytes[last.end..])?;
        last.end += num_bytes;
        self.len += num_bytes;
        Ok(num_bytes)
    }

    /// Moves arrived bytes to the buffer; 0 while none have arrived.
    pub(super) fn take(&mut self, buffer: &mut [u8], now: Duration) -> io::Result<usize> {
        let mut num_taken = 0;
        while num_taken < buffer.len() {
            let Some((left, due)) = self.head(now)? else { break };
            if due > now || self.is_empty() {
                break;
            }
            let space = &mut buffer[num_taken..];
            let limit = left.min(space.len());
            let len = self.move_to(&mut space[..limit]);
            num_taken += len;
            self.head = (left > len).then_some((left - len, due));
        }
        self.decode_head(now);
        Ok(num_taken)
    }

    /// Decodes the first frame, so that its arrival time is known.
    pub(super) fn decode_head(&mut self, now: Duration) {
        // An error surfaces when the piece is taken.
        let _ = self.head(now);
    }

    /// The first piece.
    fn head(&mut self, now: Duration) -> io::Result<Option<(usize, Duration)>> {
        if self.is_broken {
            let why = "it does not emulate the same network (emulate.* differs)";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if self.head.is_none() && self.len >= FRAME_BYTES {
            let mut bytes = [0; FRAME_BYTES];
            let mut num_moved = 0;
            while num_moved < FRAME_BYTES {
                num_moved += self.move_to(&mut bytes[num_moved..]);
            }
            let Some(frame) = Frame::decode(&bytes) else {
                self.is_broken = true;
                return self.head(now);
            };
            self.head = Some((frame.len, frame.due.min(now + frame.hold)));
        }
        Ok(self.head)
    }

    /// Moves as many bytes as possible from the first chunk.
    fn move_to(&mut self, buffer: &mut [u8]) -> usize {
        let Some(first) = self.chunks.front_mut() else { return 0 };
        let len = buffer.len().min(first.end - first.start);
        buffer[..len].copy_from_slice(&first.bytes[first.start..first.start + len]);
        first.start += len;
        self.len -= len;
        if first.start == first.end {
            (first.start, first.end) = (0, 0);
            if self.chunks.len() > 1 {
                self.free.extend(self.chunks.pop_front());
            }
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Fills the queue with `at_once` bytes at a time.
    fn put(incoming: &mut Incoming, bytes: &[u8], at_once: usize) {
        for piece in bytes.chunks(at_once) {
            let read = |space: &mut [u8]| {
                space[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            };
            incoming.fill(read).unwrap();
        }
    }

    #[test]
    fn pieces_arrive_when_they_are_due_however_they_came() {
        let frame = |len, due| Frame { len, due: at(due), hold: at(100) }.encode();
        let bytes = [&frame(3, 5)[..], b"abc", &frame(2, 7), b"de"].concat();
        for at_once in [1, 5, 100] {
            let mut incoming = Incoming::default();
            put(&mut incoming, &bytes, at_once);
            let mut buffer = [0; 10];
            assert_eq!(incoming.take(&mut buffer, at(4)).unwrap(), 0);
            assert_eq!(incoming.arrives_in(at(4)), Some(at(1)));
            assert_eq!(incoming.take(&mut buffer[..2], at(5)).unwrap(), 2);
            assert_eq!(incoming.take(&mut buffer[2..], at(6)).unwrap(), 1);
            assert_eq!(incoming.arrives_in(at(6)), Some(at(1)));
            assert_eq!(incoming.take(&mut buffer[3..], at(9)).unwrap(), 2);
            assert_eq!((&buffer[..5], incoming.is_empty()), (&b"abcde"[..], true));
            assert_eq!(incoming.arrives_in(at(9)), None);
        }
    }

    #[test]
    fn a_clock_ahead_holds_a_piece_for_its_transit_time_at_most() {
        let mut incoming = Incoming::default();
        let bytes = Frame { len: 1, due: at(1000), hold: at(2) }.encode();
        put(&mut incoming, &[&bytes[..], b"x"].concat(), 100);
        assert_eq!(incoming.take(&mut [0], at(10)).unwrap(), 0);
        assert_eq!(incoming.take(&mut [0], at(12)).unwrap(), 1);
    }

    #[test]
    fn bytes_without_a_frame_report_different_emulated_networks() {
        let mut incoming = Incoming::default();
        put(&mut incoming, &[7; 30], 100);
        let error = incoming.take(&mut [0; 4], at(1)).unwrap_err();
        assert_eq!(error.to_string(), "it does not emulate the same network (emulate.* differs)");
        assert_eq!(incoming.arrives_in(at(1)), Some(Duration::ZERO), "an error is ready at once");
    }
}

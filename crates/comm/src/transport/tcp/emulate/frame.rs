//! Frames, and the bytes that have come before they arrive.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Length of a frame.
pub(super) const FRAME_BYTES: usize = 24;

/// Starts every frame: whoever does not find it talks to a rank that emulates nothing.
const MAGIC: u32 = u32::from_le_bytes(*b"LkE1");

/// Room for what has come on one stream and not arrived. A real network holds as much as its
/// bandwidth times its delay, and here that must not depend on what sockets hold.
const MAX_BYTES: usize = 16 << 20;

/// A piece of memory for them.
const CHUNK_BYTES: usize = 256 << 10;

/// What stands in front of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) len: usize,
    /// The date at which it arrives.
    pub(super) due: Duration,
    /// How long it is under way.
    pub(super) hold: Duration,
}

impl Frame {
    pub(super) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        words[0] = (u64::from(MAGIC) | (self.len as u64) << 32).to_le_bytes();
        words[1] = (self.due.as_nanos() as u64).to_le_bytes();
        words[2] = (self.hold.as_nanos() as u64).to_le_bytes();
        bytes
    }

    /// Reads a frame; nothing if the bytes are none.
    fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        let (magic, len) = (word(0) as u32, (word(0) >> 32) as usize);
        let (due, hold) = (Duration::from_nanos(word(1)), Duration::from_nanos(word(2)));
        (magic == MAGIC && len > 0).then_some(Self { len, due, hold })
    }
}

/// What has come on one stream, in pieces of memory that are used again.
#[derive(Default)]
pub(super) struct Incoming {
    chunks: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    len: usize,
    /// What is left of the piece at the start, and when it arrives; nothing before its frame is
    /// whole.
    head: Option<(usize, Duration)>,
    /// The frame at the start is none.
    is_broken: bool,
}

struct Chunk {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Incoming {
    /// Whether nothing has come that was not taken.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn has_room(&self) -> bool {
        self.len < MAX_BYTES
    }

    /// How long until the piece at the start arrives, if one is there.
    pub(super) fn arrives_in(&self, now: Duration) -> Option<Duration> {
        if self.is_broken {
            return Some(Duration::ZERO);
        }
        let (_, due) = self.head.filter(|_| !self.is_empty())?;
        Some(due.saturating_sub(now))
    }

    /// Adds what `read` finds; it is asked once, and not at all where there is no room.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !self.has_room() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.chunks.back().is_none_or(|last| last.end == last.bytes.len()) {
            let new = || Chunk { bytes: vec![0; CHUNK_BYTES].into(), start: 0, end: 0 };
            self.chunks.push_back(self.spare.pop().unwrap_or_else(new));
        }
        let last = self.chunks.back_mut().expect("one was added if there was none");
        let num_bytes = read(&mut last.bytes[last.end..])?;
        last.end += num_bytes;
        self.len += num_bytes;
        Ok(num_bytes)
    }

    /// Moves bytes that have arrived to the buffer; 0 while none have.
    pub(super) fn take(&mut self, buffer: &mut [u8], now: Duration) -> io::Result<usize> {
        let mut num_taken = 0;
        while num_taken < buffer.len() {
            let Some((left, due)) = self.head(now)? else { break };
            if due > now || self.is_empty() {
                break;
            }
            let space = &mut buffer[num_taken..];
            let wanted = left.min(space.len());
            let len = self.move_to(&mut space[..wanted]);
            num_taken += len;
            self.head = (left > len).then_some((left - len, due));
        }
        self.look(now);
        Ok(num_taken)
    }

    /// Looks at the piece at the start, so that whoever waits knows for how long.
    pub(super) fn look(&mut self, now: Duration) {
        // What is wrong with it is told to whoever takes it.
        let _ = self.head(now);
    }

    /// The piece at the start.
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

    /// Moves bytes from the first chunk, as many as there are or fit.
    fn move_to(&mut self, buffer: &mut [u8]) -> usize {
        let Some(first) = self.chunks.front_mut() else { return 0 };
        let len = buffer.len().min(first.end - first.start);
        buffer[..len].copy_from_slice(&first.bytes[first.start..first.start + len]);
        first.start += len;
        self.len -= len;
        if first.start == first.end {
            (first.start, first.end) = (0, 0);
            if self.chunks.len() > 1 {
                self.spare.extend(self.chunks.pop_front());
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

    /// Puts bytes in, as many at a time as asked for.
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
    fn a_clock_that_is_ahead_keeps_nothing_longer_than_it_was_under_way() {
        let mut incoming = Incoming::default();
        let bytes = Frame { len: 1, due: at(1000), hold: at(2) }.encode();
        put(&mut incoming, &[&bytes[..], b"x"].concat(), 100);
        assert_eq!(incoming.take(&mut [0], at(10)).unwrap(), 0);
        assert_eq!(incoming.take(&mut [0], at(12)).unwrap(), 1);
    }

    #[test]
    fn bytes_without_a_frame_say_that_the_ranks_emulate_different_networks() {
        let mut incoming = Incoming::default();
        put(&mut incoming, &[7; 30], 100);
        let error = incoming.take(&mut [0; 4], at(1)).unwrap_err();
        assert_eq!(error.to_string(), "it does not emulate the same network (emulate.* differs)");
        assert_eq!(incoming.arrives_in(at(1)), Some(Duration::ZERO), "nobody waits for it");
    }
}

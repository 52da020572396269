//! Records: bytes that were sealed for the other end of one connection.
//!
//! A record is the length of what follows in two bytes, the sealed bytes and a tag. Records are
//! counted on both sides, so one that is left out, repeated or moved does not open. A length is
//! compared with the most that a record can have before anything is read for it, and the buffers of
//! a connection have room for one record in each direction and never grow.

use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};

use snow::{HandshakeState, StatelessTransportState};

/// Bytes in front of a record.
const LENGTH_BYTES: usize = 2;

/// What sealing adds.
const TAG_BYTES: usize = 16;

/// Bytes that one record carries at most.
pub(crate) const MAX_RECORD_BYTES: usize = 32 << 10;

/// The longest record as it travels.
const MAX_SEALED_BYTES: usize = LENGTH_BYTES + MAX_RECORD_BYTES + TAG_BYTES;

/// The keys of one connection, and how far both directions are. Several handles of one stream
/// share it.
pub struct Session {
    keys: StatelessTransportState,
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
}

/// What is on its way out.
#[derive(Default)]
struct Outgoing {
    num_records: u64,
    /// A sealed record, from `start` on not yet sent.
    sealed: Vec<u8>,
    start: usize,
    /// Where the pieces of a record are put together.
    space: Vec<u8>,
}

/// What has come in.
#[derive(Default)]
struct Incoming {
    num_records: u64,
    /// As it travels; `sealed[..end]` has come.
    sealed: Vec<u8>,
    end: usize,
    /// Opened, from `start` on not yet taken.
    opened: Vec<u8>,
    start: usize,
}

impl Session {
    /// After a handshake that is finished.
    pub(crate) fn new(state: HandshakeState) -> Self {
        let keys = state.into_stateless_transport_mode().expect("the handshake is finished");
        Self { keys, outgoing: Mutex::default(), incoming: Mutex::default() }
    }

    /// Seals the first bytes of some pieces as one record, which [`flush`](Self::flush) sends.
    /// Returns how many bytes are in it.
    pub(crate) fn seal(&self, pieces: &[IoSlice<'_>]) -> usize {
        let mut outgoing = lock(&self.outgoing);
        let Outgoing { num_records, sealed, start, space } = &mut *outgoing;
        assert_eq!(*start, sealed.len(), "the last record has left");
        let plain = gathered(pieces, space);
        sealed.resize(LENGTH_BYTES + plain.len() + TAG_BYTES, 0);
        let written = self.keys.write_message(*num_records, plain, &mut sealed[LENGTH_BYTES..]);
        let len = written.expect("there is room, and fewer than 2^64 records");
        sealed[..LENGTH_BYTES].copy_from_slice(&(len as u16).to_le_bytes());
        (*num_records, *start) = (*num_records + 1, 0);
        plain.len()
    }

    /// Sends what is left of the last record.
    pub(crate) fn flush(
        &self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        while outgoing.start < outgoing.sealed.len() {
            match write(&outgoing.sealed[outgoing.start..])? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                num_bytes => outgoing.start += num_bytes,
            }
        }
        Ok(())
    }

    /// Reads opened bytes; sealed ones come from `read`. Without `ahead` nothing is read beyond the
    /// end of a record, so the rest of the stream may be something else.
    pub(crate) fn read(
        &self,
        buffer: &mut [u8],
        ahead: bool,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            let taken = incoming.take(buffer);
            if taken > 0 || buffer.is_empty() {
                return Ok(taken);
            }
            if let Some(num_bytes) = incoming.open(&self.keys, buffer)? {
                if num_bytes > 0 {
                    return Ok(num_bytes);
                }
                continue;
            }
            incoming.sealed.resize(MAX_SEALED_BYTES, 0);
            let (end, wanted) = (incoming.end, incoming.wanted()?);
            let most = if ahead { MAX_SEALED_BYTES } else { wanted };
            match read(&mut incoming.sealed[end..most])? {
                0 if end == 0 => return Ok(0),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                num_bytes => incoming.end += num_bytes,
            }
        }
    }

    /// Whether bytes can be read without anything coming in.
    pub(crate) fn has_more(&self) -> bool {
        let incoming = lock(&self.incoming);
        let is_whole = |wanted| wanted > LENGTH_BYTES && incoming.end >= wanted;
        incoming.start < incoming.opened.len() || incoming.wanted().map_or(true, is_whole)
    }

    /// Whether nothing was read that was not taken, and all has left.
    pub(crate) fn is_empty(&self) -> bool {
        let (incoming, outgoing) = (lock(&self.incoming), lock(&self.outgoing));
        incoming.start == incoming.opened.len()
            && incoming.end == 0
            && outgoing.start == outgoing.sealed.len()
    }

    /// A record of its own, as it travels.
    pub fn seal_one(&self, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() <= MAX_RECORD_BYTES, "a short message");
        self.seal(&[IoSlice::new(bytes)]);
        let mut outgoing = lock(&self.outgoing);
        outgoing.start = 0;
        std::mem::take(&mut outgoing.sealed)
    }

    /// What a whole record says; nothing if it was not sealed for this end, as its next record.
    pub fn open_one(&self, record: &[u8]) -> Option<Vec<u8>> {
        let (length, sealed) = record.split_first_chunk()?;
        if usize::from(u16::from_le_bytes(*length)) != sealed.len() {
            return None;
        }
        let mut incoming = lock(&self.incoming);
        let mut opened = vec![0; sealed.len().checked_sub(TAG_BYTES)?];
        self.keys.read_message(incoming.num_records, sealed, &mut opened).ok()?;
        incoming.num_records += 1;
        Some(opened)
    }
}

/// How long a record is that starts with these bytes, as far as they tell: its length must come
/// before anything else. Nothing if it would be longer than `most`.
pub fn record_bytes(bytes: &[u8], most: usize) -> Option<usize> {
    let Some(length) = bytes.first_chunk() else { return Some(LENGTH_BYTES) };
    let len = usize::from(u16::from_le_bytes(*length));
    (TAG_BYTES..=most + TAG_BYTES).contains(&len).then_some(LENGTH_BYTES + len)
}

impl Incoming {
    /// Hands over what is open.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let len = buffer.len().min(self.opened.len() - self.start);
        buffer[..len].copy_from_slice(&self.opened[self.start..self.start + len]);
        self.start += len;
        len
    }

    /// Bytes that must have come before something can be done.
    fn wanted(&self) -> io::Result<usize> {
        record_bytes(&self.sealed[..self.end], MAX_RECORD_BYTES).ok_or_else(strange)
    }

    /// Opens the next record if it is there: into the buffer if it fits, where its length is
    /// returned, and otherwise to be taken from.
    fn open(
        &mut self,
        keys: &StatelessTransportState,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let wanted = self.wanted()?;
        if wanted == LENGTH_BYTES || self.end < wanted {
            return Ok(None);
        }
        let len = wanted - LENGTH_BYTES - TAG_BYTES;
        let fits = len <= buffer.len();
        if !fits {
            self.opened.resize(len, 0);
        }
        let target = if fits { &mut buffer[..len] } else { &mut self.opened[..] };
        let sealed = &self.sealed[LENGTH_BYTES..wanted];
        let opened = keys.read_message(self.num_records, sealed, target);
        if opened.is_err() {
            self.opened.clear();
            return Err(strange());
        }
        self.num_records += 1;
        self.sealed.copy_within(wanted..self.end, 0);
        self.end -= wanted;
        if fits {
            return Ok(Some(len));
        }
        self.start = 0;
        Ok(Some(0))
    }
}

/// The pieces as one, at most as long as a record; they are copied only if they are several.
fn gathered<'a>(pieces: &'a [IoSlice<'_>], space: &'a mut Vec<u8>) -> &'a [u8] {
    if let [piece] = pieces {
        return &piece[..piece.len().min(MAX_RECORD_BYTES)];
    }
    space.clear();
    for piece in pieces {
        let room = MAX_RECORD_BYTES - space.len();
        space.extend_from_slice(&piece[..piece.len().min(room)]);
    }
    space
}

fn strange() -> io::Error {
    let reason = "it sent bytes that no rank of this run has sealed";
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

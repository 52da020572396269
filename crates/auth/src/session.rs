//! Encrypted records of one connection.
//!
//! A record is a length of two bytes, the ciphertext and a tag. Both ends count records and use the
//! count as nonce, so a record that is dropped, repeated or moved does not decrypt. The reader
//! checks a length against the maximum before it reads on. The buffers of a connection hold one
//! record in each direction and never grow.

use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};

use snow::{HandshakeState, StatelessTransportState};

/// Length field of a record.
const LENGTH_BYTES: usize = 2;

/// Authentication tag of a record.
const TAG_BYTES: usize = 16;

/// Longest plaintext of a record.
pub(crate) const MAX_RECORD_BYTES: usize = 32 << 10;

/// Longest record on the wire.
const MAX_SEALED_BYTES: usize = LENGTH_BYTES + MAX_RECORD_BYTES + TAG_BYTES;

/// Keys and record counts of one connection. All handles of a stream share it.
pub struct Session {
    keys: StatelessTransportState,
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
}

/// State of the sending direction.
#[derive(Default)]
struct Outgoing {
    num_records: u64,
    /// Last encrypted record; `sealed[start..]` is not sent yet.
    sealed: Vec<u8>,
    start: usize,
    /// Scratch space for a record of several slices.
    space: Vec<u8>,
}

/// State of the receiving direction.
#[derive(Default)]
struct Incoming {
    num_records: u64,
    /// Encrypted bytes; `sealed[..end]` is received.
    sealed: Vec<u8>,
    end: usize,
    /// Decrypted bytes; `opened[start..]` is not delivered yet.
    opened: Vec<u8>,
    start: usize,
}

impl Session {
    /// Session of a completed handshake.
    pub(crate) fn new(state: HandshakeState) -> Self {
        let keys = state.into_stateless_transport_mode().expect("the handshake is finished");
        Self { keys, outgoing: Mutex::default(), incoming: Mutex::default() }
    }

    /// Encrypts the first bytes of `pieces` as one record, which [`flush`](Self::flush) sends.
    /// Returns the number of plaintext bytes in it.
    pub(crate) fn seal(&self, pieces: &[IoSlice<'_>]) -> usize {
        let mut outgoing = lock(&self.outgoing);
        let Outgoing { num_records, sealed, start, space } = &mut *outgoing;
        assert_eq!(*start, sealed.len(), "the last record is sent");
        let plain = join_pieces(pieces, space);
        sealed.resize(LENGTH_BYTES + plain.len() + TAG_BYTES, 0);
        let written = self.keys.write_message(*num_records, plain, &mut sealed[LENGTH_BYTES..]);
        let len = written.expect("there is room, and fewer than 2^64 records");
        sealed[..LENGTH_BYTES].copy_from_slice(&(len as u16).to_le_bytes());
        (*num_records, *start) = (*num_records + 1, 0);
        plain.len()
    }

    /// Sends the rest of the last record.
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

    /// Reads decrypted bytes; `read` supplies encrypted ones. Without `ahead` nothing is read
    /// beyond the end of a record, so plaintext may follow it on the stream.
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
            let (end, needed_bytes) = (incoming.end, incoming.needed_bytes()?);
            let most = if ahead { MAX_SEALED_BYTES } else { needed_bytes };
            match read(&mut incoming.sealed[end..most])? {
                0 if end == 0 => return Ok(0),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                num_bytes => incoming.end += num_bytes,
            }
        }
    }

    /// Whether bytes can be read without receiving more.
    pub(crate) fn has_more(&self) -> bool {
        let incoming = lock(&self.incoming);
        let is_whole = |needed_bytes| needed_bytes > LENGTH_BYTES && incoming.end >= needed_bytes;
        incoming.start < incoming.opened.len() || incoming.needed_bytes().map_or(true, is_whole)
    }

    /// Whether everything received is delivered and everything encrypted is sent.
    pub(crate) fn is_empty(&self) -> bool {
        let (incoming, outgoing) = (lock(&self.incoming), lock(&self.outgoing));
        incoming.start == incoming.opened.len()
            && incoming.end == 0
            && outgoing.start == outgoing.sealed.len()
    }

    /// Encrypts one short message as a record.
    pub fn seal_one(&self, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() <= MAX_RECORD_BYTES, "a short message");
        self.seal(&[IoSlice::new(bytes)]);
        let mut outgoing = lock(&self.outgoing);
        outgoing.start = 0;
        std::mem::take(&mut outgoing.sealed)
    }

    /// Decrypts a whole record; `None` unless it is the next record of the other end.
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

/// Number of bytes of a record that starts with `bytes`, or of its length field while that is
/// incomplete. `None` if the plaintext would be longer than `most`.
pub fn record_bytes(bytes: &[u8], most: usize) -> Option<usize> {
    let Some(length) = bytes.first_chunk() else { return Some(LENGTH_BYTES) };
    let len = usize::from(u16::from_le_bytes(*length));
    (TAG_BYTES..=most + TAG_BYTES).contains(&len).then_some(LENGTH_BYTES + len)
}

impl Incoming {
    /// Delivers decrypted bytes.
    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let len = buffer.len().min(self.opened.len() - self.start);
        buffer[..len].copy_from_slice(&self.opened[self.start..self.start + len]);
        self.start += len;
        len
    }

    /// Number of received bytes that the next record needs.
    fn needed_bytes(&self) -> io::Result<usize> {
        record_bytes(&self.sealed[..self.end], MAX_RECORD_BYTES).ok_or_else(not_authentic)
    }

    /// Decrypts the next record if it is complete: into `buffer` if it fits, returning its length,
    /// otherwise into `self.opened`, returning 0.
    fn open(
        &mut self,
        keys: &StatelessTransportState,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let needed_bytes = self.needed_bytes()?;
        if needed_bytes == LENGTH_BYTES || self.end < needed_bytes {
            return Ok(None);
        }
        let len = needed_bytes - LENGTH_BYTES - TAG_BYTES;
        let fits = len <= buffer.len();
        if !fits {
            self.opened.resize(len, 0);
        }
        let target = if fits { &mut buffer[..len] } else { &mut self.opened[..] };
        let sealed = &self.sealed[LENGTH_BYTES..needed_bytes];
        let opened = keys.read_message(self.num_records, sealed, target);
        if opened.is_err() {
            self.opened.clear();
            return Err(not_authentic());
        }
        self.num_records += 1;
        self.sealed.copy_within(needed_bytes..self.end, 0);
        self.end -= needed_bytes;
        if fits {
            return Ok(Some(len));
        }
        self.start = 0;
        Ok(Some(0))
    }
}

/// Joins the pieces, cut to the longest record. A single piece is not copied.
fn join_pieces<'a>(pieces: &'a [IoSlice<'_>], space: &'a mut Vec<u8>) -> &'a [u8] {
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

fn not_authentic() -> io::Error {
    let reason = "it sent bytes that no rank of this run has encrypted";
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

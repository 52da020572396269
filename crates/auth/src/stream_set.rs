//! A set of plaintext and encrypted streams, polled by one thread.
//!
//! A record must be sent whole before its bytes count as written. Otherwise the tail of a message
//! could stay in the buffer without a later write to flush it. A write that sends only part of a
//! record therefore reports `WouldBlock`; the next write of the same bytes sends the rest and
//! reports them. A sender must repeat the same bytes after `WouldBlock`.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use lockstep_platform::{Interest, Listener, Stream, StreamSet};

use super::session::Session;
use super::stream::SealedStream;

/// Stream set in which some streams are encrypted.
pub struct SealedStreamSet {
    inner: Box<dyn StreamSet>,
    /// Indexed like the inner set; `None` for plaintext streams.
    seals: Vec<Option<Seal>>,
}

struct Seal {
    session: Arc<Session>,
    /// Plaintext bytes of a record that is sent in part.
    num_claimed: usize,
    is_read_watched: bool,
}

impl SealedStreamSet {
    /// Wraps a set that has no streams yet.
    pub fn new(inner: Box<dyn StreamSet>) -> Self {
        Self { inner, seals: Vec::new() }
    }

    fn seal(&self, stream: usize) -> Option<&Seal> {
        self.seals.get(stream)?.as_ref()
    }
}

impl StreamSet for SealedStreamSet {
    fn add(&mut self, stream: Box<dyn Stream>) -> usize {
        let (stream, session) = if stream.as_any().is::<SealedStream>() {
            let sealed = stream.into_any().downcast::<SealedStream>().expect("checked above");
            (sealed.stream, Some(sealed.session))
        } else {
            (stream, None)
        };
        let number = self.inner.add(stream);
        if self.seals.len() <= number {
            self.seals.resize_with(number + 1, || None);
        }
        self.seals[number] =
            session.map(|session| Seal { session, num_claimed: 0, is_read_watched: false });
        number
    }

    fn remove(&mut self, stream: usize) -> Box<dyn Stream> {
        let inner = self.inner.remove(stream);
        match self.seals[stream].take() {
            Some(seal) => Box::new(SealedStream { stream: inner, session: seal.session }),
            None => inner,
        }
    }

    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.seals[stream] {
            Some(seal) => seal.session.read(buffer, true, |space| self.inner.read(stream, space)),
            None => self.inner.read(stream, buffer),
        }
    }

    fn write(&mut self, stream: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(seal) = &mut self.seals[stream] else { return self.inner.write(stream, pieces) };
        let mut send = |sealed: &[u8]| self.inner.write(stream, &[IoSlice::new(sealed)]);
        seal.session.flush(&mut send)?;
        if seal.num_claimed == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
            seal.num_claimed = seal.session.seal(pieces);
            seal.session.flush(&mut send)?;
        }
        Ok(std::mem::take(&mut seal.num_claimed))
    }

    fn watch(&mut self, stream: usize, interest: Interest) {
        if let Some(seal) = &mut self.seals[stream] {
            seal.is_read_watched = interest.read;
        }
        self.inner.watch(stream, interest);
    }

    fn wait(&mut self, listener: Option<&dyn Listener>, timeout: Duration) -> io::Result<bool> {
        // The inner set does not know of bytes that are already decrypted.
        let is_any = self.seals.iter().flatten().any(Seal::is_ready);
        let timeout = if is_any { Duration::ZERO } else { timeout };
        Ok(self.inner.wait(listener, timeout)? || is_any)
    }

    fn is_ready(&self, stream: usize) -> bool {
        self.inner.is_ready(stream) || self.seal(stream).is_some_and(Seal::is_ready)
    }
}

impl Seal {
    fn is_ready(&self) -> bool {
        self.is_read_watched && self.session.has_more()
    }
}

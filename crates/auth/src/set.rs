//! Many streams in the hands of one thread, sealed ones among them.
//!
//! A record has to leave whole before its bytes count as written, or the end of a message could
//! stay behind with nobody left to push it. So a write that the stream takes only a part of is
//! reported as one that would block, although the record exists already; the next write of the same
//! bytes sends the rest of it and then reports the bytes. Whoever writes must therefore offer the
//! same bytes again, as every sender does that keeps its place.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use lockstep_platform::{Interest, Listener, Stream, StreamSet};

use super::session::Session;
use super::stream::SealedStream;

/// A set of which some streams are sealed.
pub struct SealedSet {
    inner: Box<dyn StreamSet>,
    /// By the inner set's numbers; nothing for streams that are plain.
    seals: Vec<Option<Seal>>,
}

struct Seal {
    session: Arc<Session>,
    /// Bytes that are in a record which has not left whole.
    num_claimed: usize,
    is_read_watched: bool,
}

impl SealedSet {
    /// Wraps a set that has no streams yet.
    pub fn new(inner: Box<dyn StreamSet>) -> Self {
        Self { inner, seals: Vec::new() }
    }

    fn seal(&self, stream: usize) -> Option<&Seal> {
        self.seals.get(stream)?.as_ref()
    }
}

impl StreamSet for SealedSet {
    fn add(&mut self, stream: Box<dyn Stream>) -> usize {
        let (stream, session) = if stream.as_any().is::<SealedStream>() {
            let sealed = stream.into_any().downcast::<SealedStream>().expect("asked above");
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
        // What was opened already would wake nobody.
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

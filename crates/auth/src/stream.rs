//! A stream that encrypts every byte.
//!
//! The rendezvous protocol runs on it. Afterwards the connection stays encrypted or continues in
//! plaintext. It never reads beyond a record, so unwrapping loses no bytes.

use std::any::Any;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use lockstep_platform::{NetError, Stream};

use super::session::Session;

/// Stream with the session that encrypts it.
pub struct SealedStream {
    pub(super) stream: Box<dyn Stream>,
    pub(super) session: Arc<Session>,
}

impl SealedStream {
    /// Encrypts a stream with the keys of its session.
    pub fn new(stream: Box<dyn Stream>, session: Session) -> Self {
        Self { stream, session: Arc::new(session) }
    }

    /// Continues the stream encrypted or in plaintext.
    pub fn proceed(self, sealed: bool) -> Box<dyn Stream> {
        if sealed {
            return Box::new(self);
        }
        assert!(self.session.is_empty(), "both ends are between two messages");
        self.stream
    }

    /// The stream below the encryption, for tests that inject bytes.
    #[doc(hidden)]
    pub fn proceed_unsealed(self) -> Box<dyn Stream> {
        self.stream
    }
}

impl Read for SealedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.session.read(buffer, false, |space| self.stream.read(space))
    }
}

impl Write for SealedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.session.flush(|sealed| self.stream.write(sealed))?;
        let num_bytes = self.session.seal(&[IoSlice::new(bytes)]);
        self.session.flush(|sealed| self.stream.write(sealed))?;
        Ok(num_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.session.flush(|sealed| self.stream.write(sealed))
    }
}

impl Stream for SealedStream {
    fn set_deadline(&mut self, timeout: Option<Duration>) {
        self.stream.set_deadline(timeout);
    }

    fn set_nodelay(&self, nodelay: bool) -> Result<(), NetError> {
        self.stream.set_nodelay(nodelay)
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, NetError> {
        let (stream, session) = (self.stream.try_clone()?, Arc::clone(&self.session));
        Ok(Box::new(Self { stream, session }))
    }

    fn shutdown(&self) -> Result<(), NetError> {
        self.stream.shutdown()
    }

    fn set_keepalive_timeout(&self, limit: Duration) -> Result<(), NetError> {
        self.stream.set_keepalive_timeout(limit)
    }

    fn local_addr(&self) -> String {
        self.stream.local_addr()
    }

    fn peer_addr(&self) -> String {
        self.stream.peer_addr()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

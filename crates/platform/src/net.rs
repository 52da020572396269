//! Byte streams between processes.
//!
//! Addresses are text, `host:port`. A deadline covers *all* reads and writes after
//! [`Stream::set_deadline`], not each call: a peer that sends single bytes cannot keep a reader
//! beyond the deadline of the whole message.
//!
//! A thread with many peers puts its streams into a [`StreamSet`], which waits for all of them with
//! one call.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::time::Duration;

use crate::error_text;

/// Factory of streams.
pub trait Net: Send + Sync {
    /// Listens at an address; port 0 lets the system choose one.
    fn listen(&self, addr: &str) -> Result<Box<dyn Listener>, NetError>;

    /// Connects to an address within `timeout`. The host name lookup comes first and is bounded by
    /// the system's resolver only.
    fn connect(&self, addr: &str, timeout: Duration) -> Result<Box<dyn Stream>, NetError>;

    /// Empty set for streams of this platform.
    fn stream_set(&self) -> Box<dyn StreamSet>;
}

/// A listening address.
pub trait Listener: Send {
    /// Accepts the next stream within `timeout`.
    fn accept(&self, timeout: Duration) -> Result<Box<dyn Stream>, NetError>;

    /// Address to connect to, with the actual port.
    fn local_addr(&self) -> String;

    /// Listener as its concrete type.
    fn as_any(&self) -> &dyn Any;
}

/// Bidirectional byte stream. A read returns 0 bytes after the peer has closed it.
pub trait Stream: io::Read + io::Write + Send {
    /// Sets the deadline of reads and writes through this handle to `timeout` from now; later calls
    /// that would block fail with [`io::ErrorKind::TimedOut`]. `None` removes it, for a handle that
    /// another thread will [shut down](Stream::shutdown). New streams and clones have no deadline.
    fn set_deadline(&mut self, timeout: Option<Duration>);

    /// Sets TCP_NODELAY: small writes are sent at once.
    fn set_nodelay(&self, nodelay: bool) -> Result<(), NetError>;

    /// Second handle of the stream with its own deadline, so that one thread can read while another
    /// writes.
    fn try_clone(&self) -> Result<Box<dyn Stream>, NetError>;

    /// Ends the stream in both directions for all handles, and wakes their waiters.
    fn shutdown(&self) -> Result<(), NetError>;

    /// Enables keep-alive: a peer whose machine has not answered for about `limit` counts as lost,
    /// and the stream fails, also when it is idle. Systems count in whole seconds.
    fn set_keepalive_timeout(&self, limit: Duration) -> Result<(), NetError>;

    /// Local address.
    fn local_addr(&self) -> String;

    /// Remote address.
    fn peer_addr(&self) -> String;

    /// Stream as its concrete type.
    fn as_any(&self) -> &dyn Any;

    /// Stream as its concrete type, owned.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// Many streams of one thread. Reads and writes never block; the streams' deadlines do not apply.
pub trait StreamSet: Send {
    /// Adds a stream and returns its number, which is free again after [`Self::remove`].
    ///
    /// # Panics
    /// If the stream belongs to another platform than the set.
    fn add(&mut self, stream: Box<dyn Stream>) -> usize;

    /// Removes and returns a stream.
    ///
    /// # Panics
    /// If the set has no such stream, as do all calls with a number.
    fn remove(&mut self, stream: usize) -> Box<dyn Stream>;

    /// Reads available bytes; 0 bytes after the peer has closed the stream,
    /// [`io::ErrorKind::WouldBlock`] if there are none.
    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes as much of the consecutive pieces as fits into the socket buffer;
    /// [`io::ErrorKind::WouldBlock`] if nothing fits.
    fn write(&mut self, stream: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sets the events that [`StreamSet::wait`] waits for on a stream; none at first.
    fn watch(&mut self, stream: usize, interest: Interest);

    /// Waits up to `timeout` for a watched event, a failure, or a new stream at `listener`. Returns
    /// whether any of them occurred.
    fn wait(&mut self, listener: Option<&dyn Listener>, timeout: Duration) -> io::Result<bool>;

    /// Whether the last wait found this stream ready.
    fn is_ready(&self, stream: usize) -> bool;
}

/// Events to wait for on a stream of a [`StreamSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Readable, or closed.
    pub read: bool,
    /// Writable.
    pub write: bool,
}

/// Operation of a [`NetError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetAction {
    /// Binding an address.
    Listen,
    /// Accepting a stream.
    Accept,
    /// Connecting a stream.
    Connect,
    /// Configuring or closing a stream.
    Configure,
}

impl fmt::Display for NetAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listen => "listen on",
            Self::Accept => "accept on",
            Self::Connect => "connect to",
            Self::Configure => "configure the stream to",
        })
    }
}

/// A failed network operation: `cannot connect to 127.0.0.1:9: connection refused`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {addr}: {reason}")]
pub struct NetError {
    action: NetAction,
    addr: String,
    kind: io::ErrorKind,
    reason: String,
}

impl NetError {
    /// Adds the operation and the address to a system error.
    pub fn new(action: NetAction, addr: &str, error: &io::Error) -> Self {
        Self { action, addr: addr.to_owned(), kind: error.kind(), reason: error_text::of(error) }
    }

    /// Error of an operation that timed out.
    pub fn timed_out(action: NetAction, addr: &str, timeout: Duration) -> Self {
        let reason = format!("nothing happened within {} ms", timeout.as_millis());
        Self { action, addr: addr.to_owned(), kind: io::ErrorKind::TimedOut, reason }
    }

    /// Failed operation.
    pub fn action(&self) -> NetAction {
        self.action
    }

    /// Address of the operation.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Reason without operation and address.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Class of the error, for decisions in code.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

//! Byte streams between processes.
//!
//! Addresses are text, `host:port`. A stream's deadline covers *all* reading and writing after
//! [`Stream::set_deadline`], not each call: a peer that sends one byte now and then cannot keep
//! a reader longer than the deadline of the whole message.
//!
//! A thread that talks to many peers at once puts its streams into a [`StreamSet`]: there no call
//! waits for one stream alone, and one call waits for all of them together.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice};
use std::time::Duration;

use crate::reason;

/// A source of streams.
pub trait Net: Send + Sync {
    /// Starts to accept streams at an address; port 0 lets the system choose one.
    fn listen(&self, addr: &str) -> Result<Box<dyn Listener>, NetError>;

    /// Opens a stream to an address, waiting up to `timeout`. Looking up a host name happens
    /// before and is bounded by the system's resolver only.
    fn connect(&self, addr: &str, timeout: Duration) -> Result<Box<dyn Stream>, NetError>;

    /// An empty set, for streams of this world.
    fn stream_set(&self) -> Box<dyn StreamSet>;
}

/// An address at which streams arrive.
pub trait Listener: Send {
    /// The next stream, waiting up to `timeout` for one.
    fn accept(&self, timeout: Duration) -> Result<Box<dyn Stream>, NetError>;

    /// The address others connect to, with the real port.
    fn local_addr(&self) -> String;

    /// The listener as its own world knows it.
    fn as_any(&self) -> &dyn Any;
}

/// A two-way stream of bytes. Reading gives 0 bytes once the peer has closed it.
pub trait Stream: io::Read + io::Write + Send {
    /// Reading and writing through this handle must end within `timeout` from now; after that
    /// a call that would have to wait fails with [`io::ErrorKind::TimedOut`]. `None` lifts the
    /// limit: only for a handle whose twin will be [shut down](Stream::shutdown) by a watcher.
    /// A new stream, and a clone, has no limit.
    fn set_deadline(&mut self, timeout: Option<Duration>);

    /// Whether small writes leave at once instead of being gathered.
    fn set_nodelay(&self, nodelay: bool) -> Result<(), NetError>;

    /// A second handle to the same stream, with a deadline of its own, so that one thread can
    /// read while another writes.
    fn try_clone(&self) -> Result<Box<dyn Stream>, NetError>;

    /// Ends the stream in both directions, for all handles; whoever waits on it wakes.
    fn shutdown(&self) -> Result<(), NetError>;

    /// From now on a peer whose machine has not answered for about `limit` counts as gone, and
    /// the stream fails, also when nothing is being sent. A machine that loses its power closes
    /// no stream. Systems count in whole seconds.
    fn set_silence_limit(&self, limit: Duration) -> Result<(), NetError>;

    /// This end's address.
    fn local_addr(&self) -> String;

    /// The other end's address.
    fn peer_addr(&self) -> String;

    /// The stream as its own kind, to look what kind that is.
    fn as_any(&self) -> &dyn Any;

    /// The stream as its own kind.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// Many streams in the hands of one thread. Reading and writing never wait; deadlines of the
/// streams do not apply.
pub trait StreamSet: Send {
    /// Takes a stream in. The number is free again once the stream was [removed](Self::remove).
    ///
    /// # Panics
    /// When the stream is from another world than the set.
    fn add(&mut self, stream: Box<dyn Stream>) -> usize;

    /// Gives a stream back.
    ///
    /// # Panics
    /// When the set has no such stream; so do all calls with a number.
    fn remove(&mut self, stream: usize) -> Box<dyn Stream>;

    /// Reads what is there, up to the length of the buffer; 0 bytes once the peer has closed the
    /// stream, [`io::ErrorKind::WouldBlock`] while there is nothing.
    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes as much of the pieces, one after the other, as there is room for on the way;
    /// [`io::ErrorKind::WouldBlock`] while there is none.
    fn write(&mut self, stream: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Says what [`StreamSet::wait`] waits for on a stream; nothing at first.
    fn watch(&mut self, stream: usize, interest: Interest);

    /// Waits up to `timeout` until something that is watched for can be done, or has failed, or a
    /// stream arrives at `listener`. Returns whether any of that happened.
    fn wait(&mut self, listener: Option<&dyn Listener>, timeout: Duration) -> io::Result<bool>;

    /// Whether the last wait ended because of this stream, perhaps among others.
    fn is_ready(&self, stream: usize) -> bool;
}

/// What to wait for on a stream of a [`StreamSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes to read, or the end.
    pub read: bool,
    /// Room to write.
    pub write: bool,
}

/// What was being tried when a [`NetError`] happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetAction {
    /// Claiming an address.
    Listen,
    /// Waiting for a stream.
    Accept,
    /// Opening a stream.
    Connect,
    /// Changing or ending a stream.
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

/// A network operation that failed: `cannot connect to 127.0.0.1:9: connection refused`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {addr}: {reason}")]
pub struct NetError {
    action: NetAction,
    addr: String,
    kind: io::ErrorKind,
    reason: String,
}

impl NetError {
    /// Puts the address and the attempt beside the system's error.
    pub fn new(action: NetAction, addr: &str, error: &io::Error) -> Self {
        Self { action, addr: addr.to_owned(), kind: error.kind(), reason: reason::of(error) }
    }

    /// The attempt did not end within its time limit.
    pub fn timed_out(action: NetAction, addr: &str, timeout: Duration) -> Self {
        let reason = format!("nothing happened within {} ms", timeout.as_millis());
        Self { action, addr: addr.to_owned(), kind: io::ErrorKind::TimedOut, reason }
    }

    /// What was being tried.
    pub fn action(&self) -> NetAction {
        self.action
    }

    /// The address it was tried on.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// The class of the failure, for decisions; the text is for people.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

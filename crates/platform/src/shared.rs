//! Shared memory between processes of one host, and the way it gets to them.
//!
//! Memory is created without a name and handed to other processes as a descriptor over a local
//! socket, so nothing is left behind however the processes end. Whether two processes share a
//! host is never guessed from names: it is known once a descriptor has arrived.
//!
//! Waiting on a word of shared memory is done with [`Shared::wait`] and [`Shared::wake`], a futex
//! on real systems. Spinning first is quicker while there are cores to spare, and hopeless in a
//! simulated world, so the world says how long it is worth it.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::{Segment, reason};

/// A source of shared memory.
pub trait Shared: Send + Sync {
    /// New zeroed memory of a fixed size. Pages cost nothing until they are touched.
    fn create(&self, header_bytes: usize, bytes: usize) -> Result<Segment, SharedError>;

    /// Starts to accept local streams under a name that is unique on this host.
    fn listen(&self, name: &str) -> Result<Box<dyn LocalListener>, SharedError>;

    /// Opens a local stream to a name, if a process of the same user on this host listens there.
    fn connect(&self, name: &str, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError>;

    /// Waits while `word` is `seen`, but not longer than `timeout`. May return early without a
    /// reason: look again. Only the low half of the word is compared.
    fn wait(&self, word: &AtomicU64, seen: u64, timeout: Duration);

    /// Wakes everyone who waits on `word`, in whatever process.
    fn wake(&self, word: &AtomicU64);

    /// Asks that [`Shared::fence_everyone`] reach this process too. False where the system has no
    /// such thing; then everyone must use fences of its own.
    fn join_fences(&self) -> bool;

    /// Makes every thread of every process that has [joined](Shared::join_fences) pass a full
    /// memory fence. It takes microseconds, and lets the others do without fences of their own.
    fn fence_everyone(&self);

    /// Lets another thread have the core.
    fn yield_now(&self);

    /// How a rank should wait before it sleeps, when this many ranks run on this host.
    fn patience(&self, num_ranks: usize) -> Patience;
}

/// How long to stay awake for something that usually happens within microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Looks with only a pause instruction between them.
    pub num_spins: u32,
    /// Looks after that with the core given away between them.
    pub num_yields: u32,
}

/// A name at which local streams arrive.
pub trait LocalListener: Send {
    /// The next stream, waiting up to `timeout` for one.
    fn accept(&self, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError>;
}

/// A two-way stream of messages that can carry segments.
pub trait LocalStream: Send {
    /// Sends one message of at most [`MAX_MESSAGE_BYTES`] with at most [`MAX_SEGMENTS`] segments.
    fn send(&mut self, message: &[u8], segments: &[&Segment]) -> Result<(), SharedError>;

    /// The next message, waiting up to `timeout` for it.
    fn recv(&mut self, timeout: Duration) -> Result<Parcel, SharedError>;

    /// The number of the process at the other end; `None` where nobody knows.
    fn peer_process(&self) -> Option<u32>;

    /// Whether the other end still exists. A process that died has none.
    fn is_open(&self) -> bool;
}

/// The longest message of a [`LocalStream`].
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// The most segments in one message.
pub const MAX_SEGMENTS: usize = 4;

/// A message as it arrived.
#[derive(Debug)]
pub struct Parcel {
    /// The sender's words.
    pub message: Vec<u8>,
    /// The sender's memory, mapped.
    pub segments: Vec<Segment>,
}

/// Shared memory or a local stream that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action}: {reason}")]
pub struct SharedError {
    action: &'static str,
    kind: std::io::ErrorKind,
    reason: String,
}

impl SharedError {
    /// Puts what was tried, a verb and its object, beside the system's error.
    pub fn new(action: &'static str, error: &std::io::Error) -> Self {
        Self { action, kind: error.kind(), reason: reason::of(error) }
    }

    /// The attempt did not end within its time limit.
    pub fn timed_out(action: &'static str, timeout: Duration) -> Self {
        let reason = format!("nothing happened within {} ms", timeout.as_millis());
        Self { action, kind: std::io::ErrorKind::TimedOut, reason }
    }

    /// The class of the failure, for decisions; the text is for people.
    pub fn kind(&self) -> std::io::ErrorKind {
        self.kind
    }
}

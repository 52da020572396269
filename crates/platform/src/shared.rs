//! Shared memory between processes of one host.
//!
//! Memory is created without a name and passed to other processes as a descriptor over a local
//! socket, so nothing is left behind however the processes end. Two processes are known to share a
//! host only once a descriptor has arrived, never by host names.
//!
//! [`Shared::wait`] and [`Shared::wake`] wait on a word of shared memory, with a futex on real
//! systems. Spinning first is faster while cores are free, but useless in a simulation, so the
//! platform sets the spin policy.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::{Segment, error_text};

/// Factory of shared memory.
pub trait Shared: Send + Sync {
    /// Creates zeroed memory of a fixed size. Pages are allocated on first access.
    fn create(&self, header_bytes: usize, bytes: usize) -> Result<Segment, SharedError>;

    /// Listens for local streams under a name that is unique on this host.
    fn listen(&self, name: &str) -> Result<Box<dyn LocalListener>, SharedError>;

    /// Connects to a local name, if a process of the same user on this host listens there.
    fn connect(&self, name: &str, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError>;

    /// Waits while `word` equals `expected`, at most `timeout`. May return spuriously, so check
    /// again. Only the low half of the word is compared.
    fn wait(&self, word: &AtomicU64, expected: u64, timeout: Duration);

    /// Wakes all waiters on `word`, in all processes.
    fn wake(&self, word: &AtomicU64);

    /// Registers this process for [`Shared::fence_all`]. False if the system lacks it; then every
    /// process needs its own fences.
    fn join_fences(&self) -> bool;

    /// Executes a full memory fence in every thread of all [registered](Shared::join_fences)
    /// processes. It takes microseconds and spares the others their own fences.
    fn fence_all(&self);

    /// Yields the core to another thread.
    fn yield_now(&self);

    /// Spin policy of a rank when `num_ranks` run on this host.
    fn spin_policy(&self, num_ranks: usize) -> SpinPolicy;
}

/// Polling before a sleep, for events that usually take microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// Number of polls separated by a pause instruction.
    pub num_spins: u32,
    /// Number of further polls that yield the core in between.
    pub num_yields: u32,
}

/// A listening local name.
pub trait LocalListener: Send {
    /// Accepts the next stream within `timeout`.
    fn accept(&self, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError>;
}

/// Bidirectional message stream that can carry segments.
pub trait LocalStream: Send {
    /// Sends a message of at most [`MAX_MESSAGE_BYTES`] with at most [`MAX_SEGMENTS`] segments.
    fn send(&mut self, message: &[u8], segments: &[&Segment]) -> Result<(), SharedError>;

    /// Receives the next message within `timeout`.
    fn recv(&mut self, timeout: Duration) -> Result<LocalMessage, SharedError>;

    /// Process id of the peer; `None` if unknown.
    fn peer_process(&self) -> Option<u32>;

    /// Whether the peer still exists.
    fn is_open(&self) -> bool;
}

/// Maximum length of a message of a [`LocalStream`].
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// Maximum number of segments in a message.
pub const MAX_SEGMENTS: usize = 4;

/// A received message.
#[derive(Debug)]
pub struct LocalMessage {
    /// Payload.
    pub message: Vec<u8>,
    /// Mapped segments of the sender.
    pub segments: Vec<Segment>,
}

/// A failed operation on shared memory or a local stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action}: {reason}")]
pub struct SharedError {
    action: &'static str,
    kind: std::io::ErrorKind,
    reason: String,
}

impl SharedError {
    /// Adds the operation, a verb and its object, to a system error.
    pub fn new(action: &'static str, error: &std::io::Error) -> Self {
        Self { action, kind: error.kind(), reason: error_text::of(error) }
    }

    /// Error of an operation that timed out.
    pub fn timed_out(action: &'static str, timeout: Duration) -> Self {
        let reason = format!("nothing happened within {} ms", timeout.as_millis());
        Self { action, kind: std::io::ErrorKind::TimedOut, reason }
    }

    /// Class of the error, for decisions in code.
    pub fn kind(&self) -> std::io::ErrorKind {
        self.kind
    }
}

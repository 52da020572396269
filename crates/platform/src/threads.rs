//! Named threads and event counts.
//!
//! A [`Signal`] is an *event count*: a number that only grows. A waiter reads the number, checks
//! the shared state, and waits until the number differs from what it read. A notification between
//! check and wait cannot be lost, and no lock is held while waiting, which lets a simulation decide
//! which thread runs next. A lock around plain state is allowed if no platform call happens under
//! it.

use std::sync::Arc;
use std::time::Duration;

/// Factory of threads.
pub trait Threads: Send + Sync {
    /// Starts a thread.
    fn spawn(
        &self,
        name: &str,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> Result<Box<dyn JoinHandle>, ThreadError>;

    /// Number of threads that can run at once: cores, or fewer if the process is confined.
    fn available(&self) -> usize;

    /// Pins the calling thread to the `index`th core that it may use, modulo their number; for
    /// measurements. False if the system refuses.
    fn pin_to_core(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// Creates an event count.
    fn signal(&self) -> Arc<dyn Signal>;
}

/// A started thread.
pub trait JoinHandle: Send {
    /// Waits for the end of the thread; a panic in it becomes an error. The wait is unbounded, so
    /// stop the thread first, and check [`JoinHandle::finished_within`] if it might not stop.
    fn join(self: Box<Self>) -> Result<(), ThreadError>;

    /// Whether the thread has ended, waiting up to `timeout`.
    fn finished_within(&self, timeout: Duration) -> bool;
}

/// An event count.
pub trait Signal: Send + Sync {
    /// Number of notifications so far.
    fn epoch(&self) -> u64;

    /// Increments the epoch and wakes all waiters.
    fn notify_all(&self);

    /// Returns true as soon as the epoch differs from `last_epoch`; false after `timeout`.
    fn wait(&self, last_epoch: u64, timeout: Duration) -> bool;
}

/// A thread that failed to start or panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadError {
    /// The system refused to start the thread.
    #[error("cannot start thread {name}: {reason}")]
    Spawn {
        /// Name of the thread.
        name: String,
        /// Text of the system error.
        reason: String,
    },
    /// The thread panicked.
    #[error("thread {name} panicked: {message}")]
    Panicked {
        /// Name of the thread.
        name: String,
        /// Panic message.
        message: String,
    },
}

//! Named threads, and the one thing they wait on.
//!
//! A [`Signal`] is an *event count*: a number that only grows. A waiter reads the number, looks at
//! the shared state, and when there is nothing to do waits until the number differs from what it
//! read. A notification between the look and the wait therefore cannot be lost, and no lock has
//! to be held while waiting, which is what lets a simulated world decide who runs next. A lock
//! around plain state is fine as long as no call into the platform is made while it is held.

use std::sync::Arc;
use std::time::Duration;

/// A source of threads.
pub trait Threads: Send + Sync {
    /// Starts a thread.
    fn spawn(
        &self,
        name: &str,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> Result<Box<dyn JoinHandle>, ThreadError>;

    /// How many threads can make progress at once: cores, or less where the process is confined.
    fn available(&self) -> usize;

    /// Keeps the calling thread on one core, the `index`th of those it may use, counted from 0
    /// and around. Measurements want that. False where the system does not let it.
    fn stay_on_core(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// A new event count.
    fn signal(&self) -> Arc<dyn Signal>;
}

/// A started thread.
pub trait JoinHandle: Send {
    /// Waits until the thread has ended; a panic inside it becomes an error here. The wait is as
    /// long as the thread's life, so first tell the thread to end, and where it might not obey
    /// ask [`JoinHandle::finished_within`] before.
    fn join(self: Box<Self>) -> Result<(), ThreadError>;

    /// Whether the thread's body has ended, waiting up to `timeout` for it.
    fn finished_within(&self, timeout: Duration) -> bool;
}

/// An event count.
pub trait Signal: Send + Sync {
    /// How many notifications there have been.
    fn epoch(&self) -> u64;

    /// Adds one and wakes every waiter.
    fn notify_all(&self);

    /// Returns true as soon as the epoch differs from `seen_epoch`, at once when it already
    /// does; false when `timeout` has passed before.
    fn wait(&self, seen_epoch: u64, timeout: Duration) -> bool;
}

/// A thread that could not start or did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadError {
    /// The system refused another thread.
    #[error("cannot start thread {name}: {reason}")]
    Spawn {
        /// The thread's name.
        name: String,
        /// The system's words.
        reason: String,
    },
    /// The body panicked.
    #[error("thread {name} panicked: {message}")]
    Panicked {
        /// The thread's name.
        name: String,
        /// The panic's message.
        message: String,
    },
}

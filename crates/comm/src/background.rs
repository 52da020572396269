//! Background calls: start now, wait later.
//!
//! One thread per rank runs the collective calls that were started, in that order, so ranks that
//! start the same calls in the same order match. A second thread does so for sends, a third for
//! receives. A buffer moves into the call and comes back from [`Handle::wait`], so it cannot be
//! accessed in between. Several calls may be in flight; a blocking call on the same group first
//! waits for the background calls of its kind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_platform::{Deadline, Queue, RecvError, SendError, Signal, World};

use crate::error::CommError;

/// Most calls in flight.
const MAX_IN_FLIGHT: usize = 1024;

/// Longest sleep of the thread between two checks whether it should end.
const IDLE: Duration = Duration::from_hours(1);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs calls.
pub(crate) struct Background {
    queue: Arc<Queue<Job>>,
}

impl Background {
    pub(crate) fn start(world: &World, name: &str) -> Result<Self, CommError> {
        let queue: Arc<Queue<Job>> = Arc::new(Queue::new(world, MAX_IN_FLIGHT));
        let jobs = Arc::clone(&queue);
        let body = move || {
            loop {
                match jobs.recv(IDLE) {
                    // The handle reports a panic; later calls still run.
                    Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
                    Err(RecvError::Closed) => break,
                    Err(RecvError::TimedOut) => {}
                }
            }
        };
        world.threads().spawn(name, Box::new(body))?;
        Ok(Self { queue })
    }

    /// Queues a call; waits up to `timeout` while the queue is full.
    pub(crate) fn submit(&self, job: Job, timeout: Duration) -> Result<(), Job> {
        self.queue.send(job, timeout).map_err(|error| match error {
            SendError::TimedOut(job) | SendError::Closed(job) => job,
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The thread ends after the queued calls. It is not joined: it may itself drop the last
        // handle to this rank.
        self.queue.close();
    }
}

/// Number of calls of a group in flight.
pub(crate) struct InFlight {
    count: AtomicUsize,
    changed: Arc<dyn Signal>,
}

impl InFlight {
    pub(crate) fn new(world: &World) -> Self {
        Self { count: AtomicUsize::new(0), changed: world.threads().signal() }
    }

    pub(crate) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.count.fetch_sub(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until none is in flight.
    #[inline]
    pub(crate) fn drain(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.drain_slowly();
        }
    }

    #[cold]
    fn drain_slowly(&self) {
        // Every call in flight has a deadline, so this ends.
        loop {
            let epoch = self.changed.epoch();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            self.changed.wait(epoch, IDLE);
        }
    }
}

/// A call in flight.
#[must_use = "the result is in the handle"]
pub struct Handle<B> {
    world: World,
    slot: Arc<ResultSlot<B>>,
}

/// Slot for the result of a call.
struct ResultSlot<B> {
    outcome: Mutex<Option<Outcome<B>>>,
    is_ready: Arc<dyn Signal>,
}

/// Outcome of a call.
enum Outcome<B> {
    Returned(Result<B, CommError>),
    Panicked,
}

impl<B> ResultSlot<B> {
    fn lock(&self) -> MutexGuard<'_, Option<Outcome<B>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the result of a call. Dropping it without a result means that the call panicked, and wakes
/// the waiting thread.
pub(crate) struct Promise<B> {
    slot: Arc<ResultSlot<B>>,
}

impl<B> Promise<B> {
    pub(crate) fn complete(self, result: Result<B, CommError>) {
        *self.slot.lock() = Some(Outcome::Returned(result));
    }
}

impl<B> Drop for Promise<B> {
    fn drop(&mut self) {
        self.slot.lock().get_or_insert(Outcome::Panicked);
        self.slot.is_ready.notify_all();
    }
}

impl<B> Handle<B> {
    pub(crate) fn new(world: &World) -> (Self, Promise<B>) {
        let is_ready = world.threads().signal();
        let slot = Arc::new(ResultSlot { outcome: Mutex::new(None), is_ready });
        (Self { world: Arc::clone(world), slot: Arc::clone(&slot) }, Promise { slot })
    }

    /// Whether the call has ended.
    pub fn is_done(&self) -> bool {
        self.slot.lock().is_some()
    }

    /// Waits up to `timeout` for the call to end, and returns the buffer. After a timeout it
    /// returns the handle, and the call continues.
    ///
    /// # Panics
    /// If the call panicked.
    pub fn wait(self, timeout: Duration) -> Result<Result<B, CommError>, Self> {
        let deadline = Deadline::after(self.world.clock(), timeout);
        loop {
            let epoch = self.slot.is_ready.epoch();
            let outcome = self.slot.lock().take();
            match outcome {
                Some(Outcome::Returned(result)) => return Ok(result),
                Some(Outcome::Panicked) => panic!("the call in the background panicked"),
                None => {}
            }
            let remaining = deadline.remaining(self.world.clock());
            if remaining.is_zero() {
                return Err(self);
            }
            self.slot.is_ready.wait(epoch, remaining);
        }
    }

    /// Waits for the call to end, which its own deadlines bound, and returns the buffer.
    ///
    /// # Panics
    /// If the call panicked.
    pub fn finish(self) -> Result<B, CommError> {
        let mut handle = self;
        loop {
            match handle.wait(IDLE) {
                Ok(result) => return result,
                Err(waiting) => handle = waiting,
            }
        }
    }
}

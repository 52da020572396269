//! Background calls: start now, wait later.
//!
//! One thread per rank runs the collective calls that were started, in that order, so ranks that
//! start the same calls in the same order match. A second thread does so for sends, a third for
//! receives. A buffer moves into the call and comes back from [`Handle::wait`], so it cannot be
//! accessed in between. Several calls may be in flight; a blocking call on the same group first
//! waits for the background calls of its kind.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_platform::{Deadline, Queue, RecvError, Signal, World};

use crate::error::CommError;

/// Most calls in flight.
const MAX_IN_FLIGHT: usize = 1024;

/// Longest sleep of the thread between two checks whether it should end.
const IDLE: Duration = Duration::from_hours(1);

/// A thread that runs calls.
pub(crate) struct Background {
    world: World,
    queue: Arc<Queue<Arc<dyn Job>>>,
    free: Arc<FreeRequests>,
}

/// Requests of finished calls. A call with the same types reuses one, so that a step which repeats
/// its calls allocates nothing.
type FreeRequests = Mutex<Vec<Arc<dyn Any + Send + Sync>>>;

impl Background {
    pub(crate) fn start(world: &World, name: &str) -> Result<Self, CommError> {
        let queue: Arc<Queue<Arc<dyn Job>>> = Arc::new(Queue::new(world, MAX_IN_FLIGHT));
        let jobs = Arc::clone(&queue);
        let body = move || {
            loop {
                match jobs.recv(IDLE) {
                    Ok(job) => job.run(),
                    Err(RecvError::Closed) => break,
                    Err(RecvError::TimedOut) => {}
                }
            }
        };
        world.threads().spawn(name, Box::new(body))?;
        Ok(Self { world: Arc::clone(world), queue, free: Arc::default() })
    }

    /// Queues a call on `buffers`; waits up to `timeout` while the queue is full, and returns
    /// `None` after that. `guard` is dropped once the result is there.
    pub(crate) fn submit<G, B, F>(
        &self,
        guard: G,
        buffers: B,
        run: F,
        timeout: Duration,
    ) -> Option<Handle<B>>
    where
        G: Send + 'static,
        B: Send + 'static,
        F: FnOnce(&G, &mut B) -> Result<(), CommError> + Send + 'static,
    {
        let request =
            self.reuse().unwrap_or_else(|| Arc::new(Request::<G, B, F>::new(&self.world)));
        *lock(&request.call) = Some((guard, buffers, run));
        let handle = Handle {
            world: Arc::clone(&self.world),
            slot: Arc::clone(&request.slot),
            request: Arc::<Request<G, B, F>>::clone(&request),
            free: Arc::clone(&self.free),
        };
        self.queue.send(request, timeout).ok().map(|()| handle)
    }

    fn reuse<R: Send + Sync + 'static>(&self) -> Option<Arc<R>> {
        let mut free = lock(&self.free);
        let index = free.iter().position(|request| request.is::<R>())?;
        free.swap_remove(index).downcast().ok()
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

/// Work of a thread.
trait Job: Send + Sync {
    fn run(&self);
}

/// A call and the slot for its result.
struct Request<G, B, F> {
    call: Mutex<Option<(G, B, F)>>,
    slot: Arc<ResultSlot<B>>,
}

impl<G, B, F> Request<G, B, F> {
    fn new(world: &World) -> Self {
        let slot = ResultSlot { outcome: Mutex::new(None), is_ready: world.threads().signal() };
        Self { call: Mutex::new(None), slot: Arc::new(slot) }
    }
}

impl<G: Send, B: Send, F> Job for Request<G, B, F>
where
    F: FnOnce(&G, &mut B) -> Result<(), CommError> + Send,
{
    fn run(&self) {
        let call = lock(&self.call).take();
        let (guard, mut buffers, run) = call.expect("a queued request has a call");
        // The handle reports a panic; later calls still run.
        let outcome = match catch_unwind(AssertUnwindSafe(|| run(&guard, &mut buffers))) {
            Ok(result) => Outcome::Returned(result.map(|()| buffers)),
            Err(_) => Outcome::Panicked,
        };
        *lock(&self.slot.outcome) = Some(outcome);
        // A blocking call that waits for the guard finds the result.
        drop(guard);
        // The request may be in use again by now: its new handle wakes for nothing.
        self.slot.is_ready.notify_all();
    }
}

/// A call in flight.
#[must_use = "the result is in the handle"]
pub struct Handle<B> {
    world: World,
    slot: Arc<ResultSlot<B>>,
    request: Arc<dyn Any + Send + Sync>,
    free: Arc<FreeRequests>,
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

/// A panic of a call happens outside the locks of this file.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> Handle<B> {
    /// Whether the call has ended.
    pub fn is_done(&self) -> bool {
        lock(&self.slot.outcome).is_some()
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
            let outcome = lock(&self.slot.outcome).take();
            match outcome {
                Some(Outcome::Returned(result)) => {
                    lock(&self.free).push(self.request);
                    return Ok(result);
                }
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

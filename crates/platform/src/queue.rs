//! A bounded queue between threads, with a time limit on both ends.
//!
//! The bound is what makes it safe: a producer that is faster than its consumer waits instead of
//! filling the memory. Closing is one-way and graceful: senders fail at once, receivers first get
//! what was already queued. No memory is allocated after construction.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Deadline, Signal, World};

/// A first-in, first-out queue of at most `capacity` values; share it in an [`Arc`].
///
/// ```
/// use std::time::Duration;
/// use lockstep_platform::{Queue, RecvError};
///
/// let queue = Queue::new(&lockstep_platform::real(), 2);
/// queue.send("first", Duration::ZERO)?;
/// queue.close();
/// assert_eq!(queue.recv(Duration::ZERO), Ok("first"));
/// assert_eq!(queue.recv(Duration::ZERO), Err(RecvError::Closed));
/// # Ok::<(), lockstep_platform::SendError<&str>>(())
/// ```
pub struct Queue<T> {
    state: Mutex<State<T>>,
    capacity: usize,
    /// Rings when a value arrives or the queue closes.
    filled: Arc<dyn Signal>,
    /// Rings when a value leaves or the queue closes.
    drained: Arc<dyn Signal>,
    world: World,
}

struct State<T> {
    values: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    /// An open, empty queue.
    pub fn new(world: &World, capacity: usize) -> Self {
        assert!(capacity > 0, "a queue without room could never pass a value");
        Self {
            state: Mutex::new(State { values: VecDeque::with_capacity(capacity), closed: false }),
            capacity,
            filled: world.threads().signal(),
            drained: world.threads().signal(),
            world: Arc::clone(world),
        }
    }

    /// Adds a value at the end, waiting up to `timeout` for room. On failure the value comes back.
    pub fn send(&self, value: T, timeout: Duration) -> Result<(), SendError<T>> {
        let deadline = Deadline::after(self.world.clock(), timeout);
        loop {
            let seen = self.drained.epoch();
            {
                let mut state = self.lock();
                if state.closed {
                    return Err(SendError::Closed(value));
                }
                if state.values.len() < self.capacity {
                    state.values.push_back(value);
                    drop(state);
                    self.filled.notify_all();
                    return Ok(());
                }
            }
            if !self.drained.wait(seen, deadline.remaining(self.world.clock())) {
                return Err(SendError::TimedOut(value));
            }
        }
    }

    /// Takes the value at the front, waiting up to `timeout` for one.
    pub fn recv(&self, timeout: Duration) -> Result<T, RecvError> {
        let deadline = Deadline::after(self.world.clock(), timeout);
        loop {
            let seen = self.filled.epoch();
            {
                let mut state = self.lock();
                if let Some(value) = state.values.pop_front() {
                    drop(state);
                    self.drained.notify_all();
                    return Ok(value);
                }
                if state.closed {
                    return Err(RecvError::Closed);
                }
            }
            if !self.filled.wait(seen, deadline.remaining(self.world.clock())) {
                return Err(RecvError::TimedOut);
            }
        }
    }

    /// Ends the queue and wakes everybody who waits on it; closing twice is fine.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.drained.notify_all();
    }

    /// How many values are waiting at this moment.
    pub fn len(&self) -> usize {
        self.lock().values.len()
    }

    /// Whether nothing is waiting at this moment.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code of ours can panic half way through a change of the state, so it is sound even
        // when a thread died while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} of {})", self.len(), self.capacity)
    }
}

/// Why a value could not be queued; it is handed back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// The queue is closed.
    #[error("the queue is closed")]
    Closed(T),
    /// There was no room in time.
    #[error("the queue stayed full for the whole time limit")]
    TimedOut(T),
}

/// Why no value could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// The queue is closed and empty.
    #[error("the queue is closed")]
    Closed,
    /// No value came in time.
    #[error("the queue stayed empty for the whole time limit")]
    TimedOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn values_leave_in_the_order_they_came() {
        let queue = Queue::new(&crate::real(), 3);
        for value in 0..3 {
            queue.send(value, Duration::ZERO).unwrap();
        }
        let received: Vec<_> = (0..3).map(|_| queue.recv(Duration::ZERO).unwrap()).collect();
        assert_eq!(received, [0, 1, 2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_full_queue_hands_the_value_back_after_the_time_limit() {
        let queue = Queue::new(&crate::real(), 1);
        queue.send("kept", SHORT).unwrap();
        assert_eq!(queue.send("returned", SHORT), Err(SendError::TimedOut("returned")));
        assert_eq!(queue.recv(SHORT), Ok("kept"));
        assert_eq!(queue.recv(SHORT), Err(RecvError::TimedOut));
    }

    #[test]
    fn a_closed_queue_gives_what_it_holds_and_takes_nothing() {
        let queue = Queue::new(&crate::real(), 2);
        queue.send(7, SHORT).unwrap();
        queue.close();
        assert_eq!(queue.send(8, SHORT), Err(SendError::Closed(8)));
        assert_eq!(queue.recv(SHORT), Ok(7));
        assert_eq!(queue.recv(SHORT), Err(RecvError::Closed));
    }

    #[test]
    fn many_producers_and_consumers_lose_and_repeat_nothing() {
        let world = crate::real();
        let queue = Arc::new(Queue::new(&world, 3));
        let received = Arc::new(Mutex::new(Vec::new()));
        let start =
            |name: &str, body: Box<dyn FnOnce() + Send>| world.threads().spawn(name, body).unwrap();

        let producers: Vec<_> = (0..3_u32)
            .map(|producer| {
                let queue = Arc::clone(&queue);
                let send = move |i| queue.send(producer * 200 + i, LONG).unwrap();
                start("producer", Box::new(move || (0..200).for_each(send)))
            })
            .collect();
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, received) = (Arc::clone(&queue), Arc::clone(&received));
                let take = move || {
                    while let Ok(value) = queue.recv(LONG) {
                        received.lock().unwrap().push(value);
                    }
                };
                start("consumer", Box::new(take))
            })
            .collect();

        for producer in producers {
            producer.join().unwrap();
        }
        queue.close();
        for consumer in consumers {
            consumer.join().unwrap();
        }
        let mut received = received.lock().unwrap().clone();
        received.sort_unstable();
        assert_eq!(received, (0..600).collect::<Vec<_>>());
    }
}

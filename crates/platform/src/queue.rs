//! Bounded queue between threads, with a timeout on both ends.
//!
//! The bound limits memory: a producer that is faster than its consumer waits. Closing is graceful:
//! senders fail at once, receivers first get the queued values. No memory is allocated after
//! construction.

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
    /// Signals an arrived value or the closing.
    filled: Arc<dyn Signal>,
    /// Signals a taken value or the closing.
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
        assert!(capacity > 0, "a queue needs room for at least one value");
        Self {
            state: Mutex::new(State { values: VecDeque::with_capacity(capacity), closed: false }),
            capacity,
            filled: world.threads().signal(),
            drained: world.threads().signal(),
            world: Arc::clone(world),
        }
    }

    /// Appends a value, waiting up to `timeout` for room. On failure the value is returned.
    pub fn send(&self, value: T, timeout: Duration) -> Result<(), SendError<T>> {
        let deadline = Deadline::after(self.world.clock(), timeout);
        loop {
            let epoch = self.drained.epoch();
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
            if !self.drained.wait(epoch, deadline.remaining(self.world.clock())) {
                return Err(SendError::TimedOut(value));
            }
        }
    }

    /// Takes the first value, waiting up to `timeout` for one.
    pub fn recv(&self, timeout: Duration) -> Result<T, RecvError> {
        let deadline = Deadline::after(self.world.clock(), timeout);
        loop {
            let epoch = self.filled.epoch();
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
            if !self.filled.wait(epoch, deadline.remaining(self.world.clock())) {
                return Err(RecvError::TimedOut);
            }
        }
    }

    /// Closes the queue and wakes all waiters; closing twice is allowed.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.drained.notify_all();
    }

    /// Number of queued values.
    pub fn len(&self) -> usize {
        self.lock().values.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code can panic in the middle of a state change, so a poisoned lock is sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} of {})", self.len(), self.capacity)
    }
}

/// Reason why a value was not queued; it is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError<T> {
    /// The queue is closed.
    #[error("the queue is closed")]
    Closed(T),
    /// The queue stayed full.
    #[error("the queue stayed full for the whole time limit")]
    TimedOut(T),
}

/// Reason why no value was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// The queue is closed and empty.
    #[error("the queue is closed")]
    Closed,
    /// No value arrived in time.
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
    fn a_full_queue_returns_the_value_after_the_timeout() {
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

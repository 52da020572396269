//! Time: a monotonic clock for measurements and a wall clock for dates.
//!
//! A time is a [`Duration`] since an origin. The origin of [`Clock::now`] is arbitrary, so only
//! differences are meaningful; that of [`Clock::wall`] is the UNIX epoch, comparable across
//! machines but subject to jumps.

use std::time::Duration;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Monotonic time since an arbitrary origin.
    fn now(&self) -> Duration;
    /// Time since `start`, an earlier value of [`Clock::now`].
    fn since(&self, start: Duration) -> Duration {
        self.now().saturating_sub(start)
    }
    /// Time since the UNIX epoch; may jump.
    fn wall(&self) -> Duration;
    /// As [`Clock::wall`], faster and a few milliseconds coarse, if the system has such a clock.
    fn wall_coarse(&self) -> Duration {
        self.wall()
    }
    /// Returns after at least `duration`.
    fn sleep(&self, duration: Duration);
    /// Age of the process, including the time before `main`; the granularity is that of the process
    /// table, usually 10 ms.
    fn process_age(&self) -> Duration;
}

/// End of a wait that may consist of several single waits.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Duration,
}

impl Deadline {
    /// Deadline at `timeout` from now.
    pub fn after(clock: &dyn Clock, timeout: Duration) -> Self {
        Self { at: clock.now().saturating_add(timeout) }
    }

    /// Remaining time; zero after the deadline.
    pub fn remaining(&self, clock: &dyn Clock) -> Duration {
        self.at.saturating_sub(clock.now())
    }

    /// Whether the deadline has passed.
    pub fn has_passed(&self, clock: &dyn Clock) -> bool {
        self.remaining(clock).is_zero()
    }
}

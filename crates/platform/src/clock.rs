//! Time: a monotonic clock to measure with, a wall clock to date things with.
//!
//! A time is a [`Duration`] since an origin. For [`Clock::now`] the origin is arbitrary, so only
//! differences mean something; for [`Clock::wall`] it is the UNIX epoch, so it can be compared
//! across machines but may jump.

use std::time::Duration;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary origin; never goes backwards.
    fn now(&self) -> Duration;
    /// Time passed since `start`, an earlier value of [`Clock::now`].
    fn since(&self, start: Duration) -> Duration {
        self.now().saturating_sub(start)
    }
    /// Time since the UNIX epoch; follows the machine's idea of the date and may jump.
    fn wall(&self) -> Duration;
    /// The same as [`Clock::wall`], quicker and some milliseconds behind where the system has such
    /// a thing.
    fn wall_coarse(&self) -> Duration {
        self.wall()
    }
    /// Returns after at least `duration`.
    fn sleep(&self, duration: Duration);
    /// How long this process has existed, including what ran before `main`; granularity is that
    /// of the system's process table, ten milliseconds as a rule.
    fn process_age(&self) -> Duration;
}

/// The moment at which one piece of waiting must end, however many waits it consists of.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Duration,
}

impl Deadline {
    /// The moment `timeout` from now.
    pub fn after(clock: &dyn Clock, timeout: Duration) -> Self {
        Self { at: clock.now().saturating_add(timeout) }
    }

    /// What is left of the time; zero once it has passed.
    pub fn remaining(&self, clock: &dyn Clock) -> Duration {
        self.at.saturating_sub(clock.now())
    }

    /// Whether the moment has come.
    pub fn has_passed(&self, clock: &dyn Clock) -> bool {
        self.remaining(clock).is_zero()
    }
}

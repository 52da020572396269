//! Reports of a rank that waits: the missing ranks, the time since the start and the timeout.
//!
//! A start that takes no longer than usual reports nothing. The first line comes early enough that
//! the run does not look dead, the others seldom enough that they do not fill a log.

use std::cell::Cell;
use std::time::Duration;

use lockstep_platform::World;

use super::rejection_log::Log;

/// Times of the reports of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitReports {
    /// Wait before the first report.
    pub first: Duration,
    /// Time between two reports.
    pub every: Duration,
}

impl Default for WaitReports {
    fn default() -> Self {
        Self { first: Duration::from_secs(2), every: Duration::from_secs(10) }
    }
}

/// Reports of one rendezvous.
pub(super) struct WaitLog {
    world: World,
    log: Option<Log>,
    every: Duration,
    timeout: Duration,
    start: Duration,
    /// Wait at which the next report is due.
    next: Cell<Duration>,
}

impl WaitLog {
    /// A wait that starts now and ends at the timeout at the latest.
    pub(super) fn new(
        world: &World,
        log: Option<Log>,
        reports: WaitReports,
        timeout: Duration,
    ) -> Self {
        let (world, start) = (World::clone(world), world.clock().now());
        Self { world, log, every: reports.every, timeout, start, next: Cell::new(reports.first) }
    }

    /// Time until the next report is due.
    pub(super) fn until_next(&self) -> Duration {
        match self.log {
            Some(_) => self.next.get().saturating_sub(self.waited()),
            None => Duration::MAX,
        }
    }

    /// Logs what the rank waits for, if a report is due.
    pub(super) fn report(&self, describe: impl FnOnce() -> String) {
        let Some(log) = self.log.filter(|_| self.until_next().is_zero()) else { return };
        let waited = self.waited();
        self.next.set(waited + self.every);
        log(&format!("{}; {} s of {} s", describe(), waited.as_secs(), self.timeout.as_secs()));
    }

    fn waited(&self) -> Duration {
        self.world.clock().since(self.start)
    }
}

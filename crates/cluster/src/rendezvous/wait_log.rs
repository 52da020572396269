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
        self.until_next_after(self.waited())
    }

    /// Logs what the rank waits for, if a report is due.
    pub(super) fn report(&self, describe: impl FnOnce() -> String) {
        self.report_after(self.waited(), describe);
    }

    fn until_next_after(&self, waited: Duration) -> Duration {
        match self.log {
            Some(_) => self.next.get().saturating_sub(waited),
            None => Duration::MAX,
        }
    }

    fn report_after(&self, waited: Duration, describe: impl FnOnce() -> String) {
        let is_due = self.until_next_after(waited).is_zero();
        let Some(log) = self.log.filter(|_| is_due) else { return };
        self.next.set(waited + self.every);
        log(&format!("{}; {} s of {} s", describe(), waited.as_secs(), self.timeout.as_secs()));
    }

    fn waited(&self) -> Duration {
        self.world.clock().since(self.start)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lockstep_platform::real;

    use super::*;

    #[test]
    fn a_wait_is_reported_within_three_seconds_and_then_every_ten() {
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let log: Log = |line| LINES.lock().unwrap().push(line.to_owned());
        let minute = Duration::from_mins(1);
        let waiting = WaitLog::new(&real(), Some(log), WaitReports::default(), minute);
        for tenths in 0..600 {
            let waited = Duration::from_millis(100 * tenths);
            waiting.report_after(waited, || "waiting for rank 1".to_owned());
            let until_next = waiting.until_next_after(waited);
            assert!(!until_next.is_zero() && until_next <= Duration::from_secs(10));
        }
        let expected =
            [2, 12, 22, 32, 42, 52].map(|s| format!("waiting for rank 1; {s} s of 60 s"));
        assert_eq!(*LINES.lock().unwrap(), expected);
    }

    #[test]
    fn a_wait_without_a_log_never_has_a_report() {
        let waiting = WaitLog::new(&real(), None, WaitReports::default(), Duration::ZERO);
        waiting.report_after(Duration::from_hours(1), || unreachable!("no log"));
        assert_eq!(waiting.until_next_after(Duration::from_hours(1)), Duration::MAX);
    }
}

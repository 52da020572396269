//! Restart policy of a run.
//!
//! The policy is a match on the blame. After the loss of a worker all workers restart from the
//! newest checkpoint. A storage failure may be temporary. An error of the user, a diverged loss and
//! a bug would recur. The pause before a restart doubles each time, so that a run that fails at
//! once does not restart in a busy loop. An attempt that lasted ten times the pause resets it, so
//! pauses take at most a tenth of the time. The [slot table](crate::slot_table) assigns the workers
//! of the next attempt; an elastic run leaves out lost slots.

use crate::RunFailure;
use crate::root_cause::TERMINATED;
use crate::slot_table::{RestartPolicy, SlotTable};
use lockstep_config::Blame;
use std::time::Duration;

/// First pause before a restart.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// An attempt that lasted this many pauses resets the pause.
const RESET_PAUSES: u32 = 10;

/// Restart state of a run.
#[derive(Clone, Debug)]
pub struct Supervisor {
    restarts_left: u64,
    num_restarts: u64,
    pause: Duration,
    slots: SlotTable,
}

/// Decision after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Restart after a pause.
    Restart {
        /// Length of the pause.
        pause: Duration,
    },
    /// The run has failed.
    GiveUp,
}

impl Supervisor {
    /// Supervisor of a run that starts with all its slots.
    pub fn new(policy: RestartPolicy) -> Self {
        let restarts_left = policy.restarts;
        Self { restarts_left, num_restarts: 0, pause: PAUSE, slots: SlotTable::new(policy) }
    }

    /// Supervisor of a run that starts with `num_local` slots and waits for remote workers.
    pub fn with_remote_workers(policy: RestartPolicy, num_local: usize) -> Self {
        let slots = SlotTable::with_remote_workers(policy.clone(), num_local);
        Self { slots, ..Self::new(policy) }
    }

    /// Number of restarts so far.
    pub fn num_restarts(&self) -> u64 {
        self.num_restarts
    }

    /// Slot table of the run.
    pub fn slots(&self) -> &SlotTable {
        &self.slots
    }

    /// Makes lost slots available at once ([`SlotTable::retry_lost_slots`]).
    pub fn retry_lost_slots(&mut self) {
        self.slots.retry_lost_slots();
    }

    /// Slot table, for remote workers that join and leave.
    pub(crate) fn slots_mut(&mut self) -> &mut SlotTable {
        &mut self.slots
    }

    /// Decides after an attempt that failed after `lasted`.
    pub fn after_failure(&mut self, now: Duration, failure: &RunFailure, lasted: Duration) -> Next {
        if !is_recoverable(failure.exit_code) {
            return Next::GiveUp;
        }
        if self.slots.is_elastic() && !failure.lost.is_empty() {
            self.slots.record_losses(now, &failure.lost, lasted);
        } else if self.restarts_left == 0 {
            return Next::GiveUp;
        } else {
            self.restarts_left -= 1;
        }
        if !self.slots.assign(now) {
            return Next::GiveUp;
        }
        if lasted >= RESET_PAUSES * self.pause {
            self.pause = PAUSE;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST_PAUSE);
        self.num_restarts += 1;
        Next::Restart { pause }
    }

    /// Starts a larger attempt after one that was terminated for it. False if it failed otherwise.
    pub fn resized(&mut self, now: Duration, failure: &RunFailure) -> bool {
        let was_terminated = i32::from(failure.exit_code) == TERMINATED;
        let was_lost = failure.exit_code == Blame::Peer(0).exit_code();
        let goes_on = (was_terminated || was_lost) && self.slots.assign(now);
        self.num_restarts += u64::from(goes_on);
        goes_on
    }
}

fn is_recoverable(exit_code: u8) -> bool {
    [Blame::Peer(0), Blame::Storage].iter().any(|blame| blame.exit_code() == exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1_000);

    /// Failure with this exit code and no lost worker.
    fn failure(exit_code: u8) -> RunFailure {
        let (lost, text, others) = (Vec::new(), String::new(), Vec::new());
        RunFailure { rank: 0, exit_code, lost, text, others, run_dir: None }
    }

    fn lost(rank: usize) -> RunFailure {
        RunFailure { rank, lost: vec![rank], ..failure(3) }
    }

    fn fixed(restarts: u64) -> Supervisor {
        Supervisor::new(RestartPolicy::fixed(2, restarts))
    }

    #[test]
    fn only_recoverable_failures_restart() {
        for (blame, restarts) in [
            (Blame::Peer(3), true),
            (Blame::Storage, true),
            (Blame::User, false),
            (Blame::Diverged, false),
        ] {
            let next = fixed(5).after_failure(NOW, &failure(blame.exit_code()), SHORT);
            assert_eq!(next != Next::GiveUp, restarts, "{blame}");
        }
        // A bug, and SIGTERM.
        for code in [101, 143] {
            assert_eq!(fixed(5).after_failure(NOW, &failure(code), SHORT), Next::GiveUp, "{code}");
        }
    }

    #[test]
    fn restarts_are_limited() {
        let mut supervisor = fixed(2);
        assert!(matches!(supervisor.after_failure(NOW, &lost(1), SHORT), Next::Restart { .. }));
        assert!(matches!(supervisor.after_failure(NOW, &failure(4), SHORT), Next::Restart { .. }));
        assert_eq!(supervisor.after_failure(NOW, &lost(1), SHORT), Next::GiveUp);
        assert_eq!(supervisor.num_restarts(), 2);
        assert_eq!(fixed(0).after_failure(NOW, &lost(0), SHORT), Next::GiveUp);
    }

    #[test]
    fn an_elastic_run_continues_without_lost_workers_down_to_its_minimum() {
        let policy =
            RestartPolicy { sizes: vec![2, 3, 4], restarts: 0, rejoin: Duration::from_secs(9) };
        let mut supervisor = Supervisor::new(policy);
        for num_left in [3, 2] {
            let next = supervisor.after_failure(NOW, &lost(1), SHORT);
            assert!(matches!(next, Next::Restart { .. }), "{num_left}");
            assert_eq!(supervisor.slots().assigned().len(), num_left);
        }
        let mut grown = supervisor.clone();
        assert_eq!(supervisor.after_failure(NOW, &lost(1), SHORT), Next::GiveUp);
        // A storage failure belongs to no slot and uses the budget of the run.
        assert_eq!(supervisor.after_failure(NOW, &failure(4), SHORT), Next::GiveUp);

        let later = NOW + Duration::from_secs(9);
        assert!(grown.slots().can_grow(later));
        assert!(!grown.resized(later, &failure(5)), "it diverged");
        assert!(grown.resized(later, &failure(143)));
        assert_eq!((grown.slots().assigned().len(), grown.num_restarts()), (4, 3));
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_reset_after_a_long_attempt() {
        let mut supervisor = fixed(100);
        let mut pause = |lasted| match supervisor.after_failure(NOW, &lost(0), lasted) {
            Next::Restart { pause } => pause,
            Next::GiveUp => panic!("a restart is left"),
        };
        let at_once = PAUSE / 2;
        assert_eq!([(); 3].map(|()| pause(at_once)), [PAUSE, 2 * PAUSE, 4 * PAUSE]);
        for _ in 0..20 {
            assert!(pause(at_once) <= LONGEST_PAUSE);
        }
        assert_eq!(pause(SHORT), LONGEST_PAUSE, "pauses take at most a tenth of the time");
        assert_eq!(pause(10 * LONGEST_PAUSE), PAUSE);
        assert_eq!(pause(SHORT), 2 * PAUSE);
        assert_eq!(pause(20 * PAUSE), 4 * PAUSE, "a sixth of the time would be pauses");
        assert_eq!([(); 3].map(|()| pause(80 * PAUSE)), [PAUSE; 3]);
    }
}

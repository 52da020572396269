//! Running workers of one attempt, as a state machine without side effects.
//!
//! It receives events with their time and returns the action to take. Time is an argument and
//! processes are ranks, so tests cover every action of events without processes. An *attempt* is
//! one start of all workers; events of earlier attempts are ignored.

use crate::root_cause::{TERMINATED, WorkerExit};
use lockstep_platform::Exit;
use std::time::Duration;

/// Time that the other workers have to exit after the first failure.
pub const AFTER_FAILURE: Duration = Duration::from_secs(3);

/// Time that the other workers have after one was killed by a signal, which needs no report.
pub const AFTER_LOSS: Duration = Duration::from_secs(1);

/// Time after the first failure at which its cause is reported, if other workers still run. The
/// messages of all workers that noticed the failure have arrived by then.
pub const BEFORE_REPORT: Duration = Duration::from_millis(250);

/// Time that workers have to write a checkpoint and exit after SIGTERM.
pub const AFTER_REQUEST: Duration = Duration::from_secs(25);

/// Signal that terminates a worker.
const SIGTERM: i32 = 15;

/// Action on all running workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send SIGTERM.
    Terminate,
    /// Send SIGKILL.
    Kill,
}

/// Workers of one attempt.
#[derive(Clone, Debug)]
pub struct Membership {
    attempt: u64,
    is_running: Vec<bool>,
    /// Groups of replicas: all but one rank of a group may be lost.
    replica_groups: Vec<Vec<usize>>,
    exits: Vec<WorkerExit>,
    /// Time at which the remaining workers are killed.
    limit: Option<Duration>,
    /// Time at which the cause of the first failure is reported; `None` once it was.
    report: Option<Duration>,
    is_terminating: bool,
    is_resizing: bool,
    is_killed: bool,
}

impl Membership {
    /// Attempt with `num_workers` started workers.
    pub fn new(attempt: u64, num_workers: usize) -> Self {
        Self {
            attempt,
            is_running: vec![true; num_workers],
            replica_groups: Vec::new(),
            exits: Vec::new(),
            limit: None,
            report: None,
            is_terminating: false,
            is_resizing: false,
            is_killed: false,
        }
    }

    /// Adds groups of replicas: all but one rank of each may be lost.
    #[must_use]
    pub fn with_replica_groups(self, replica_groups: &[Vec<usize>]) -> Self {
        Self { replica_groups: replica_groups.to_vec(), ..self }
    }

    /// Whether another replica of a rank is running or has finished.
    fn has_replica(&self, rank: usize) -> bool {
        let list = self.replica_groups.iter().find(|list| list.contains(&rank));
        let is_well = |other: usize| self.is_running[other] || self.has_finished(other);
        list.is_some_and(|list| list.iter().any(|other| *other != rank && is_well(*other)))
    }

    fn has_finished(&self, rank: usize) -> bool {
        self.exits.iter().any(|end| end.rank == rank && end.exit == Exit::Code(0))
    }

    /// Records the exit of a worker. False for another attempt or a repeated event.
    pub fn record_exit(&mut self, now: Duration, attempt: u64, rank: usize, exit: Exit) -> bool {
        if attempt != self.attempt || !self.is_running.get(rank).copied().unwrap_or(false) {
            return false;
        }
        self.is_running[rank] = false;
        // A worker that had nothing left to save no longer defers the signal.
        let exit = match exit {
            Exit::Signal(SIGTERM) if self.is_terminating => Exit::Code(TERMINATED),
            exit => exit,
        };
        let is_replaced = matches!(exit, Exit::Signal(_)) && self.has_replica(rank);
        let killed_by_launcher = self.is_killed;
        self.exits.push(WorkerExit {
            rank,
            exit,
            killed_by_launcher,
            is_replaced,
            lines: Vec::new(),
        });
        if self.limit.is_none() && !self.is_terminating && !is_replaced && exit != Exit::Code(0) {
            self.report = Some(now + BEFORE_REPORT);
        }
        match exit {
            Exit::Code(0) => {}
            Exit::Signal(_) if is_replaced => {}
            // The others are about to exit, too, when they have left the last barrier.
            Exit::Code(_) if self.is_terminating && self.limit.is_none() => {
                self.limit_to(now + AFTER_REQUEST);
            }
            Exit::Code(_) => self.limit_to(now + AFTER_FAILURE),
            Exit::Signal(_) => self.limit_to(now + AFTER_LOSS),
        }
        true
    }

    /// Terminates the run on request.
    pub fn request_termination(&mut self, now: Duration) -> Option<Action> {
        let action = self.request_interrupt();
        if action.is_some() {
            self.limit_to(now + AFTER_REQUEST);
        }
        action
    }

    /// Terminates the run on Ctrl-C, without a limit: a second Ctrl-C kills the workers.
    pub fn request_interrupt(&mut self) -> Option<Action> {
        let is_repeated = std::mem::replace(&mut self.is_terminating, true);
        (!is_repeated).then_some(Action::Terminate)
    }

    /// Terminates this attempt so that a larger one can start, unless it is ending already.
    pub fn can_grow(&mut self, now: Duration) -> Option<Action> {
        if self.is_terminating || !self.exits.is_empty() {
            return None;
        }
        self.is_resizing = true;
        self.request_termination(now)
    }

    /// Whether the attempt was terminated to start a larger one.
    pub fn is_resizing(&self) -> bool {
        self.is_resizing
    }

    /// Action that is due at this time.
    pub fn poll(&mut self, now: Duration) -> Option<Action> {
        let is_over = self.limit.is_some_and(|limit| now >= limit);
        if self.is_killed || !is_over || self.is_complete() {
            return None;
        }
        self.is_killed = true;
        Some(Action::Kill)
    }

    /// Ranks that still run when the cause of a failure is due to be reported, which is once.
    pub fn unreported(&mut self, now: Duration) -> Option<Vec<usize>> {
        self.report.take_if(|due| now >= *due)?;
        Some((0..self.is_running.len()).filter(|rank| self.is_running[*rank]).collect())
    }

    /// Whether all workers have exited.
    pub fn is_complete(&self) -> bool {
        !self.is_running.contains(&true)
    }

    /// Whether the remaining workers have been killed.
    pub fn is_ending(&self) -> bool {
        self.is_killed
    }

    /// Exits, in the order in which they happened.
    pub fn exits(&self) -> &[WorkerExit] {
        &self.exits
    }

    /// Number of exited workers.
    pub fn num_exits(&self) -> usize {
        self.exits.len()
    }

    fn limit_to(&mut self, moment: Duration) {
        // After SIGTERM workers finish their checkpoint even if one of them fails.
        let limit = match self.limit {
            Some(limit) if !self.is_terminating => limit.min(moment),
            Some(limit) => limit.max(moment),
            None => moment,
        };
        self.limit = Some(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Exit = Exit::Signal(9);
    const DONE: Exit = Exit::Code(0);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_attempt_is_complete_when_all_workers_exited_and_success_kills_none() {
        let mut all = Membership::new(1, 3);
        for rank in [2, 0] {
            assert!(all.record_exit(seconds(1), 1, rank, DONE));
            assert_eq!(all.poll(seconds(1_000)), None);
        }
        assert!(!all.is_complete());
        assert!(all.record_exit(seconds(2_000), 1, 1, DONE));
        assert!(all.is_complete());
        assert_eq!(all.exits().iter().map(|end| end.rank).collect::<Vec<_>>(), [2, 0, 1]);
    }

    #[test]
    fn after_a_failure_the_others_are_killed_once_after_a_grace_period() {
        let mut all = Membership::new(1, 3);
        all.record_exit(seconds(10), 1, 1, Exit::Code(4));
        assert_eq!(all.poll(seconds(12)), None);
        // A second failure does not extend it.
        all.record_exit(seconds(12), 1, 0, Exit::Code(3));
        assert_eq!(all.poll(seconds(13)), Some(Action::Kill));
        assert_eq!(all.poll(seconds(14)), None);
        all.record_exit(seconds(14), 1, 2, LOST);
        let killed_by_launcher: Vec<_> =
            all.exits().iter().map(|end| end.killed_by_launcher).collect();
        assert_eq!(killed_by_launcher, [false, false, true]);
    }

    #[test]
    fn the_cause_of_a_failure_is_reported_once_and_before_the_others_are_killed() {
        let mut all = Membership::new(1, 3);
        assert_eq!(all.unreported(seconds(9)), None, "none has failed");
        all.record_exit(seconds(10), 1, 1, Exit::Code(3));
        assert_eq!(all.unreported(seconds(10)), None, "others may name the cause");
        all.record_exit(seconds(10), 1, 0, Exit::Code(4));
        let due = seconds(10) + BEFORE_REPORT;
        assert_eq!((all.poll(due), all.unreported(due)), (None, Some(vec![2])));
        assert_eq!(all.unreported(seconds(12)), None, "it was reported");
        assert!(BEFORE_REPORT < AFTER_LOSS.min(AFTER_FAILURE));

        let mut all = Membership::new(1, 2);
        all.request_termination(seconds(5));
        all.record_exit(seconds(6), 1, 0, Exit::Code(143));
        assert_eq!(all.unreported(seconds(20)), None, "it was requested");
    }

    #[test]
    fn the_grace_period_after_a_kill_is_shorter() {
        let mut all = Membership::new(1, 2);
        all.record_exit(seconds(10), 1, 1, LOST);
        assert_eq!(all.poll(seconds(10) + AFTER_LOSS / 2), None);
        assert_eq!(all.poll(seconds(10) + AFTER_LOSS), Some(Action::Kill));
    }

    #[test]
    fn a_replica_may_be_lost_but_not_the_last_one() {
        let mut all = Membership::new(1, 4).with_replica_groups(&[vec![2, 3]]);
        all.record_exit(seconds(10), 1, 2, LOST);
        assert_eq!(all.poll(seconds(100)), None, "rank 3 is its replica");
        all.record_exit(seconds(100), 1, 3, LOST);
        assert_eq!(all.poll(seconds(100) + AFTER_LOSS), Some(Action::Kill));
        let replaced: Vec<_> = all.exits().iter().map(|end| end.is_replaced).collect();
        assert_eq!(replaced, [true, false]);
        // A failure that is not a kill would recur on the replica.
        let mut all = Membership::new(1, 4).with_replica_groups(&[vec![2, 3]]);
        all.record_exit(seconds(10), 1, 2, Exit::Code(101));
        assert_eq!(all.poll(seconds(100)), Some(Action::Kill));
    }

    #[test]
    fn events_of_an_earlier_attempt_are_ignored() {
        let mut all = Membership::new(2, 2);
        assert!(!all.record_exit(seconds(1), 1, 0, LOST), "the event is of attempt 1");
        assert!(!all.record_exit(seconds(1), 2, 7, LOST), "there is no rank 7");
        assert_eq!((all.poll(seconds(100)), all.num_exits()), (None, 0));
        assert!(all.record_exit(seconds(1), 2, 0, DONE));
        assert!(!all.record_exit(seconds(1), 2, 0, LOST), "the rank has exited already");
        assert_eq!(all.poll(seconds(100)), None);
    }

    #[test]
    fn termination_is_requested_once_and_leaves_time_for_a_checkpoint() {
        let mut all = Membership::new(1, 2);
        assert_eq!(all.request_termination(seconds(5)), Some(Action::Terminate));
        assert_eq!(all.request_termination(seconds(6)), None);
        // An early exit does not shorten the time of the others.
        all.record_exit(seconds(6), 1, 0, Exit::Code(143));
        assert_eq!(all.poll(seconds(29)), None);
        assert_eq!(all.poll(seconds(30)), Some(Action::Kill));
    }

    #[test]
    fn an_interrupt_has_no_limit_until_a_worker_has_exited() {
        let mut all = Membership::new(1, 3);
        assert_eq!(all.request_interrupt(), Some(Action::Terminate));
        assert_eq!(all.request_interrupt(), None);
        assert_eq!(all.poll(seconds(1_000)), None, "a step may last long");
        all.record_exit(seconds(1_000), 1, 2, Exit::Signal(SIGTERM));
        assert_eq!(all.poll(seconds(1_001)), None);
        assert_eq!(all.poll(seconds(1_000) + AFTER_REQUEST), Some(Action::Kill));
        assert_eq!(all.exits()[0].exit, Exit::Code(TERMINATED));
    }

    #[test]
    fn an_attempt_is_resized_once_and_only_while_all_workers_run() {
        let mut all = Membership::new(1, 2);
        assert_eq!(all.can_grow(seconds(5)), Some(Action::Terminate));
        assert_eq!(all.can_grow(seconds(6)), None);
        assert!(all.is_resizing());
        assert_eq!(all.poll(seconds(29)), None);
        assert_eq!(all.poll(seconds(30)), Some(Action::Kill));
        for exit in [LOST, DONE] {
            let mut all = Membership::new(1, 2);
            all.record_exit(seconds(4), 1, 0, exit);
            assert_eq!(all.can_grow(seconds(5)), None, "the attempt is ending");
            assert!(!all.is_resizing());
        }
        let mut all = Membership::new(1, 2);
        all.request_termination(seconds(1));
        assert_eq!(all.can_grow(seconds(5)), None, "the run is terminating");
        assert!(!all.is_resizing());
    }

    #[test]
    fn every_order_of_exits_completes_and_kills_only_after_a_failure() {
        for code in 0..2_u32.pow(4) {
            let exit = |rank: usize| if code >> rank & 1 == 1 { LOST } else { DONE };
            let mut all = Membership::new(1, 4);
            let mut failed = false;
            for rank in [3, 1, 0, 2] {
                let action = all.poll(seconds(100));
                assert_eq!(action.is_some(), failed, "{code:04b}");
                if action.is_some() {
                    break;
                }
                all.record_exit(seconds(1), 1, rank, exit(rank));
                failed |= exit(rank) == LOST;
            }
            assert!(all.is_complete() || all.is_ending());
        }
    }
}

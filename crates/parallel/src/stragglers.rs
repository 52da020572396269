//! Straggler mitigation by cutoff: steps that do not wait for all ranks (backup workers, Chen et
//! al. 2016).
//!
//! A synchronous step takes as long as its slowest rank. The gradient of a batch is an average over
//! samples, so a step can use those that are ready: the sum then misses some samples and is divided
//! by the targets that are in it.
//!
//! All ranks must use the same gradients. A rank that has run its micro-batches signals rank 0,
//! which applies the [cutoff](StepCutoff) and sends every rank the set of ranks that count. A rank
//! checks between two micro-batches whether the cutoff has passed and then runs no more. Every rank
//! still joins all collectives: excluded ranks contribute zeros, so they are late by at most one
//! micro-batch, and replicas stay equal. Gradients are held until the set is known, so their
//! reduction does not overlap with backward.

use lockstep_comm::{Comm, CommError, Handle};
use lockstep_platform::World;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tags of the two kinds of messages.
const ARRIVED: u64 = 1;
const DECIDED: u64 = 2;

/// Deadline of the cutoff messages: steps may be long, and the death of a rank is detected
/// separately.
const LONGEST_STEP: Duration = Duration::from_hours(1);

/// Cutoff of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepCutoff {
    /// When this many ranks are ready.
    Quorum(usize),
    /// This long after the start, if any rank is ready.
    Timeout(Duration),
    /// This multiple of the time that half of the ranks took.
    Slack(f64),
}

impl StepCutoff {
    /// End of the step without further arrivals, counted from its start; `None` while it stays
    /// open. `arrivals` are the times of ready ranks in their order.
    pub fn due(self, arrivals: &[Duration], num_workers: usize) -> Option<Duration> {
        let last = *arrivals.last()?;
        if arrivals.len() == num_workers {
            return Some(last);
        }
        match self {
            Self::Quorum(enough) => (arrivals.len() >= enough).then_some(last),
            Self::Timeout(limit) => Some(limit),
            Self::Slack(factor) => {
                let middle = arrivals.get(num_workers.div_ceil(2) - 1)?;
                Some(middle.mul_f64(factor))
            }
        }
    }
}

/// Duty of a rank in the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepDuty {
    /// Runs its micro-batches.
    #[default]
    Microbatches,
    /// Runs one micro-batch that does not count, to measure its time.
    Probe,
    /// Runs nothing.
    Nothing,
}

/// Arrivals of a step, on rank 0.
struct ArrivalBoard {
    /// Ready ranks in order of arrival.
    arrived: Mutex<Vec<(usize, Duration)>>,
    changed: Arc<dyn lockstep_platform::Signal>,
}

impl ArrivalBoard {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Duration)>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, worker: usize, now: Duration) {
        self.lock().push((worker, now));
        self.changed.notify_all();
    }
}

/// Agreement on the ranks whose gradients count in a step.
pub struct CutoffAgreement {
    comm: Comm,
    world: World,
    rule: StepCutoff,
    board: Arc<ArrivalBoard>,
    began: Duration,
    /// Ranks that count, one bit each, once decided.
    decided: Option<u64>,
    /// On rank 0: signals from all ranks, and decisions sent to them.
    signals: Option<Handle<()>>,
    notices: Vec<Handle<Vec<u64>>>,
    /// On the others: the decision to receive.
    decision: Option<Handle<Vec<u64>>>,
    /// Failure during the micro-batches.
    failed: Option<CommError>,
}

impl CutoffAgreement {
    /// For the ranks of a group. Collective.
    pub fn new(data: &Comm, world: &World, rule: StepCutoff) -> Result<Self, CommError> {
        let num_workers = data.group_size();
        assert!(num_workers <= 64, "one bit per rank");
        let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
        let arrived = Mutex::new(Vec::with_capacity(num_workers));
        Ok(Self {
            comm: data.summing(&each, "arrivals")?.within(LONGEST_STEP),
            world: World::clone(world),
            rule,
            board: Arc::new(ArrivalBoard { arrived, changed: world.threads().signal() }),
            began: Duration::ZERO,
            decided: None,
            signals: None,
            notices: Vec::with_capacity(num_workers),
            decision: None,
            failed: None,
        })
    }

    fn is_first(&self) -> bool {
        self.comm.group_rank() == 0
    }

    fn now(&self) -> Duration {
        self.world.clock().now().saturating_sub(self.began)
    }

    /// Starts a step.
    pub fn begin(&mut self) -> Result<(), CommError> {
        self.began = self.world.clock().now();
        self.decided = None;
        if self.comm.group_size() == 1 {
            return Ok(());
        }
        if !self.is_first() {
            self.decision = Some(self.comm.start_recv(vec![0_u64], 0, DECIDED)?);
            return Ok(());
        }
        self.board.lock().clear();
        let (board, world, began) =
            (Arc::clone(&self.board), World::clone(&self.world), self.began);
        let arrived = move |worker| board.add(worker, world.clock().now().saturating_sub(began));
        self.signals = Some(self.comm.start_wait_for_each(ARRIVED, arrived)?);
        Ok(())
    }

    /// Whether the cutoff has passed. A failure ends the step too; [`Self::conclude`] returns it.
    pub fn is_over(&mut self) -> bool {
        if let Some(decision) = &self.decision {
            return decision.is_done();
        }
        let result = self.decide_if_due();
        self.failed = self.failed.take().or(result.err());
        self.failed.is_some() || self.decided.is_some()
    }

    /// Rank 0 decides once its cutoff has passed, and notifies all ranks.
    fn decide_if_due(&mut self) -> Result<(), CommError> {
        if !self.is_first() || self.decided.is_some() {
            return Ok(());
        }
        // After a failure there are no more signals.
        if self.signals.as_ref().is_some_and(Handle::is_done) && self.due().is_none() {
            return self.signals.take().map_or(Ok(()), Handle::finish);
        }
        if self.due().is_none_or(|due| due > self.now()) {
            return Ok(());
        }
        let arrived = self.board.lock().iter().fold(0, |set, (worker, _)| set | 1_u64 << worker);
        self.decided = Some(arrived);
        for worker in 1..self.comm.group_size() {
            self.notices.push(self.comm.start_send(vec![arrived], worker, DECIDED)?);
        }
        Ok(())
    }

    fn due(&self) -> Option<Duration> {
        let arrived = self.board.lock();
        let arrivals: Vec<Duration> = arrived.iter().map(|(_, at)| *at).collect();
        self.rule.due(&arrivals, self.comm.group_size())
    }

    /// Waits for the decision after this rank has run or abandoned its micro-batches; returns
    /// whether its gradients count.
    pub fn conclude(&mut self) -> Result<bool, CommError> {
        if self.comm.group_size() == 1 {
            return Ok(true);
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if let Some(decision) = self.decision.take() {
            let signal = self.comm.start_signal(0, ARRIVED)?;
            let arrived = decision.finish()?[0];
            signal.finish()?;
            return Ok(arrived >> self.comm.group_rank() & 1 == 1);
        }
        if self.decided.is_none() {
            self.board.add(0, self.now());
        }
        let arrived = loop {
            let epoch = self.board.changed.epoch();
            self.decide_if_due()?;
            if let Some(arrived) = self.decided {
                break arrived;
            }
            // Check for failures at intervals.
            let until_due =
                self.due().map_or(FAILURE_POLL_INTERVAL, |due| due.saturating_sub(self.now()));
            self.board.changed.wait(epoch, until_due.min(FAILURE_POLL_INTERVAL));
        };
        for notices in self.notices.drain(..) {
            notices.finish()?;
        }
        self.signals.take().map_or(Ok(()), Handle::finish)?;
        Ok(arrived & 1 == 1)
    }
}

/// Longest wait between checks for failed ranks.
const FAILURE_POLL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_quorum_is_enough_when_it_is_complete() {
        let rule = StepCutoff::Quorum(3);
        assert_eq!(rule.due(&[], 4), None);
        assert_eq!(rule.due(&[ms(1), ms(2)], 4), None);
        assert_eq!(rule.due(&[ms(1), ms(2), ms(9)], 4), Some(ms(9)));
    }

    #[test]
    fn a_timeout_waits_for_one_worker_and_not_for_the_rest() {
        let rule = StepCutoff::Timeout(ms(50));
        assert_eq!(rule.due(&[], 4), None, "a step needs one rank");
        assert_eq!(rule.due(&[ms(70)], 4), Some(ms(50)));
        assert_eq!(rule.due(&[ms(1)], 4), Some(ms(50)));
        assert_eq!(rule.due(&[ms(1), ms(2)], 2), Some(ms(2)), "all ranks have arrived");
    }

    #[test]
    fn slack_is_counted_from_the_middle_worker() {
        let rule = StepCutoff::Slack(1.5);
        assert_eq!(rule.due(&[ms(10)], 4), None, "half of four are two");
        assert_eq!(rule.due(&[ms(10), ms(20)], 4), Some(ms(30)));
        assert_eq!(rule.due(&[ms(10), ms(20), ms(25)], 4), Some(ms(30)));
        assert_eq!(rule.due(&[ms(10), ms(20)], 5), None, "half of five are three");
    }
}

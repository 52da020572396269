//! Steps that do not wait for everybody.
//!
//! A synchronous step takes as long as its slowest worker. Gradients of a batch are an average over
//! samples, so a step can go by those that are there: some of its samples are missing then, and the
//! sum is divided by the targets that are in it. (Backup workers: Chen et al. 2016.)
//!
//! All workers must go by the same gradients. A worker that has run its micro-batches signals the first
//! one. That one knows by its [rule](LateRule) when to stop waiting, and tells everybody who was
//! there. A worker looks between two micro-batches whether that has happened: if so, it runs no more of
//! them. Nobody leaves a collective call: whoever was late adds zeros to the sum, so it is late by
//! one micro-batch at most, and replicas stay equal. Gradients leave only when it is known whose count, so
//! their exchange does not overlap with the backward pass.

use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Handle};
use lockstep_platform::World;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tags of the two kinds of messages.
const ARRIVED: u64 = 1;
const DECIDED: u64 = 2;

/// A step may take long, and so may the wait for its end; who dies is noticed at once.
const LONGEST_STEP: Duration = Duration::from_hours(1);

/// When a step stops waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LateRule {
    /// As soon as so many workers are there.
    Quorum(usize),
    /// So long after it began, if anybody is there.
    Timeout(Duration),
    /// So many times as long after it began as it took half of the workers.
    Slack(f64),
}

impl LateRule {
    /// When the step is over without anybody else arriving, counted from its begin; nothing where
    /// it is not. `arrivals` are those of workers that are there, in their order.
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

/// What this worker does in the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duty {
    /// Its micro-batches.
    #[default]
    Microbatches,
    /// One micro-batch that does not count, to see how long it takes.
    Probe,
    /// Nothing.
    Nothing,
}

/// What the first worker knows of a step.
struct Board {
    /// Who is there, in the order of arrival.
    there: Mutex<Vec<(usize, Duration)>>,
    changed: Arc<dyn lockstep_platform::Signal>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Duration)>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, worker: usize, now: Duration) {
        self.lock().push((worker, now));
        self.changed.notify_all();
    }
}

/// How workers agree on whose gradients a step goes by.
pub struct Agreement {
    comm: Comm,
    world: World,
    rule: LateRule,
    board: Arc<Board>,
    began: Duration,
    /// The workers whose gradients count, a bit each, once that is decided.
    decided: Option<u64>,
    /// The first worker: everybody's signals, and what everybody is told.
    signals: Option<Handle<()>>,
    told: Vec<Handle<Vec<u64>>>,
    /// The others: what they are told.
    hears: Option<Handle<Vec<u64>>>,
    /// What went wrong in the middle of the micro-batches.
    failed: Option<CommError>,
}

impl Agreement {
    /// For the workers of a group, all of which make one together.
    pub fn new(data: &Comm, world: &World, rule: LateRule) -> Result<Self, CommError> {
        let num_workers = data.group_size();
        assert!(num_workers <= 64, "a bit for every worker");
        let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
        let there = Mutex::new(Vec::with_capacity(num_workers));
        Ok(Self {
            comm: data.summing(&each, "arrivals")?.within(LONGEST_STEP),
            world: World::clone(world),
            rule,
            board: Arc::new(Board { there, changed: world.threads().signal() }),
            began: Duration::ZERO,
            decided: None,
            signals: None,
            told: Vec::with_capacity(num_workers),
            hears: None,
            failed: None,
        })
    }

    fn is_first(&self) -> bool {
        self.comm.group_rank() == 0
    }

    fn now(&self) -> Duration {
        self.world.clock().now().saturating_sub(self.began)
    }

    /// A step begins.
    pub fn begin(&mut self) -> Result<(), CommError> {
        self.began = self.world.clock().now();
        self.decided = None;
        if self.comm.group_size() == 1 {
            return Ok(());
        }
        if !self.is_first() {
            self.hears = Some(self.comm.start_recv(vec![0_u64], 0, DECIDED)?);
            return Ok(());
        }
        self.board.lock().clear();
        let (board, world, began) =
            (Arc::clone(&self.board), World::clone(&self.world), self.began);
        let arrived = move |worker| board.add(worker, world.clock().now().saturating_sub(began));
        self.signals = Some(self.comm.start_wait_for_each(ARRIVED, arrived)?);
        Ok(())
    }

    /// Whether the step goes on without what is not there yet. A failure ends it too;
    /// [`Self::conclude`] says which.
    pub fn is_over(&mut self) -> bool {
        if let Some(hears) = &self.hears {
            return hears.is_done();
        }
        let result = self.decide_if_due();
        self.failed = self.failed.take().or(result.err());
        self.failed.is_some() || self.decided.is_some()
    }

    /// The first worker decides once its rule says so, and tells everybody.
    fn decide_if_due(&mut self) -> Result<(), CommError> {
        if !self.is_first() || self.decided.is_some() {
            return Ok(());
        }
        // Nobody signals any more where somebody has failed.
        if self.signals.as_ref().is_some_and(Handle::is_done) && self.due().is_none() {
            return self.signals.take().map_or(Ok(()), Handle::finish);
        }
        if self.due().is_none_or(|due| due > self.now()) {
            return Ok(());
        }
        let there = self.board.lock().iter().fold(0, |set, (worker, _)| set | 1_u64 << worker);
        self.decided = Some(there);
        for worker in 1..self.comm.group_size() {
            self.told.push(self.comm.start_send(vec![there], worker, DECIDED)?);
        }
        Ok(())
    }

    fn due(&self) -> Option<Duration> {
        let there = self.board.lock();
        let arrivals: Vec<Duration> = there.iter().map(|(_, at)| *at).collect();
        self.rule.due(&arrivals, self.comm.group_size())
    }

    /// This worker has run its micro-batches, or knows that it need not: waits until all agree, and says
    /// whether its gradients count.
    pub fn conclude(&mut self) -> Result<bool, CommError> {
        if self.comm.group_size() == 1 {
            return Ok(true);
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if let Some(hears) = self.hears.take() {
            let signal = self.comm.start_signal(0, ARRIVED)?;
            let there = hears.finish()?[0];
            signal.finish()?;
            return Ok(there >> self.comm.group_rank() & 1 == 1);
        }
        if self.decided.is_none() {
            self.board.add(0, self.now());
        }
        let there = loop {
            let seen = self.board.changed.epoch();
            self.decide_if_due()?;
            if let Some(there) = self.decided {
                break there;
            }
            // Failures are looked for now and then.
            let until_due = self.due().map_or(LOOK_AROUND, |due| due.saturating_sub(self.now()));
            self.board.changed.wait(seen, until_due.min(LOOK_AROUND));
        };
        for told in self.told.drain(..) {
            told.finish()?;
        }
        self.signals.take().map_or(Ok(()), Handle::finish)?;
        Ok(there & 1 == 1)
    }
}

/// The longest sleep without a look at whether somebody has failed.
const LOOK_AROUND: Duration = Duration::from_millis(20);

impl Replica {
    /// Does not wait for everybody from now on; all workers say so together. Only where each of
    /// them holds the whole model.
    pub fn leave_out_stragglers(&mut self, world: &World, rule: LateRule) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "a worker that can be left out holds nothing alone");
        self.turn.agreement = Some(Agreement::new(self.groups.data(), world, rule)?.into());
        Ok(())
    }

    /// Says what this worker does in the next step.
    pub fn set_duty(&mut self, duty: Duty) {
        self.turn.duty = duty;
    }

    /// Whether this worker's gradients are part of the last step's sum.
    pub fn took_part(&self) -> bool {
        self.turn.took_part
    }

    /// Tells all workers what each of them has to say of the last step, by worker.
    pub fn tell_all(&mut self, own: [f64; 3], all: &mut [[f64; 3]]) -> Result<(), CommError> {
        self.store.overlap.call(|comm| comm.all_gather(&own, all.as_flattened_mut()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_quorum_is_enough_when_it_is_complete() {
        let rule = LateRule::Quorum(3);
        assert_eq!(rule.due(&[], 4), None);
        assert_eq!(rule.due(&[ms(1), ms(2)], 4), None);
        assert_eq!(rule.due(&[ms(1), ms(2), ms(9)], 4), Some(ms(9)));
    }

    #[test]
    fn a_timeout_waits_for_one_worker_and_not_for_the_rest() {
        let rule = LateRule::Timeout(ms(50));
        assert_eq!(rule.due(&[], 4), None, "a step needs somebody");
        assert_eq!(rule.due(&[ms(70)], 4), Some(ms(50)));
        assert_eq!(rule.due(&[ms(1)], 4), Some(ms(50)));
        assert_eq!(rule.due(&[ms(1), ms(2)], 2), Some(ms(2)), "nobody is missing");
    }

    #[test]
    fn slack_is_counted_from_the_middle_worker() {
        let rule = LateRule::Slack(1.5);
        assert_eq!(rule.due(&[ms(10)], 4), None, "half of four are two");
        assert_eq!(rule.due(&[ms(10), ms(20)], 4), Some(ms(30)));
        assert_eq!(rule.due(&[ms(10), ms(20), ms(25)], 4), Some(ms(30)));
        assert_eq!(rule.due(&[ms(10), ms(20)], 5), None, "half of five are three");
    }
}

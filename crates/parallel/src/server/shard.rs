//! What a server holds: a range of the parameters, their optimizer, and who has read which version.
//!
//! The version is the number of updates so far. A gradient that was computed from version s and
//! comes when the version is t has *staleness* t − s: so many updates it does not know of.
//!
//! - **sync**: the gradients of all workers are added up in the order of workers, as a binary tree,
//!   and are one update; who wants to read the next version waits for it. Nothing is stale.
//! - **async**: every gradient is an update as soon as it comes.
//! - **elastic**: like sync, but an update does not wait for all: it takes what has come when
//!   enough have, or when its time is over (`update`). Who was too slow goes on with the newest
//!   version.
//! - **bounded**: like async, but nothing is ever staler than a limit. Of those who have read and
//!   not yet pushed, r is the oldest version; a reader waits while t − r + (those at work) would
//!   be more than the limit allows, so that whatever the order in which all of them push, the last
//!   finds no more updates than that. Readers at work never wait, so somebody always goes on. Or
//!   nobody waits, and a gradient that is too stale is thrown away.
//!
//! From a step on, named beforehand or when a worker's loss jumps, async and bounded become sync:
//! who gets there waits until all have.

use super::oscillation::Oscillation;
use super::policy::Policy;
use super::squeeze::Squeeze;
use super::update::{Arrival, Open};
use lockstep_config::{Beyond, Consistency, StalenessRule};
use lockstep_optim::{Clip, Optimizer, Update};
use lockstep_tensor::Cpu;
use std::collections::VecDeque;

/// Parameters, by bucket.
pub type Parts = Vec<Vec<f32>>;

/// See the module's text.
pub struct Shard {
    pub(super) policy: Policy,
    pub(super) num_workers: usize,
    params: Parts,
    optimizer: Optimizer,
    /// The learning rate of a step.
    lr: Box<dyn Fn(u64) -> f64>,
    version: u64,
    /// Updates that changed something.
    num_updates: u64,
    /// The version that each worker has read and not yet answered with a push.
    reads: Vec<Option<u64>>,
    /// Pushes taken of each worker, and what was answered to the last.
    taken: Vec<(u64, Taken)>,
    /// Steps that each worker is through with.
    done: Vec<u64>,
    /// Gradients of the next update, where they wait for each other.
    pub(super) open: Open,
    /// Versions before this one, the oldest first, where readers are kept behind.
    older: VecDeque<Parts>,
    /// The length of rows, where the last part has rows that travel one by one.
    row_len: Option<usize>,
    /// How workers write their gradients, where they do.
    squeeze: Option<Squeeze>,
    oscillation: Oscillation,
    /// How many times the bound was lowered.
    times_lowered: u32,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many updates it had missed.
    pub staleness: u64,
    /// Whether it was thrown away for that.
    pub is_discarded: bool,
}

/// A push of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// Whose.
    pub worker: usize,
    /// Which of its pushes, from 1 on.
    pub number: u64,
    /// The step that it is of.
    pub step: u64,
}

impl Shard {
    /// Zeros for parts of these lengths, stepped as the optimizer's `slots` say.
    pub fn new(
        policy: Policy,
        num_workers: usize,
        lens: &[usize],
        optimizer: Optimizer,
        lr: impl Fn(u64) -> f64 + 'static,
    ) -> Self {
        Self {
            policy,
            num_workers,
            params: lens.iter().map(|len| vec![0.0; *len]).collect(),
            optimizer,
            lr: Box::new(lr),
            version: 0,
            num_updates: 0,
            reads: vec![None; num_workers],
            taken: vec![(0, Taken::default()); num_workers],
            done: vec![0; num_workers],
            open: Open::new(num_workers),
            older: VecDeque::new(),
            row_len: None,
            squeeze: None,
            oscillation: Oscillation::default(),
            times_lowered: 0,
        }
    }

    /// The last part has rows of this length, which travel one by one.
    pub fn hold_rows(&mut self, row_len: usize) {
        self.row_len = Some(row_len);
    }

    /// Workers write their gradients in this way.
    pub fn read_squeezed(&mut self, squeeze: Option<Squeeze>) {
        self.squeeze = squeeze;
    }

    /// How workers write their gradients, where they do.
    pub fn squeeze(&self) -> Option<Squeeze> {
        self.squeeze
    }

    /// The length of rows that travel one by one, where any do.
    pub fn row_len(&self) -> Option<usize> {
        self.row_len
    }

    /// How many parts travel whole.
    pub fn num_whole(&self) -> usize {
        self.params.len() - usize::from(self.row_len.is_some())
    }

    /// Gives all of the optimizer's state, to send or to fill in.
    pub fn visit_state<E>(
        &mut self,
        mut visit: impl FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in self.optimizer.slots().to_vec() {
            for kind in 0..self.optimizer.kinds().len() {
                visit(self.optimizer.state_mut(&slot.name, slot.piece, kind).expect("its own"))?;
            }
        }
        Ok(())
    }

    /// How long each piece of that is.
    pub fn state_lens(&mut self) -> Vec<usize> {
        let mut lens = Vec::new();
        let note = |state: &mut [f32]| {
            lens.push(state.len());
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(()) = self.visit_state(note);
        lens
    }

    /// How many pushes were taken of each worker, those without a gradient included.
    pub fn num_taken(&self) -> Vec<u64> {
        self.taken.iter().map(|(count, _)| *count).collect()
    }

    /// What became of a worker's push with this number, if it was taken already.
    ///
    /// # Panics
    /// When one before it was not.
    pub fn taken(&self, worker: usize, number: u64) -> Option<Taken> {
        let (count, taken) = self.taken[worker];
        assert!(number <= count + 1, "push {number} of worker {worker} comes after {count}");
        (number == count).then_some(taken)
    }

    /// Goes on after so many steps of all workers and so many updates that changed something.
    pub fn resume(&mut self, num_steps: u64, num_updates: u64) {
        self.version = match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => num_steps,
            Consistency::Async | Consistency::Bounded => num_steps * self.num_workers as u64,
        };
        self.done.fill(num_steps);
        self.num_updates = num_updates;
        // What was before this version is not known any more.
        self.older = (0..self.policy.delay).map(|_| self.params.clone()).collect();
    }

    /// The newest parameters.
    pub fn params_mut(&mut self) -> &mut Parts {
        &mut self.params
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Updates that changed something.
    pub fn num_updates(&self) -> u64 {
        self.num_updates
    }

    /// Workers that have read and not pushed, the one that read first in front.
    pub fn at_work(&self) -> Vec<usize> {
        let read = |worker: usize| Some((self.reads[worker]?, worker));
        let mut all: Vec<_> = (0..self.num_workers).filter_map(read).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, worker)| worker).collect()
    }

    /// Whether somebody may read now, for a step of its own.
    pub fn may_read(&self, step: u64) -> bool {
        match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => self.version >= step,
            _ if self.is_in_lockstep(step) => self.done.iter().all(|done| *done >= step),
            Consistency::Async => true,
            Consistency::Bounded if self.policy.bound.beyond == Beyond::Discard => true,
            Consistency::Bounded => {
                let oldest = self.reads.iter().flatten().min().copied();
                let num_at_work = self.reads.iter().flatten().count() as u64;
                let read = self.version.saturating_sub(self.policy.delay);
                // The new reader is one of those at work then, and may be the oldest.
                let oldest = oldest.map_or(read, |oldest| oldest.min(read));
                num_at_work == 0 || self.version - oldest + num_at_work <= self.bound()
            }
        }
    }

    /// Whether all wait for all in a step.
    fn is_in_lockstep(&self, step: u64) -> bool {
        match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => true,
            Consistency::Async | Consistency::Bounded => {
                self.policy.switch.is_some_and(|switch| step >= switch)
            }
        }
    }

    /// The step from which on all wait for all, where that was not so from the beginning.
    pub fn switch(&self) -> Option<u64> {
        self.policy.switch
    }

    /// From the next step on that nobody has begun, all wait for all.
    pub fn fall_back(&mut self) {
        let is_free = matches!(self.policy.consistency, Consistency::Async | Consistency::Bounded);
        let next = self.done.iter().max().map_or(0, |done| done + 1);
        if is_free && self.policy.switch.is_none_or(|switch| switch > next) {
            self.policy.switch = Some(next);
        }
    }

    /// How many updates a gradient may have missed now.
    pub fn bound(&self) -> u64 {
        let step = self.version / self.num_workers as u64;
        self.policy.bound.at(step, (self.lr)(step), self.times_lowered)
    }

    /// A worker reads, and will answer with a push: which version that is.
    pub fn read(&mut self, worker: usize) -> u64 {
        let version = self.version.saturating_sub(self.policy.delay);
        self.reads[worker] = Some(version);
        version
    }

    /// What a worker has read that nobody has stepped since.
    ///
    /// # Panics
    /// When it has not.
    pub fn read_by(&self, worker: usize) -> &Parts {
        let version = self.reads[worker].expect("it has read");
        match (self.version - version) as usize {
            0 => &self.params,
            behind => &self.older[self.older.len() - behind],
        }
    }

    /// What a reader would get now: the version, and its parameters.
    pub fn newest(&self) -> (u64, &Parts) {
        let version = self.version.saturating_sub(self.policy.delay);
        match (self.version - version) as usize {
            0 => (version, &self.params),
            behind => (version, &self.older[self.older.len() - behind]),
        }
    }

    /// What a worker has read did not reach it.
    pub fn forget_read(&mut self, worker: usize) {
        self.reads[worker] = None;
    }

    /// A worker pushes a gradient, or nothing where it leaves the step out; returns what became of
    /// it.
    ///
    /// # Panics
    /// When it has not read before.
    pub fn push(&mut self, cpu: &Cpu, push: Push, grads: Option<Parts>) -> Taken {
        let Push { worker, number, step } = push;
        let read = self.reads[worker].take().expect("whoever pushes has read");
        let staleness = self.version - read;
        self.done[worker] = step + 1;
        let is_discarded = if self.is_in_lockstep(step) {
            self.arrive(cpu, worker, staleness, grads.map_or(Arrival::LeftOut, Arrival::Gradient))
        } else if self.is_too_stale(staleness) {
            true
        } else {
            let step = self.version / self.num_workers as u64;
            self.watch(grads.as_ref());
            self.update(cpu, grads, step, staleness);
            false
        };
        let taken = Taken { staleness, is_discarded };
        self.taken[worker] = (number, taken);
        taken
    }

    fn is_too_stale(&self, staleness: u64) -> bool {
        let discards = self.policy.bound.beyond == Beyond::Discard;
        self.policy.consistency == Consistency::Bounded && discards && staleness > self.bound()
    }

    /// Lowers the bound where gradients swing.
    fn watch(&mut self, grads: Option<&Parts>) {
        let is_watched = self.policy.bound.rule == StalenessRule::Oscillation
            && self.policy.consistency == Consistency::Bounded;
        let Some(grads) = grads.filter(|_| is_watched) else { return };
        let bound = self.bound();
        if self.oscillation.note(grads, bound) {
            self.times_lowered += 1;
        }
    }

    /// Takes a step by a gradient, if there is one, and counts it.
    pub(super) fn update(&mut self, cpu: &Cpu, grads: Option<Parts>, step: u64, staleness: u64) {
        if self.policy.delay > 0 {
            self.older.push_back(self.params.clone());
            if self.older.len() as u64 > self.policy.delay {
                self.older.pop_front();
            }
        }
        self.version += 1;
        let Some(mut grads) = grads else { return };
        self.num_updates += 1;
        let lr = (self.lr)(step) * self.policy.weight_of(staleness);
        let update = Update { count: self.num_updates, lr, clip: Clip::by(1.0) };
        for (bucket, (params, grads)) in self.params.iter_mut().zip(&mut grads).enumerate() {
            if !params.is_empty() {
                self.optimizer.step_block(cpu, &update, bucket, params, grads);
            }
        }
    }

    /// The step that an update in lockstep is of.
    pub(super) fn step_in_lockstep(&self) -> u64 {
        match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => self.version,
            // All have done as many, the one that is being taken included.
            Consistency::Async | Consistency::Bounded => {
                self.done.iter().min().map_or(0, |d| d - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests;

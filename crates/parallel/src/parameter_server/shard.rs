//! A server's shard: parameters, their optimizer, and the versions that workers have read.
//!
//! The version is the number of updates so far. A gradient computed from version s that arrives at
//! version t has *staleness* t − s.
//!
//! - **sync**: the gradients of all workers are summed in worker order, as a binary tree, and are
//!   one update; readers of the next version wait for it. Nothing is stale.
//! - **async**: every gradient is an update on arrival.
//! - **elastic**: like sync, but an update does not wait for all: it closes with the gradients that
//!   have arrived when the quorum is reached or the deadline has passed (`pending_update`). Slower
//!   workers continue with the newest version.
//! - **bounded** (stale synchronous parallel, Ho et al. 2013): like async with a limit on
//!   staleness. With r the oldest version that was read and not yet pushed, a reader waits while t
//!   − r + (computing workers) would exceed the limit, so that in any order of pushes the last
//!   gradient stays within it. Computing workers never wait, so there is always progress.
//!   Alternatively readers never wait, and a gradient beyond the limit is discarded.
//!
//! From a given step, or after a worker's loss jumps, async and bounded switch to sync: workers
//! that reach that step wait until all have.

use super::Parts;
use super::compressed_push::PushCompression;
use super::oscillation::Oscillation;
use super::pending_update::{Arrival, PendingUpdate, PushedGradient, as_one};
use super::policy::Policy;
use super::push_counts::PushCounts;
use lockstep_config::{Consistency, LateGradients, StaleGradients, StalenessRule};
use lockstep_optim::{Clip, Optimizer, Update};
use lockstep_tensor::Cpu;
use std::collections::VecDeque;

/// One server's shard.
pub struct Shard {
    policy: Policy,
    num_workers: usize,
    params: Parts,
    optimizer: Optimizer,
    /// Learning rate of a step.
    lr: Box<dyn Fn(u64) -> f64>,
    version: u64,
    /// Number of updates with a gradient.
    num_updates: u64,
    /// Version that each worker has read and not yet answered with a push.
    reads: Vec<Option<u64>>,
    /// Number of each worker's last push.
    taken: Vec<u64>,
    /// Outcomes of each worker's pushes.
    counts: Vec<PushCounts>,
    /// Number of steps that each worker has finished.
    done: Vec<u64>,
    /// Gradients of the next update, in synchronous and elastic mode.
    open: PendingUpdate,
    /// Older versions, oldest first, where reads are delayed or workers still pull parts.
    older: VecDeque<Parts>,
    /// Workers that have not pulled all parts of the version they read.
    is_pulling: Vec<bool>,
    /// Length of a row, if the last part holds rows that are pulled one by one.
    row_len: Option<usize>,
    /// Push compression, if enabled.
    compression: Option<PushCompression>,
    oscillation: Oscillation,
    /// Number of times the bound was halved.
    times_lowered: u32,
}

/// A push of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// Worker.
    pub worker: usize,
    /// Number of the worker's push, from 1 on.
    pub number: u64,
    /// Step of the gradient.
    pub step: u64,
}

impl Shard {
    /// Zeroed parts of these lengths, stepped by the optimizer's slots.
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
            taken: vec![0; num_workers],
            counts: vec![PushCounts::default(); num_workers],
            done: vec![0; num_workers],
            open: PendingUpdate::new(num_workers),
            older: VecDeque::new(),
            is_pulling: vec![false; num_workers],
            row_len: None,
            compression: None,
            oscillation: Oscillation::default(),
            times_lowered: 0,
        }
    }

    /// Marks the last part as rows of this length, pulled one by one.
    pub fn set_row_len(&mut self, row_len: usize) {
        self.row_len = Some(row_len);
    }

    /// Sets the push compression of the workers.
    pub fn set_push_compression(&mut self, compression: Option<PushCompression>) {
        self.compression = compression;
    }

    /// Push compression of the workers, if enabled.
    pub fn compression(&self) -> Option<PushCompression> {
        self.compression
    }

    /// Length of a row, if rows are pulled one by one.
    pub fn row_len(&self) -> Option<usize> {
        self.row_len
    }

    /// Number of parts that are pulled whole.
    pub fn num_whole(&self) -> usize {
        self.params.len() - usize::from(self.row_len.is_some())
    }

    /// Visits all optimizer state, to send or to restore it.
    pub fn visit_state<E>(
        &mut self,
        mut visit: impl FnMut(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        for slot in self.optimizer.slots().to_vec() {
            for kind in 0..self.optimizer.state_names().len() {
                visit(self.optimizer.state_mut(&slot.name, slot.piece, kind).expect("its own"))?;
            }
        }
        Ok(())
    }

    /// Lengths of the pieces of optimizer state.
    pub fn state_lens(&mut self) -> Vec<usize> {
        let mut lens = Vec::new();
        let observe = |state: &mut [f32]| {
            lens.push(state.len());
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(()) = self.visit_state(observe);
        lens
    }

    /// Outcomes of the pushes of each worker.
    pub fn push_counts(&self) -> &[PushCounts] {
        &self.counts
    }

    /// Whether a worker's push with this number has arrived already.
    ///
    /// # Panics
    /// If an earlier push is missing.
    pub fn has_taken(&self, worker: usize, number: u64) -> bool {
        let last = self.taken[worker];
        assert!(number <= last + 1, "push {number} of worker {worker} comes after {last}");
        number == last
    }

    /// Resumes after `num_steps` steps of all workers and `num_updates` updates with a gradient.
    pub fn resume(&mut self, num_steps: u64, num_updates: u64) {
        self.version = match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => num_steps,
            Consistency::Async | Consistency::Bounded => num_steps * self.num_workers as u64,
        };
        self.done.fill(num_steps);
        self.num_updates = num_updates;
        // Older versions are not saved.
        self.older = (0..self.policy.delay).map(|_| self.params.clone()).collect();
    }

    /// Newest parameters.
    pub fn params_mut(&mut self) -> &mut Parts {
        &mut self.params
    }

    /// Newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Number of updates with a gradient.
    pub fn num_updates(&self) -> u64 {
        self.num_updates
    }

    /// Workers that have read and not pushed, the earliest reader first.
    pub fn computing_workers(&self) -> Vec<usize> {
        let read = |worker: usize| Some((self.reads[worker]?, worker));
        let mut all: Vec<_> = (0..self.num_workers).filter_map(read).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, worker)| worker).collect()
    }

    /// Whether a worker may read for its `step` now.
    pub fn may_read(&self, step: u64) -> bool {
        match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => self.version >= step,
            _ if self.is_in_lockstep(step) => self.done.iter().all(|done| *done >= step),
            Consistency::Async => true,
            Consistency::Bounded if self.policy.bound.beyond == StaleGradients::Discard => true,
            Consistency::Bounded => {
                let oldest = self.reads.iter().flatten().min().copied();
                let num_at_work = self.reads.iter().flatten().count() as u64;
                let read = self.version.saturating_sub(self.policy.delay);
                // The new reader counts as computing, and may be the oldest.
                let oldest = oldest.map_or(read, |oldest| oldest.min(read));
                num_at_work == 0 || self.version - oldest + num_at_work <= self.bound()
            }
        }
    }

    /// Whether a step is synchronous.
    fn is_in_lockstep(&self, step: u64) -> bool {
        match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => true,
            Consistency::Async | Consistency::Bounded => {
                self.policy.switch.is_some_and(|switch| step >= switch)
            }
        }
    }

    /// First synchronous step, where earlier ones were not.
    pub fn switch(&self) -> Option<u64> {
        self.policy.switch
    }

    /// Makes all steps synchronous from the next one that no worker has begun.
    pub fn switch_to_sync(&mut self) {
        let is_free = matches!(self.policy.consistency, Consistency::Async | Consistency::Bounded);
        let next = self.done.iter().max().map_or(0, |done| done + 1);
        if is_free && self.policy.switch.is_none_or(|switch| switch > next) {
            self.policy.switch = Some(next);
        }
    }

    /// Current staleness bound.
    pub fn bound(&self) -> u64 {
        let step = self.version / self.num_workers as u64;
        self.policy.bound.at(step, (self.lr)(step), self.times_lowered)
    }

    /// Registers a read that a push will follow; returns its version.
    pub fn read(&mut self, worker: usize) -> u64 {
        let version = self.version.saturating_sub(self.policy.delay);
        self.reads[worker] = Some(version);
        version
    }

    /// Version of the parameters that a worker has read.
    ///
    /// # Panics
    /// If it has not read.
    pub fn read_by(&self, worker: usize) -> &Parts {
        let version = self.reads[worker].expect("it has read");
        match (self.version - version) as usize {
            0 => &self.params,
            behind => &self.older[self.older.len() - behind],
        }
    }

    /// Keeps the version that a worker has read until it has pulled all parts of it.
    pub fn begin_parts(&mut self, worker: usize) {
        self.is_pulling[worker] = true;
    }

    /// A part of the version that a worker has read; the last one completes its pull.
    pub fn read_part(&mut self, worker: usize, part: usize) -> &[f32] {
        let whole = &self.params[..self.num_whole()];
        self.is_pulling[worker] &= whole.iter().rposition(|part| !part.is_empty()) != Some(part);
        &self.read_by(worker)[part]
    }

    /// Version and parameters that a reader would get now.
    pub fn newest(&self) -> (u64, &Parts) {
        let version = self.version.saturating_sub(self.policy.delay);
        match (self.version - version) as usize {
            0 => (version, &self.params),
            behind => (version, &self.older[self.older.len() - behind]),
        }
    }

    /// Cancels a read whose reply was lost.
    pub fn forget_read(&mut self, worker: usize) {
        (self.reads[worker], self.is_pulling[worker]) = (None, false);
    }

    /// Takes a worker's gradient, or a skipped step for `None`; returns its staleness.
    ///
    /// # Panics
    /// If it has not read before.
    pub fn push(&mut self, cpu: &Cpu, push: Push, grads: Option<Parts>) -> u64 {
        let Push { worker, number, step } = push;
        let read = self.reads[worker].take().expect("a push follows a read");
        let staleness = self.version - read;
        (self.done[worker], self.is_pulling[worker]) = (step + 1, false);
        self.taken[worker] = number;
        let has_grads = grads.is_some();
        self.counts[worker].skipped += u64::from(!has_grads);
        if self.is_in_lockstep(step) {
            let gradient = |parts| Arrival::Gradient(PushedGradient { worker, staleness, parts });
            self.arrive(cpu, worker, staleness, grads.map_or(Arrival::LeftOut, gradient));
        } else if self.is_too_stale(staleness) {
            self.counts[worker].discarded += u64::from(has_grads);
        } else {
            let step = self.version / self.num_workers as u64;
            self.check_oscillation(grads.as_ref());
            self.update(cpu, grads, step, staleness);
            if has_grads {
                self.counts[worker].apply(staleness);
            }
        }
        staleness
    }

    fn is_too_stale(&self, staleness: u64) -> bool {
        let discards = self.policy.bound.beyond == StaleGradients::Discard;
        self.policy.consistency == Consistency::Bounded && discards && staleness > self.bound()
    }

    /// Halves the bound if gradients oscillate.
    fn check_oscillation(&mut self, grads: Option<&Parts>) {
        let is_watched = self.policy.bound.rule == StalenessRule::Oscillation
            && self.policy.consistency == Consistency::Bounded;
        let Some(grads) = grads.filter(|_| is_watched) else { return };
        let bound = self.bound();
        if self.oscillation.observe(grads, bound) {
            self.times_lowered += 1;
        }
    }

    /// Steps by a gradient, if there is one, and advances the version.
    fn update(&mut self, cpu: &Cpu, grads: Option<Parts>, step: u64, staleness: u64) {
        self.version += 1;
        let pulling =
            self.reads.iter().zip(&self.is_pulling).filter(|(_, is_pulling)| **is_pulling);
        let ages = pulling.filter_map(|(read, _)| Some(self.version - (*read)?));
        let num_older = ages.max().unwrap_or(0).max(self.policy.delay) as usize;
        if num_older > 0 {
            self.older.push_back(self.params.clone());
        }
        self.older.drain(..self.older.len().saturating_sub(num_older));
        let Some(mut grads) = grads else { return };
        self.num_updates += 1;
        let lr = (self.lr)(step) * self.policy.weight_of(staleness);
        let update = Update { count: self.num_updates, lr, clip: Clip::uniform(1.0) };
        for (bucket, (params, grads)) in self.params.iter_mut().zip(&mut grads).enumerate() {
            if !params.is_empty() {
                self.optimizer.step_block(cpu, &update, bucket, params, grads);
            }
        }
    }

    /// Whether an update is pending with some contributions.
    pub fn is_open(&self) -> bool {
        self.open.num_arrived() > 0
    }

    /// Adds a worker's contribution to the pending update.
    fn arrive(&mut self, cpu: &Cpu, worker: usize, staleness: u64, arrival: Arrival) {
        let is_elastic = self.policy.consistency == Consistency::Elastic;
        if is_elastic && staleness > self.policy.delay {
            let Arrival::Gradient(gradient) = arrival else { return };
            match self.policy.overdue {
                LateGradients::Next => self.open.overdue.push(gradient),
                LateGradients::Discard => self.counts[worker].discarded += 1,
            }
            return;
        }
        self.open.arrived[worker] = arrival;
        let needed = if is_elastic { self.policy.quorum } else { self.num_workers };
        if self.open.num_arrived() >= needed.min(self.num_workers) {
            self.close(cpu);
        }
    }

    /// Closes the update with the contributions so far.
    pub fn close(&mut self, cpu: &Cpu) {
        let open = std::mem::replace(&mut self.open, PendingUpdate::new(self.num_workers));
        let is_left_out = open.arrived.iter().any(|arrival| matches!(arrival, Arrival::LeftOut));
        let fresh = open.arrived.into_iter().filter_map(|arrival| match arrival {
            Arrival::Gradient(gradient) => Some(gradient),
            Arrival::Awaited | Arrival::LeftOut => None,
        });
        let all: Vec<PushedGradient> = fresh.chain(open.overdue).collect();
        // In synchronous mode a step that one worker skips is skipped by all.
        let is_elastic = self.policy.consistency == Consistency::Elastic;
        let is_void = all.is_empty() || (is_left_out && !is_elastic);
        for PushedGradient { worker, staleness, .. } in &all {
            match &mut self.counts[*worker] {
                counts if is_void => counts.discarded += 1,
                counts => counts.apply(*staleness),
            }
        }
        let (num_workers, rule) = (self.num_workers, self.policy.aggregator);
        let all = all.into_iter().map(|gradient| gradient.parts).collect();
        let grads = (!is_void).then(|| as_one(cpu, rule, all, num_workers));
        self.update(cpu, grads, self.step_in_lockstep(), 0);
    }

    /// Step of a synchronous update.
    fn step_in_lockstep(&self) -> u64 {
        match self.policy.consistency {
            Consistency::Sync | Consistency::Elastic => self.version,
            // All have finished as many steps, the current one included.
            Consistency::Async | Consistency::Bounded => {
                self.done.iter().min().map_or(0, |d| d - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests;

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
mod tests {
    use super::*;
    use crate::robust::Combine;
    use crate::server::policy::Bound;
    use lockstep_config::{Late, Recipe, Sources, StalenessWeight, resolve};
    use lockstep_optim::Slot;
    use lockstep_tensor::Isa;

    fn shard(num_workers: usize, consistency: Consistency, staleness: u64) -> Shard {
        let sets = ["optim.name=sgd", "optim.weight_decay=0"].map(str::to_owned).to_vec();
        let recipe: Recipe = resolve(&Sources { sets, ..Sources::default() }).expect("sound");
        let slot = Slot {
            block: 0,
            name: "x".to_owned(),
            tensor: 0,
            piece: 0,
            range: 0..1,
            grads: 0..1,
            first: 0,
            decay: false,
        };
        let bound = Bound {
            staleness,
            last: 0,
            rule: StalenessRule::Fixed,
            constant: 1.0,
            curvature: 1.0,
            num_steps: 100,
            beyond: Beyond::Block,
        };
        let policy = Policy {
            consistency,
            bound,
            weight: StalenessWeight::None,
            decay: 0.9,
            delay: 0,
            quorum: num_workers,
            late: Late::Next,
            combine: Combine::Mean,
            switch: None,
        };
        Shard::new(policy, num_workers, &[1], Optimizer::new(&recipe.optim, &[slot]), |_| 1.0)
    }

    fn push(shard: &mut Shard, worker: usize, grads: Option<Parts>) -> u64 {
        let number = shard.num_taken()[worker] + 1;
        assert_eq!(shard.taken(worker, number), None, "it is new");
        let push = Push { worker, number, step: shard.done[worker] };
        let taken = shard.push(&Cpu::single(Isa::detect()), push, grads);
        assert_eq!(shard.taken(worker, number), Some(taken), "it is taken, once");
        taken.staleness
    }

    fn gradient(value: f32) -> Parts {
        vec![vec![value]]
    }

    #[test]
    fn one_update_waits_for_all_workers_in_lockstep() {
        let mut shard = shard(2, Consistency::Sync, 0);
        assert!(shard.may_read(0) && !shard.may_read(1));
        shard.read(0);
        shard.read(1);
        assert_eq!(push(&mut shard, 1, Some(gradient(2.0))), 0);
        assert!(!shard.may_read(1), "worker 0 has not pushed");
        assert_eq!(push(&mut shard, 0, Some(gradient(1.0))), 0);
        assert!(shard.may_read(1));
        assert_eq!(shard.params_mut()[0], [-3.0]);
        // A step that one of them leaves out nobody takes.
        shard.read(0);
        shard.read(1);
        push(&mut shard, 0, Some(gradient(1.0)));
        push(&mut shard, 1, None);
        assert_eq!((shard.version(), shard.num_updates(), shard.params_mut()[0][0]), (2, 1, -3.0));
    }

    #[test]
    fn nothing_is_staler_than_the_bound_whoever_is_slow() {
        for num_workers in 1..=4 {
            for bound in 0..6 {
                let mut shard = shard(num_workers, Consistency::Bounded, bound);
                let mut most = 0;
                // The last worker pushes only when nobody else can do anything.
                for turn in 0..200 {
                    let mut has_moved = false;
                    for worker in 0..num_workers {
                        let is_slow = worker + 1 == num_workers && num_workers > 1;
                        if shard.reads[worker].is_none() {
                            if shard.may_read(0) {
                                shard.read(worker);
                                has_moved = true;
                            }
                        } else if !is_slow {
                            most = most.max(push(&mut shard, worker, Some(gradient(0.0))));
                            has_moved = true;
                        }
                    }
                    if !has_moved {
                        let slow = num_workers - 1;
                        assert!(shard.reads[slow].is_some(), "{bound}: all wait in turn {turn}");
                        most = most.max(push(&mut shard, slow, Some(gradient(0.0))));
                    }
                }
                assert!(most <= bound, "{num_workers} workers: {most} of {bound}");
                assert!(num_workers == 1 || most == bound, "{num_workers}: {most} of {bound}");
            }
        }
    }

    #[test]
    fn a_reader_that_is_kept_behind_gets_what_was_then() {
        let mut shard = shard(1, Consistency::Async, 0);
        shard.policy.delay = 2;
        let mut seen = Vec::new();
        for _ in 0..5 {
            let version = shard.read(0);
            seen.push((version, shard.read_by(0)[0][0]));
            push(&mut shard, 0, Some(gradient(-1.0)));
        }
        assert_eq!(seen, [(0, 0.0), (0, 0.0), (0, 0.0), (1, 1.0), (2, 2.0)]);
    }

    #[test]
    fn an_elastic_update_takes_who_has_come_for_all() {
        let cpu = Cpu::single(Isa::detect());
        for (late, expected) in [(Late::Discard, -3.0), (Late::Next, -4.5)] {
            let mut shard = shard(3, Consistency::Elastic, 0);
            (shard.policy.quorum, shard.policy.late) = (2, late);
            (0..3).for_each(|worker| _ = shard.read(worker));
            push(&mut shard, 0, Some(gradient(1.0)));
            assert!(!shard.may_read(1) && shard.is_open());
            push(&mut shard, 1, Some(gradient(1.0)));
            // Two of three count for three.
            assert_eq!((shard.version(), shard.params_mut()[0][0]), (1, -3.0));
            assert_eq!(push(&mut shard, 2, Some(gradient(1.0))), 1, "it is late");
            assert_eq!(shard.taken[2].1.is_discarded, late == Late::Discard);
            assert!(!shard.is_open(), "a late one closes nothing");
            // Nobody else comes in time; with the late one there are two of three, or one.
            shard.read(0);
            push(&mut shard, 0, Some(gradient(0.0)));
            shard.close(&cpu);
            assert_eq!((shard.version(), shard.params_mut()[0][0]), (2, expected));
        }
    }

    #[test]
    fn what_is_too_stale_is_thrown_away_where_nobody_waits() {
        let mut shard = shard(3, Consistency::Bounded, 1);
        shard.policy.bound.beyond = Beyond::Discard;
        (0..3).for_each(|worker| _ = shard.read(worker));
        let found = [0, 1, 2].map(|worker| push(&mut shard, worker, Some(gradient(1.0))));
        assert_eq!(found, [0, 1, 2]);
        assert_eq!(
            [0, 1, 2].map(|worker| shard.taken[worker].1.is_discarded),
            [false, false, true]
        );
        assert_eq!((shard.version(), shard.params_mut()[0][0]), (2, -2.0));
    }

    #[test]
    fn who_gets_to_the_switch_waits_for_all_and_goes_on_in_lockstep() {
        let mut shard = shard(2, Consistency::Async, 0);
        shard.policy.switch = Some(2);
        for _ in 0..2 {
            assert!(shard.may_read(shard.done[0]));
            shard.read(0);
            push(&mut shard, 0, Some(gradient(1.0)));
        }
        assert!(!shard.may_read(2), "worker 1 has done nothing yet");
        for _ in 0..2 {
            shard.read(1);
            push(&mut shard, 1, Some(gradient(1.0)));
        }
        assert_eq!((shard.version(), shard.params_mut()[0][0]), (4, -4.0));
        assert!(shard.may_read(2));
        (0..2).for_each(|worker| _ = shard.read(worker));
        push(&mut shard, 0, Some(gradient(1.0)));
        assert!(!shard.may_read(3));
        assert_eq!(shard.version(), 4, "one of two is no update any more");
        assert_eq!(push(&mut shard, 1, Some(gradient(1.0))), 0);
        assert_eq!((shard.version(), shard.params_mut()[0][0]), (5, -6.0));
        assert!(shard.may_read(3));
    }

    #[test]
    fn after_an_alarm_nobody_begins_another_step_alone() {
        let mut shard = shard(2, Consistency::Async, 0);
        for _ in 0..3 {
            shard.read(0);
            push(&mut shard, 0, Some(gradient(0.0)));
        }
        shard.fall_back();
        assert_eq!(shard.switch(), Some(4), "worker 0 may be at work on step 3");
        shard.fall_back();
        assert_eq!(shard.switch(), Some(4));
        assert!(shard.may_read(3) && !shard.may_read(4));
    }

    /// Descends on a bowl at 0.9 over its curvature with four workers that push in turn, and read
    /// again as soon as they may: where it ends.
    fn descend(rule: StalenessRule) -> f32 {
        let mut shard = shard(4, Consistency::Bounded, 7);
        shard.policy.bound.rule = rule;
        shard.params_mut()[0][0] = 1.0;
        let mut seen = [0.0; 4];
        for turn in 0..4000 {
            for worker in 0..4 {
                if shard.reads[worker].is_none() && shard.may_read(0) {
                    shard.read(worker);
                    seen[worker] = shard.params_mut()[0][0];
                }
            }
            let worker = turn % 4;
            if shard.reads[worker].is_some() {
                push(&mut shard, worker, Some(gradient(0.9 * seen[worker])));
            }
        }
        shard.params_mut()[0][0]
    }

    #[test]
    fn a_bound_that_is_lowered_when_gradients_swing_saves_what_would_diverge() {
        // Gradients that have missed 3 updates diverge beyond 0.445; those that have missed one,
        // beyond 1.
        let fixed = descend(StalenessRule::Fixed);
        assert!(fixed.is_nan() || fixed.abs() > 1e6, "{fixed}");
        let lowered = descend(StalenessRule::Oscillation);
        assert!(lowered.abs() < 1e-3, "{lowered}");
    }
}

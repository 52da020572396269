//! What a server holds: a range of the parameters, their optimizer, and who has read which version.
//!
//! The version is the number of updates so far. A gradient that was computed from version s and
//! comes when the version is t has *staleness* t − s: so many updates it does not know of.
//!
//! - **sync**: the gradients of all workers are added up in the order of workers, as a binary tree,
//!   and are one update; who wants to read the next version waits for it. Nothing is stale.
//! - **async**: every gradient is an update as soon as it comes.
//! - **bounded**: the same, but nothing is ever staler than a limit. Of those who have read and not
//!   yet pushed, r is the oldest version; a reader waits while t − r + (readers at work) would be
//!   more than the limit allows, so that whatever the order in which all of them push, the last
//!   finds no more updates than that. Readers at work never wait, so somebody always goes on.

use crate::robust::{Combine, combine};
use lockstep_config::{Consistency, StalenessWeight};
use lockstep_optim::{Clip, Optimizer, Update};
use lockstep_tensor::math::scalar;
use lockstep_tensor::{Cpu, reduce};
use std::collections::VecDeque;

/// How a server answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Who waits for whom.
    pub consistency: Consistency,
    /// The most updates that a gradient may have missed, where that is bounded.
    pub staleness: u64,
    /// How much less a stale gradient counts.
    pub weight: StalenessWeight,
    /// What it is multiplied by for every update that it has missed, where that is exponential.
    pub decay: f64,
    /// How many versions behind readers are kept on purpose.
    pub delay: u64,
    /// How the gradients of an update are combined where some may be lies; else they are added up.
    pub combine: Option<Combine>,
}

/// Parameters, by bucket.
pub type Parts = Vec<Vec<f32>>;

/// What a worker has brought for the next update.
enum Arrival {
    /// Nothing yet.
    Awaited,
    /// Its gradient.
    Gradient(Parts),
    /// Its word that it leaves the step out.
    LeftOut,
}

/// See the module's text.
pub struct Shard {
    policy: Policy,
    num_workers: usize,
    params: Parts,
    optimizer: Optimizer,
    /// The learning rate of a step.
    lr: Box<dyn Fn(u64) -> f64>,
    version: u64,
    /// Updates that changed something.
    num_updates: u64,
    /// The version that each worker has read and not yet answered with a push.
    reads: Vec<Option<u64>>,
    /// Gradients of the next update, where they wait for each other.
    arrived: Vec<Arrival>,
    /// Versions before this one, the oldest first, where readers are kept behind.
    older: VecDeque<Parts>,
    /// The length of rows, where the last part has rows that travel one by one.
    row_len: Option<usize>,
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
            arrived: (0..num_workers).map(|_| Arrival::Awaited).collect(),
            older: VecDeque::new(),
            row_len: None,
        }
    }

    /// The last part has rows of this length, which travel one by one.
    pub fn hold_rows(&mut self, row_len: usize) {
        self.row_len = Some(row_len);
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

    /// Goes on after so many steps of all workers and so many updates that changed something.
    pub fn resume(&mut self, num_steps: u64, num_updates: u64) {
        self.version = match self.policy.consistency {
            Consistency::Sync => num_steps,
            Consistency::Async | Consistency::Bounded => num_steps * self.num_workers as u64,
        };
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
            Consistency::Sync => self.version >= step,
            Consistency::Async => true,
            Consistency::Bounded => {
                let oldest = self.reads.iter().flatten().min().copied();
                let num_at_work = self.reads.iter().flatten().count() as u64;
                let read = self.version.saturating_sub(self.policy.delay);
                // The new reader is one of those at work then, and may be the oldest.
                let oldest = oldest.map_or(read, |oldest| oldest.min(read));
                num_at_work == 0 || self.version - oldest + num_at_work <= self.policy.staleness
            }
        }
    }

    /// A worker reads: the version, and its parameters.
    pub fn read(&mut self, worker: usize) -> (u64, &Parts) {
        self.reads[worker] = Some(self.newest().0);
        self.newest()
    }

    /// What a reader gets now: the version, and its parameters.
    pub fn newest(&self) -> (u64, &Parts) {
        let behind = (self.version - self.version.saturating_sub(self.policy.delay)) as usize;
        let version = self.version - behind as u64;
        match behind {
            0 => (version, &self.params),
            _ => (version, &self.older[self.older.len() - behind]),
        }
    }

    /// A worker pushes a gradient, or nothing where it leaves the step out; returns how stale it
    /// was.
    ///
    /// # Panics
    /// When it has not read before.
    pub fn push(&mut self, cpu: &Cpu, worker: usize, grads: Option<Parts>) -> u64 {
        let read = self.reads[worker].take().expect("whoever pushes has read");
        let staleness = self.version - read;
        if self.policy.consistency == Consistency::Sync {
            self.arrived[worker] = grads.map_or(Arrival::LeftOut, Arrival::Gradient);
            if self.arrived.iter().all(|arrival| !matches!(arrival, Arrival::Awaited)) {
                let take =
                    |arrival: &mut Arrival| match std::mem::replace(arrival, Arrival::Awaited) {
                        Arrival::Gradient(grads) => Some(grads),
                        Arrival::Awaited | Arrival::LeftOut => None,
                    };
                let all: Vec<_> = self.arrived.iter_mut().map(take).collect();
                // What one leaves out nobody takes.
                let all: Option<Vec<Parts>> = all.into_iter().collect();
                let rule = self.policy.combine;
                self.update(cpu, all.map(|all| join(cpu, rule, all)), 0);
            }
        } else {
            self.update(cpu, grads, staleness);
        }
        staleness
    }

    /// Takes a step by a gradient, if there is one, and counts it.
    fn update(&mut self, cpu: &Cpu, grads: Option<Parts>, staleness: u64) {
        if self.policy.delay > 0 {
            self.older.push_back(self.params.clone());
            if self.older.len() as u64 > self.policy.delay {
                self.older.pop_front();
            }
        }
        let step = match self.policy.consistency {
            Consistency::Sync => self.version,
            Consistency::Async | Consistency::Bounded => self.version / self.num_workers as u64,
        };
        self.version += 1;
        let Some(mut grads) = grads else { return };
        self.num_updates += 1;
        let lr = (self.lr)(step) * self.weight_of(staleness);
        let update = Update { count: self.num_updates, lr, clip: Clip::by(1.0) };
        for (bucket, (params, grads)) in self.params.iter_mut().zip(&mut grads).enumerate() {
            if !params.is_empty() {
                self.optimizer.step_block(cpu, &update, bucket, params, grads);
            }
        }
    }

    /// How much of its length a step by such a gradient has.
    fn weight_of(&self, staleness: u64) -> f64 {
        match self.policy.weight {
            StalenessWeight::None => 1.0,
            StalenessWeight::Inverse => 1.0 / (1.0 + staleness as f64),
            StalenessWeight::Exponential => {
                let exponent = i32::try_from(staleness).unwrap_or(i32::MAX);
                scalar::powi(self.policy.decay, exponent)
            }
        }
    }
}

/// What the gradients of all workers become. Each is a share of the mean over the batch, so a rule
/// that finds the typical one counts as often as there are workers. A server sees its own part of
/// gradients only, and judges by that.
fn join(cpu: &Cpu, rule: Option<Combine>, addends: Vec<Parts>) -> Parts {
    let Some(rule) = rule else { return sum(cpu, addends) };
    let flat: Vec<Vec<f32>> = addends.iter().map(|parts| parts.concat()).collect();
    let vectors: Vec<&[f32]> = flat.iter().map(Vec::as_slice).collect();
    let mut joined = vec![0.0; vectors[0].len()];
    combine(rule, &vectors, &vec![1.0; vectors.len()], &mut joined);
    joined.iter_mut().for_each(|x| *x *= vectors.len() as f32);
    let mut rest = joined.into_iter();
    addends[0].iter().map(|part| rest.by_ref().take(part.len()).collect()).collect()
}

/// Adds up in the order in which leaves are: neighbours first, then neighbours of sums. For as many
/// workers as a power of two, with equal shares, that is the order of the data-parallel run.
fn sum(cpu: &Cpu, mut addends: Vec<Parts>) -> Parts {
    while addends.len() > 1 {
        let mut pairs = addends.into_iter();
        let mut sums = Vec::new();
        while let Some(mut left) = pairs.next() {
            if let Some(right) = pairs.next() {
                for (left, right) in left.iter_mut().zip(&right) {
                    reduce::add_assign(cpu, left, right);
                }
            }
            sums.push(left);
        }
        addends = sums;
    }
    addends.pop().expect("at least one worker")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Recipe, Sources, resolve};
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
        let weight = StalenessWeight::None;
        let policy = Policy { consistency, staleness, weight, decay: 0.9, delay: 0, combine: None };
        Shard::new(policy, num_workers, &[1], Optimizer::new(&recipe.optim, &[slot]), |_| 1.0)
    }

    fn gradient(value: f32) -> Parts {
        vec![vec![value]]
    }

    #[test]
    fn one_update_waits_for_all_workers_in_lockstep() {
        let cpu = Cpu::single(Isa::detect());
        let mut shard = shard(2, Consistency::Sync, 0);
        assert!(shard.may_read(0) && !shard.may_read(1));
        shard.read(0);
        shard.read(1);
        assert_eq!(shard.push(&cpu, 1, Some(gradient(2.0))), 0);
        assert!(!shard.may_read(1), "worker 0 has not pushed");
        assert_eq!(shard.push(&cpu, 0, Some(gradient(1.0))), 0);
        assert!(shard.may_read(1));
        assert_eq!(shard.params_mut()[0], [-3.0]);
        // A step that one of them leaves out nobody takes.
        shard.read(0);
        shard.read(1);
        shard.push(&cpu, 0, Some(gradient(1.0)));
        shard.push(&cpu, 1, None);
        assert_eq!((shard.version(), shard.num_updates(), shard.params_mut()[0][0]), (2, 1, -3.0));
    }

    #[test]
    fn a_liar_among_workers_is_left_out_where_that_is_asked_for() {
        let cpu = Cpu::single(Isa::detect());
        for (combine, expected) in [(None, 7.0), (Some(Combine::Median), -3.0)] {
            let mut shard = shard(3, Consistency::Sync, 0);
            shard.policy.combine = combine;
            (0..3).for_each(|worker| {
                shard.read(worker);
            });
            for (worker, value) in [1.0, -9.0, 1.0].into_iter().enumerate() {
                shard.push(&cpu, worker, Some(gradient(value)));
            }
            assert_eq!(shard.params_mut()[0], [expected], "{combine:?}");
        }
    }

    #[test]
    fn nothing_is_staler_than_the_bound_whoever_is_slow() {
        let cpu = Cpu::single(Isa::detect());
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
                            most = most.max(shard.push(&cpu, worker, Some(gradient(0.0))));
                            has_moved = true;
                        }
                    }
                    if !has_moved {
                        let slow = num_workers - 1;
                        assert!(shard.reads[slow].is_some(), "{bound}: all wait in turn {turn}");
                        most = most.max(shard.push(&cpu, slow, Some(gradient(0.0))));
                    }
                }
                assert!(most <= bound, "{num_workers} workers: {most} of {bound}");
                assert!(num_workers == 1 || most == bound, "{num_workers}: {most} of {bound}");
            }
        }
    }

    #[test]
    fn a_reader_that_is_kept_behind_gets_what_was_then() {
        let cpu = Cpu::single(Isa::detect());
        let mut shard = shard(1, Consistency::Async, 0);
        shard.policy.delay = 2;
        let mut seen = Vec::new();
        for _ in 0..5 {
            let (version, params) = shard.read(0);
            seen.push((version, params[0][0]));
            shard.push(&cpu, 0, Some(gradient(-1.0)));
        }
        assert_eq!(seen, [(0, 0.0), (0, 0.0), (0, 0.0), (1, 1.0), (2, 2.0)]);
    }

    #[test]
    fn stale_gradients_count_for_less() {
        let mut shard = shard(1, Consistency::Async, 0);
        assert_eq!(shard.weight_of(3).to_bits(), 1.0_f64.to_bits());
        shard.policy.weight = StalenessWeight::Inverse;
        assert_eq!(shard.weight_of(3).to_bits(), 0.25_f64.to_bits());
        shard.policy.weight = StalenessWeight::Exponential;
        shard.policy.decay = 0.5;
        assert_eq!(shard.weight_of(3).to_bits(), 0.125_f64.to_bits());
    }
}

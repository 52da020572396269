//! Gradients of several workers as one update: when it is closed, and how they become one.
//!
//! In lockstep an update is closed when all have come. Where it is elastic, it is closed when as
//! many as the quorum have come, or by the clock of whoever serves, with those that have. Gradients
//! are parts of the mean over all workers, so a sum of some is lengthened by how many are missing.
//!
//! A gradient that comes after its update was closed is *late*: it was computed from weights that
//! are no more. It is thrown away, or counted in the update that is open then; it does not help to
//! close that one, since its worker has not come yet.

use super::shard::{Parts, Shard};
use crate::robust::{Combine, combine};
use lockstep_config::{Consistency, Late};
use lockstep_tensor::{Cpu, reduce};

/// What a worker has brought for the next update.
pub(super) enum Arrival {
    /// Nothing yet.
    Awaited,
    /// Its gradient.
    Gradient(Parts),
    /// Its word that it leaves the step out.
    LeftOut,
}

/// An update that is not closed.
pub(super) struct Open {
    /// By worker.
    arrived: Vec<Arrival>,
    /// Gradients of updates that were closed before they came.
    late: Vec<Parts>,
}

impl Open {
    pub(super) fn new(num_workers: usize) -> Self {
        let arrived = (0..num_workers).map(|_| Arrival::Awaited).collect();
        Self { arrived, late: Vec::new() }
    }

    /// How many have come.
    fn num_arrived(&self) -> usize {
        self.arrived.iter().filter(|arrival| !matches!(arrival, Arrival::Awaited)).count()
    }
}

impl Shard {
    /// Whether somebody waits for an update to be closed that not all have come for.
    pub fn is_open(&self) -> bool {
        self.open.num_arrived() > 0
    }

    /// A worker has come. Returns whether what it brought is thrown away.
    pub(super) fn arrive(
        &mut self,
        cpu: &Cpu,
        worker: usize,
        staleness: u64,
        arrival: Arrival,
    ) -> bool {
        let is_elastic = self.policy.consistency == Consistency::Elastic;
        if is_elastic && staleness > self.policy.delay {
            let Arrival::Gradient(grads) = arrival else { return false };
            if self.policy.late == Late::Next {
                self.open.late.push(grads);
            }
            return self.policy.late == Late::Discard;
        }
        self.open.arrived[worker] = arrival;
        let needed = if is_elastic { self.policy.quorum } else { self.num_workers };
        if self.open.num_arrived() >= needed.min(self.num_workers) {
            self.close(cpu);
        }
        false
    }

    /// Closes the update with those who have come.
    pub fn close(&mut self, cpu: &Cpu) {
        let open = std::mem::replace(&mut self.open, Open::new(self.num_workers));
        let is_left_out = open.arrived.iter().any(|arrival| matches!(arrival, Arrival::LeftOut));
        let fresh = open.arrived.into_iter().filter_map(|arrival| match arrival {
            Arrival::Gradient(grads) => Some(grads),
            Arrival::Awaited | Arrival::LeftOut => None,
        });
        let all: Vec<Parts> = fresh.chain(open.late).collect();
        // In lockstep, what one leaves out nobody takes.
        let is_elastic = self.policy.consistency == Consistency::Elastic;
        let is_void = all.is_empty() || (is_left_out && !is_elastic);
        let (num_workers, rule) = (self.num_workers, self.policy.combine);
        let grads = (!is_void).then(|| as_one(cpu, rule, all, num_workers));
        self.update(cpu, grads, self.step_in_lockstep(), 0);
    }
}

/// What gradients of some of so many workers are as one of all of them.
fn as_one(cpu: &Cpu, rule: Combine, all: Vec<Parts>, num_workers: usize) -> Parts {
    if rule != Combine::Mean {
        return robust(rule, &all, num_workers);
    }
    let num_missing = num_workers as f32 / all.len() as f32;
    let is_whole = all.len() == num_workers;
    let mut sum = sum(cpu, all);
    if !is_whole {
        sum.iter_mut().flatten().for_each(|grad| *grad *= num_missing);
    }
    sum
}

/// The same by a rule that bears liars. Rules are about whole vectors, so parts are put together.
fn robust(rule: Combine, all: &[Parts], num_workers: usize) -> Parts {
    let flat: Vec<Vec<f32>> = all.iter().map(|parts| parts.concat()).collect();
    let vectors: Vec<&[f32]> = flat.iter().map(Vec::as_slice).collect();
    let mut out = vec![0.0; vectors[0].len()];
    combine(rule, &vectors, &vec![1.0; vectors.len()], &mut out);
    let mut rest = out.as_slice();
    let take = |part: &Vec<f32>| {
        let (front, behind) = rest.split_at(part.len());
        rest = behind;
        front.iter().map(|grad| grad * num_workers as f32).collect()
    };
    all[0].iter().map(take).collect()
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

//! A pending update: gradients of several workers until the update closes, and their aggregation.
//!
//! A synchronous update closes when all workers have pushed. An elastic one closes when the quorum
//! is reached or the server's deadline has passed. Gradients are addends of the mean over all
//! workers, so a sum of some is scaled up for the missing ones.
//!
//! A gradient that arrives after its update closed is *overdue*: it was computed from superseded
//! weights. It is discarded or added to the next update; it does not count toward the quorum of
//! that one, since its worker has not pushed for it yet.

use super::Parts;
use crate::robust_aggregation::{Aggregator, aggregate};
use lockstep_tensor::{Cpu, reduce};

/// A worker's contribution to the next update.
pub(super) enum Arrival {
    /// None yet.
    Awaited,
    /// A gradient.
    Gradient(PushedGradient),
    /// A skipped step.
    LeftOut,
}

/// A gradient that waits for its update.
pub(super) struct PushedGradient {
    pub(super) worker: usize,
    pub(super) staleness: u64,
    pub(super) parts: Parts,
}

/// An update that has not closed.
pub(super) struct PendingUpdate {
    /// By worker.
    pub(super) arrived: Vec<Arrival>,
    /// Overdue gradients of earlier updates.
    pub(super) overdue: Vec<PushedGradient>,
}

impl PendingUpdate {
    pub(super) fn new(num_workers: usize) -> Self {
        let arrived = (0..num_workers).map(|_| Arrival::Awaited).collect();
        Self { arrived, overdue: Vec::new() }
    }

    /// Number of workers that have contributed.
    pub(super) fn num_arrived(&self) -> usize {
        self.arrived.iter().filter(|arrival| !matches!(arrival, Arrival::Awaited)).count()
    }
}

/// Aggregates the gradients of some workers to one of all.
pub(super) fn as_one(cpu: &Cpu, rule: Aggregator, all: Vec<Parts>, num_workers: usize) -> Parts {
    if rule != Aggregator::Mean {
        return robust(rule, &all, num_workers);
    }
    let num_come = all.len();
    let mut sum = sum(cpu, all);
    if num_come != num_workers {
        let times = num_workers as f32 / num_come as f32;
        sum.iter_mut().flatten().for_each(|grad| *grad *= times);
    }
    sum
}

/// Aggregates by a robust rule. Rules apply to whole vectors, so parts are concatenated.
fn robust(rule: Aggregator, all: &[Parts], num_workers: usize) -> Parts {
    let flat: Vec<Vec<f32>> = all.iter().map(|parts| parts.concat()).collect();
    let vectors: Vec<&[f32]> = flat.iter().map(Vec::as_slice).collect();
    let mut out = vec![0.0; vectors[0].len()];
    aggregate(rule, &vectors, &vec![1.0; vectors.len()], &mut out);
    let mut rest = out.as_slice();
    let take = |part: &Vec<f32>| {
        let (front, behind) = rest.split_at(part.len());
        rest = behind;
        front.iter().map(|grad| grad * num_workers as f32).collect()
    };
    all[0].iter().map(take).collect()
}

/// Sums as the reduction tree does: neighbors first, then neighboring sums. For a power-of-two
/// number of workers with equal shares that is the order of the data-parallel run.
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

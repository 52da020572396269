//! Builder of schedules: an algorithm places steps in *slots* of a common time, and the builder
//! turns them into one program per rank.
//!
//! Slots make two properties easy to prove. A message is written for both ends at once, so every
//! send has its receive, in the same order. All ranks process their messages in slot order, so the
//! earliest pending message always has both ends posted: there is no deadlock, even with channels
//! that buffer nothing. A rank without steps in a slot does not wait for it; slots vanish when the
//! schedule is finished.

use std::collections::BTreeMap;

use crate::algorithm::Algorithm;
use crate::chunks::Chunks;
use crate::contributions::Contributions;
use crate::instruction::{Buffer, Place, Round, Side, Step};
use crate::op::Op;
use crate::schedule::Schedule;
use crate::sum_tree::SumTree;

/// Schedule under construction.
pub(crate) struct Builder {
    /// Steps of each rank, by slot.
    slots: Vec<BTreeMap<usize, Round>>,
    /// Number of signals of each rank.
    num_signals: Vec<usize>,
    /// Scratch slots in use on each rank.
    num_scratch: Vec<usize>,
    contributions: Contributions,
}

impl Builder {
    /// Empty schedule in which each rank contributes one vector.
    pub(crate) fn new(num_ranks: usize) -> Self {
        Self::with_contributions(Contributions::one_each(num_ranks))
    }

    /// Empty schedule with these contributions.
    pub(crate) fn with_contributions(contributions: Contributions) -> Self {
        let num_ranks = contributions.num_ranks();
        Self {
            slots: vec![BTreeMap::new(); num_ranks],
            num_signals: vec![0; num_ranks],
            num_scratch: vec![0; num_ranks],
            contributions,
        }
    }

    /// Adds a message, for both ends.
    pub(crate) fn message(&mut self, slot: usize, chunks: Chunks, from: Place, into: Place) {
        self.send(slot, chunks, from, into.rank);
        let recv = Step::Recv { peer: from.rank, chunks, into: into.buffer };
        self.step(slot, into.rank, recv);
    }

    /// Adds a message that is added to `with` on arrival, with the received operand on side
    /// `received`.
    pub(crate) fn message_sum(
        &mut self,
        slot: usize,
        chunks: Chunks,
        from: Place,
        into: Place,
        with: Buffer,
        received: Side,
    ) {
        self.send(slot, chunks, from, into.rank);
        let Place { rank, buffer: into } = into;
        let recv = Step::RecvReduce { peer: from.rank, chunks, into, with, received };
        self.step(slot, rank, recv);
    }

    /// Adds a copy by `rank`. A copy of a place to itself is omitted.
    pub(crate) fn copy(
        &mut self,
        slot: usize,
        rank: usize,
        chunks: Chunks,
        into: Place,
        from: Place,
    ) {
        if into != from {
            self.step(slot, rank, Step::Copy { chunks, into, from });
        }
    }

    /// Adds a reduction by `rank`. A reduction of one operand is a copy.
    pub(crate) fn reduce(
        &mut self,
        slot: usize,
        rank: usize,
        chunks: Chunks,
        into: Vec<Place>,
        sum: SumTree<Place>,
    ) {
        match sum {
            SumTree::Leaf(from) => {
                for target in into {
                    self.copy(slot, rank, chunks, target, from);
                }
            }
            sum @ SumTree::Sum(..) => {
                self.step(slot, rank, Step::Reduce { chunks, into, sum });
            }
        }
    }

    /// Synchronizes `ranks`: everything they did before this slot is visible to all of them after
    /// it.
    pub(crate) fn sync(&mut self, slot: usize, ranks: &[usize]) {
        for &rank in ranks {
            self.signal_to(slot, rank, ranks);
        }
        for &rank in ranks {
            self.wait(slot, rank, ranks);
        }
    }

    /// `rank` signals that its steps before this slot are done, if other ranks listen.
    pub(crate) fn signal_to(&mut self, slot: usize, rank: usize, listeners: &[usize]) {
        if listeners.iter().any(|&listener| listener != rank) {
            self.num_signals[rank] += 1;
            self.step(slot, rank, Step::Signal);
        }
    }

    /// `rank` waits for the latest signal of all other `ranks`, starting with its neighbour, so
    /// that ranks do not poll the same counter first.
    pub(crate) fn wait(&mut self, slot: usize, rank: usize, ranks: &[usize]) {
        let after = ranks.iter().filter(|&&other| other > rank);
        let before = ranks.iter().filter(|&&other| other < rank);
        for &other in after.chain(before) {
            let count = self.num_signals[other];
            self.step(slot, rank, Step::Wait { rank: other, count });
        }
    }

    /// Allocates a scratch slot of `rank` that begins with chunk `base`.
    pub(crate) fn scratch(&mut self, rank: usize, base: usize) -> Buffer {
        let slot = self.num_scratch[rank];
        self.num_scratch[rank] += 1;
        Buffer::Scratch { slot, base }
    }

    /// Frees all scratch slots.
    pub(crate) fn free_scratch(&mut self) {
        self.num_scratch.fill(0);
    }

    /// Programs without slots.
    pub(crate) fn finish(self, op: Op, algorithm: Algorithm, num_chunks: usize) -> Schedule {
        let programs = self.slots.into_iter().map(|slots| slots.into_values().collect()).collect();
        Schedule { op, algorithm, num_chunks, contributions: self.contributions, programs }
    }

    fn send(&mut self, slot: usize, chunks: Chunks, from: Place, peer: usize) {
        self.step(slot, from.rank, Step::Send { peer, chunks, from: from.buffer });
    }

    fn step(&mut self, slot: usize, rank: usize, step: Step) {
        self.slots[rank].entry(slot).or_default().push(step);
    }
}

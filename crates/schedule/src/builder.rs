//! Writes schedules: an algorithm says what happens in which *slot* of a common time, and the
//! builder turns that into a program for each rank.
//!
//! Slots make two proofs easy. A message is written for both ends at once, so every send has its
//! receive, in the same order. And all ranks take their messages in the order of slots, so the
//! earliest message that is not yet through always has both its ends waiting for it: no deadlock,
//! even if a channel holds nothing. A rank that has nothing to do in a slot does not wait for it;
//! slots vanish when the schedule is finished.

use std::collections::BTreeMap;

use crate::addends::Addends;
use crate::algorithm::Algorithm;
use crate::chunks::Chunks;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::step::{Buffer, Place, Round, Side, Step};
use crate::sum_tree::SumTree;

/// A schedule in the making.
pub(crate) struct Builder {
    /// The steps of each rank by slot.
    slots: Vec<BTreeMap<usize, Round>>,
    /// How often each rank has signalled.
    num_signals: Vec<usize>,
    /// How many pieces of working memory each rank has in use.
    num_scratch: Vec<usize>,
    addends: Addends,
}

impl Builder {
    /// Nobody does anything yet. Each rank brings one vector.
    pub(crate) fn new(num_ranks: usize) -> Self {
        Self::with_addends(Addends::one_each(num_ranks))
    }

    /// Nobody does anything yet. The ranks bring these vectors.
    pub(crate) fn with_addends(addends: Addends) -> Self {
        let num_ranks = addends.num_ranks();
        Self {
            slots: vec![BTreeMap::new(); num_ranks],
            num_signals: vec![0; num_ranks],
            num_scratch: vec![0; num_ranks],
            addends,
        }
    }

    /// A message: both its ends.
    pub(crate) fn message(&mut self, slot: usize, chunks: Chunks, from: Place, into: Place) {
        self.send(slot, chunks, from, into.rank);
        let recv = Step::Recv { peer: from.rank, chunks, into: into.buffer };
        self.step(slot, into.rank, recv);
    }

    /// A message that is added to `with` on arrival, standing on the side `received` of the plus.
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

    /// A copy, made by `rank`. A place is not copied to itself.
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

    /// A sum, made by `rank`. A sum of one addend is a copy.
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

    /// Everything the `ranks` did before this slot is done and visible to all of them after it.
    pub(crate) fn sync(&mut self, slot: usize, ranks: &[usize]) {
        for &rank in ranks {
            self.signal_to(slot, rank, ranks);
        }
        for &rank in ranks {
            self.wait(slot, rank, ranks);
        }
    }

    /// `rank` says that what it did before this slot is done, if there are others to hear it.
    pub(crate) fn signal_to(&mut self, slot: usize, rank: usize, listeners: &[usize]) {
        if listeners.iter().any(|&listener| listener != rank) {
            self.num_signals[rank] += 1;
            self.step(slot, rank, Step::Signal);
        }
    }

    /// `rank` waits for the latest signal of all the others of `ranks`, starting with its
    /// neighbour, so that not everybody looks at the same counter first.
    pub(crate) fn wait(&mut self, slot: usize, rank: usize, ranks: &[usize]) {
        let after = ranks.iter().filter(|&&other| other > rank);
        let before = ranks.iter().filter(|&&other| other < rank);
        for &other in after.chain(before) {
            let count = self.num_signals[other];
            self.step(slot, rank, Step::Wait { rank: other, count });
        }
    }

    /// A piece of working memory of `rank` that is free, to begin with chunk `base`.
    pub(crate) fn scratch(&mut self, rank: usize, base: usize) -> Buffer {
        let slot = self.num_scratch[rank];
        self.num_scratch[rank] += 1;
        Buffer::Scratch { slot, base }
    }

    /// All working memory is free again.
    pub(crate) fn free_scratch(&mut self) {
        self.num_scratch.fill(0);
    }

    /// The programs, without the slots.
    pub(crate) fn finish(self, op: Op, algorithm: Algorithm, num_chunks: usize) -> Schedule {
        let programs = self.slots.into_iter().map(|slots| slots.into_values().collect()).collect();
        Schedule { op, algorithm, num_chunks, addends: self.addends, programs }
    }

    fn send(&mut self, slot: usize, chunks: Chunks, from: Place, peer: usize) {
        self.step(slot, from.rank, Step::Send { peer, chunks, from: from.buffer });
    }

    fn step(&mut self, slot: usize, rank: usize, step: Step) {
        self.slots[rank].entry(slot).or_default().push(step);
    }
}

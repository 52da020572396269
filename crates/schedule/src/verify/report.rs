//! Measures of a proven schedule: the order of its sums, rounds, traffic and scratch memory.
//!
//! Traffic is counted in chunks, because a schedule has no length; a [`Layout`](crate::Layout)
//! converts it to elements.

use std::collections::BTreeSet;

use super::proof::Sums;
use crate::chunks::Chunks;
use crate::contributions::Contribution;
use crate::instruction::{Place, Step};
use crate::layout::Layout;
use crate::schedule::Schedule;
use crate::sum_tree::SumTree;
use crate::timeline::{Hops, simulate};

/// Measures of a proven schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Order of the sum of each chunk of the result, by runs of chunks of equal order. Empty for
    /// operations that only move data.
    pub sums: Vec<(Chunks, SumTree<Contribution>)>,
    /// Whether every sum has the canonical order, so that its bits do not depend on the layout.
    pub canonical: bool,
    /// Whether input and output may be the same memory (where they hold the same chunk).
    pub in_place: bool,
    /// Longest chain of messages and signals: number of latencies on the critical path.
    pub num_rounds: usize,
    /// Traffic of each rank.
    pub ranks: Vec<Traffic>,
}

/// Traffic and work of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Sends, in order.
    pub sent: Vec<Transfer>,
    /// Receives, in order.
    pub received: Vec<Transfer>,
    /// Reads of other ranks' memory.
    pub read: Vec<Transfer>,
    /// Writes to other ranks' memory.
    pub written: Vec<Transfer>,
    /// Local copies.
    pub copied: Vec<Chunks>,
    /// Additions, one entry per plus.
    pub added: Vec<Chunks>,
    /// Number of messages, where all sends to one peer in one round are one message.
    pub num_messages: usize,
    /// Number of signals.
    pub num_signals: usize,
    /// Ranks waited for, in order.
    pub waited: Vec<usize>,
    /// Scratch slots, with the runs of chunks that each holds at some time.
    pub scratch: Vec<Vec<Chunks>>,
}

/// Chunks that move between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Round of the rank's program, counted from 0.
    pub round: usize,
    /// Other rank.
    pub peer: usize,
    /// Chunks that move.
    pub chunks: Chunks,
}

impl Report {
    pub(super) fn new(schedule: &Schedule, sums: Sums, in_place: bool) -> Self {
        let canonical_tree = schedule.contributions.tree();
        let timeline = simulate(schedule, &Hops).expect("a proven schedule comes to its end");
        Self {
            canonical: sums.iter().all(|(_, order)| *order == canonical_tree),
            sums,
            in_place,
            num_rounds: timeline.end as usize,
            ranks: Traffic::of(schedule),
        }
    }
}

impl Traffic {
    /// Traffic of each rank of `schedule`.
    pub fn of(schedule: &Schedule) -> Vec<Self> {
        let scratch = schedule.scratch().into_iter().enumerate();
        scratch.map(|(rank, scratch)| Self::of_rank(schedule, rank, scratch)).collect()
    }

    fn of_rank(schedule: &Schedule, rank: usize, scratch: Vec<Vec<Chunks>>) -> Self {
        let mut traffic = Self { scratch, ..Self::default() };
        let mut messages = BTreeSet::new();
        for (round, steps) in schedule.programs[rank].iter().enumerate() {
            for step in steps {
                if let Step::Send { peer, .. } = step {
                    messages.insert((round, *peer));
                }
                traffic.count(rank, round, step);
            }
        }
        traffic.num_messages = messages.len();
        traffic
    }

    fn count(&mut self, rank: usize, round: usize, step: &Step) {
        let chunks = step.chunks();
        let with = |peer: usize| Transfer { round, peer, chunks };
        match step {
            Step::Send { peer, .. } => self.sent.push(with(*peer)),
            Step::Recv { peer, .. } => self.received.push(with(*peer)),
            Step::RecvReduce { peer, .. } => {
                self.received.push(with(*peer));
                self.added.push(chunks);
            }
            Step::Copy { into, from, .. } if into.rank == rank && from.rank == rank => {
                self.copied.push(chunks);
            }
            Step::Copy { .. } => {}
            Step::Reduce { sum, .. } => {
                self.added.extend(std::iter::repeat_n(chunks, sum.leaves().len() - 1));
            }
            Step::Signal => self.num_signals += 1,
            Step::Wait { rank, .. } => self.waited.push(*rank),
        }
        let elsewhere = |place: &Place| place.rank != rank;
        let transfers = |places: Vec<Place>| {
            places.into_iter().filter(elsewhere).map(move |place| with(place.rank))
        };
        self.read.extend(transfers(step.reads(rank)));
        self.written.extend(transfers(step.writes(rank)));
    }

    /// Number of elements sent.
    pub fn sent_len(&self, layout: &Layout) -> usize {
        total(&self.sent, layout)
    }

    /// Number of elements received.
    pub fn received_len(&self, layout: &Layout) -> usize {
        total(&self.received, layout)
    }

    /// Number of elements read from other ranks' memory.
    pub fn read_len(&self, layout: &Layout) -> usize {
        total(&self.read, layout)
    }

    /// Number of elements written to other ranks' memory.
    pub fn written_len(&self, layout: &Layout) -> usize {
        total(&self.written, layout)
    }

    /// Number of elements of scratch memory.
    pub fn scratch_len(&self, layout: &Layout) -> usize {
        let longest = |runs: &Vec<Chunks>| runs.iter().map(|&run| layout.len(run)).max();
        self.scratch.iter().filter_map(longest).sum()
    }
}

fn total(transfers: &[Transfer], layout: &Layout) -> usize {
    transfers.iter().map(|transfer| layout.len(transfer.chunks)).sum()
}

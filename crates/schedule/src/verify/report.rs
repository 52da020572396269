//! What was found out about a schedule: the order of its sums, and what it costs in rounds, traffic
//! and working memory.
//!
//! Traffic is counted in chunks, because a schedule has no length; a
//! [`Layout`](crate::Layout) turns it into elements.

use std::collections::BTreeSet;

use super::proof::Sums;
use crate::chunks::Chunks;
use crate::contributions::Contribution;
use crate::layout::Layout;
use crate::schedule::Schedule;
use crate::step::{Place, Step};
use crate::sum_tree::SumTree;
use crate::timeline::{Hops, simulate};

/// A proven schedule in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The order in which each chunk of the result is added up, by runs of chunks that have the
    /// same. Empty for operations that only move data.
    pub sums: Vec<(Chunks, SumTree<Contribution>)>,
    /// Whether every sum has the canonical order, so that its bits do not depend on the layout.
    pub canonical: bool,
    /// Whether input and output may be the same memory (where they hold the same chunk).
    pub in_place: bool,
    /// The longest chain of messages and signals: how often latency is paid.
    pub num_rounds: usize,
    /// What each rank does.
    pub ranks: Vec<Traffic>,
}

/// What one rank moves and adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// What it sends, in order.
    pub sent: Vec<Transfer>,
    /// What it receives, in order.
    pub received: Vec<Transfer>,
    /// What it reads from other ranks' memory.
    pub read: Vec<Transfer>,
    /// What it writes into other ranks' memory.
    pub written: Vec<Transfer>,
    /// What it copies within its own memory.
    pub copied: Vec<Chunks>,
    /// What it adds, once for every plus.
    pub added: Vec<Chunks>,
    /// How many messages it sends, where all that goes to one peer in one round is one message.
    pub num_messages: usize,
    /// How often it signals.
    pub num_signals: usize,
    /// For whom it waits, in order.
    pub waited: Vec<usize>,
    /// The slots of its working memory, with the runs of chunks each holds at one time or another.
    pub scratch: Vec<Vec<Chunks>>,
}

/// Chunks that move between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The round of the rank's program, counted from 0.
    pub round: usize,
    /// The other rank.
    pub peer: usize,
    /// What moves.
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
    /// What each rank does in `schedule`.
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

    /// How many elements it sends in all.
    pub fn sent_len(&self, layout: &Layout) -> usize {
        total(&self.sent, layout)
    }

    /// How many elements it receives in all.
    pub fn received_len(&self, layout: &Layout) -> usize {
        total(&self.received, layout)
    }

    /// How many elements it reads from other ranks' memory in all.
    pub fn read_len(&self, layout: &Layout) -> usize {
        total(&self.read, layout)
    }

    /// How many elements it writes into other ranks' memory in all.
    pub fn written_len(&self, layout: &Layout) -> usize {
        total(&self.written, layout)
    }

    /// How many elements its working memory must have room for.
    pub fn scratch_len(&self, layout: &Layout) -> usize {
        let longest = |runs: &Vec<Chunks>| runs.iter().map(|&run| layout.len(run)).max();
        self.scratch.iter().filter_map(longest).sum()
    }
}

fn total(transfers: &[Transfer], layout: &Layout) -> usize {
    transfers.iter().map(|transfer| layout.len(transfer.chunks)).sum()
}

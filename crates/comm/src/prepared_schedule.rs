//! Prepared schedule: one rank's steps of a schedule, with every chunk resolved to bytes.
//!
//! A schedule is made once for an operation and an algorithm; preparing it adds the length of the
//! vector and the element type, and keeps only the steps of this rank. Preparation costs some
//! microseconds, so prepared schedules are cached ([`crate::schedule_cache`]).

use std::collections::BTreeSet;

use lockstep_schedule::{Buffer, Chunks, Layout, Place, Schedule, Side, Step, SumTree};

use crate::element::Dtype;
use crate::kernel::Order;

/// Alignment of scratch slots: a cache line.
const LINE: usize = 64;

/// A range of bytes in a buffer of a group rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) rank: usize,
    pub(crate) area: Area,
    /// Offset in the area.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// Buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    Input(usize),
    Output,
    Scratch,
}

/// An incoming message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) peer: usize,
    pub(crate) into: Piece,
    /// Operand that it is reduced with on arrival, if any, and the order; source 0 is the message,
    /// source 1 the operand.
    pub(crate) with: Option<(Piece, Order)>,
}

/// Steps of a round by kind. Steps of a round do not depend on each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PreparedRound {
    pub(crate) num_signals: u32,
    /// Group ranks and the number of signals to wait for.
    pub(crate) waits: Vec<(usize, u32)>,
    pub(crate) copies: Vec<(Piece, Piece)>,
    pub(crate) reductions: Vec<Reduce>,
    pub(crate) sends: Vec<(usize, Piece)>,
    pub(crate) recvs: Vec<Arrival>,
    /// Traffic of the round.
    pub(crate) traffic: Traffic,
}

/// A reduction in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reduce {
    pub(crate) into: Vec<Piece>,
    pub(crate) sources: Vec<Piece>,
    pub(crate) order: Order,
}

/// Traffic of a rank in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes read from other ranks' memory.
    pub read_bytes: u64,
    /// Bytes written to other ranks' memory.
    pub written_bytes: u64,
}

/// Properties of a schedule for one rank that do not depend on lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent answers to independent questions")]
pub(crate) struct ScheduleFacts {
    /// Whether any rank accesses another's memory.
    pub(crate) uses_memory: bool,
    /// Whether other ranks access this rank's inputs or output.
    pub(crate) shares_input: bool,
    pub(crate) shares_output: bool,
    /// Whether every rank waits for every other, so that none can run two calls ahead.
    pub(crate) is_closed: bool,
    /// Whether this rank waits, and perhaps accesses others' memory, before its first signal.
    pub(crate) waits_first: bool,
    /// Whether every stored sum is complete, so that a mean can be divided at once.
    pub(crate) has_whole_sums: bool,
    /// Number of addends.
    pub(crate) num_contributions: usize,
}

impl ScheduleFacts {
    /// Properties for `group_rank`.
    pub(crate) fn new(schedule: &Schedule, group_rank: usize) -> Self {
        let num_contributions = schedule.contributions.all().len();
        let mut facts = Self {
            uses_memory: schedule.needs_memory(),
            shares_input: false,
            shares_output: false,
            is_closed: false,
            waits_first: false,
            has_whole_sums: true,
            num_contributions,
        };
        let mut waits = BTreeSet::new();
        for (id, step) in schedule.steps() {
            match step {
                Step::RecvReduce { .. } => facts.has_whole_sums = false,
                Step::Reduce { sum, .. } if sum.leaves().len() != num_contributions => {
                    facts.has_whole_sums = false;
                }
                Step::Wait { rank, .. } => {
                    waits.insert((id.rank, *rank));
                }
                _ => {}
            }
            if id.rank != group_rank && facts.uses_memory {
                for place in step.reads(id.rank).into_iter().chain(step.writes(id.rank)) {
                    let is_mine = place.rank == group_rank;
                    facts.shares_input |= is_mine && matches!(place.buffer, Buffer::Input(_));
                    facts.shares_output |= is_mine && place.buffer == Buffer::Output;
                }
            }
        }
        let first = schedule.programs[group_rank].first();
        facts.waits_first =
            facts.uses_memory && !first.is_some_and(|round| round.contains(&Step::Signal));
        let num_ranks = schedule.num_ranks();
        facts.is_closed = waits.len() == num_ranks * (num_ranks - 1);
        facts
    }
}

/// Prepared schedule of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedSchedule {
    pub(crate) facts: ScheduleFacts,
    pub(crate) rounds: Vec<PreparedRound>,
    /// Number of inputs of this rank, and the size of each.
    pub(crate) num_inputs: usize,
    pub(crate) input_bytes: usize,
    pub(crate) output_bytes: usize,
    pub(crate) scratch_bytes: usize,
    /// Most bytes of messages that a round reduces on arrival.
    pub(crate) incoming_bytes: usize,
    /// Number of signals of this rank.
    pub(crate) num_signals: u32,
    pub(crate) traffic: Traffic,
}

impl PreparedSchedule {
    /// Prepares the steps of `group_rank`.
    pub(crate) fn new(
        schedule: &Schedule,
        facts: &ScheduleFacts,
        layout: &Layout,
        dtype: Dtype,
        group_rank: usize,
    ) -> Self {
        let compiler = Compiler::new(schedule, layout, dtype);
        let rounds: Vec<PreparedRound> = schedule.programs[group_rank]
            .iter()
            .map(|steps| compiler.round(group_rank, steps))
            .collect();
        let incoming = |round: &PreparedRound| {
            let combined = round.recvs.iter().filter(|arrival| arrival.with.is_some());
            combined.map(|arrival| arrival.into.bytes.next_multiple_of(LINE)).sum()
        };
        let mut prepared = Self {
            facts: *facts,
            num_inputs: schedule.contributions.num_inputs(group_rank),
            input_bytes: layout.input_len(group_rank) * dtype.bytes(),
            output_bytes: layout.output_len(group_rank) * dtype.bytes(),
            scratch_bytes: compiler.scratch[group_rank].last().copied().unwrap_or(0),
            incoming_bytes: rounds.iter().map(incoming).max().unwrap_or(0),
            num_signals: rounds.iter().map(|round| round.num_signals).sum(),
            traffic: Traffic::default(),
            rounds,
        };
        prepared.rounds.iter().for_each(|round| prepared.traffic.add(&round.traffic));
        prepared
    }
}

impl PreparedRound {
    fn count(&self, group_rank: usize) -> Traffic {
        // All that goes to one peer in one round is one message.
        let peers: BTreeSet<usize> = self.sends.iter().map(|(peer, _)| *peer).collect();
        let is_remote = |piece: &&Piece| piece.rank != group_rank;
        let copied_from = self.copies.iter().map(|(_, from)| from);
        let added = self.reductions.iter().flat_map(|reduce| &reduce.sources);
        let copied_to = self.copies.iter().map(|(into, _)| into);
        let stored = self.reductions.iter().flat_map(|reduce| &reduce.into);
        Traffic {
            messages: peers.len() as u64,
            sent_bytes: total(self.sends.iter().map(|(_, piece)| piece)),
            received_bytes: total(self.recvs.iter().map(|arrival| &arrival.into)),
            read_bytes: total(copied_from.chain(added).filter(is_remote)),
            written_bytes: total(copied_to.chain(stored).filter(is_remote)),
        }
    }
}

fn total<'a>(pieces: impl Iterator<Item = &'a Piece>) -> u64 {
    pieces.map(|piece| piece.bytes as u64).sum()
}

struct Compiler<'a> {
    layout: &'a Layout,
    element_bytes: usize,
    /// Offsets of the scratch slots of each rank, and the end of the last.
    scratch: Vec<Vec<usize>>,
}

impl<'a> Compiler<'a> {
    fn new(schedule: &'a Schedule, layout: &'a Layout, dtype: Dtype) -> Self {
        let starts = |lens: Vec<usize>| {
            let mut starts = vec![0];
            for len in lens {
                let bytes = (len * dtype.bytes()).next_multiple_of(LINE);
                starts.push(starts[starts.len() - 1] + bytes);
            }
            starts
        };
        let scratch = layout.scratch_lens(schedule).into_iter().map(starts).collect();
        Self { layout, element_bytes: dtype.bytes(), scratch }
    }

    fn round(&self, group_rank: usize, steps: &[Step]) -> PreparedRound {
        let mut round = PreparedRound::default();
        for step in steps {
            self.add(group_rank, step, &mut round);
        }
        round.traffic = round.count(group_rank);
        round
    }

    fn add(&self, group_rank: usize, step: &Step, round: &mut PreparedRound) {
        let own = |buffer: Buffer, chunks| self.piece(buffer.on(group_rank), chunks);
        match step {
            Step::Send { peer, chunks, from } => round.sends.push((*peer, own(*from, *chunks))),
            Step::Recv { peer, chunks, into } => {
                let into = own(*into, *chunks);
                round.recvs.push(Arrival { peer: *peer, into, with: None });
            }
            Step::RecvReduce { peer, chunks, into, with, received } => {
                let (arrived, other) = (SumTree::Leaf(0), SumTree::Leaf(1));
                let order = Order::new(match received {
                    Side::Left => SumTree::sum(arrived, other),
                    Side::Right => SumTree::sum(other, arrived),
                });
                let with = Some((own(*with, *chunks), order));
                round.recvs.push(Arrival { peer: *peer, into: own(*into, *chunks), with });
            }
            Step::Copy { chunks, into, from } => {
                round.copies.push((self.piece(*into, *chunks), self.piece(*from, *chunks)));
            }
            Step::Reduce { chunks, into, sum } => {
                let into = into.iter().map(|place| self.piece(*place, *chunks)).collect();
                let leaves = sum.leaves();
                let sources = leaves.iter().map(|place| self.piece(**place, *chunks)).collect();
                let mut number = 0..;
                let order = sum.map(&mut |_| number.next().expect("numbers do not end"));
                round.reductions.push(Reduce { into, sources, order: Order::new(order) });
            }
            Step::Signal => round.num_signals += 1,
            Step::Wait { rank, count } => round.waits.push((*rank, *count as u32)),
        }
    }

    fn piece(&self, place: Place, chunks: Chunks) -> Piece {
        let range = self.layout.range(place.rank, place.buffer, chunks);
        let start = range.start * self.element_bytes;
        let bytes = range.len() * self.element_bytes;
        let (area, start) = match place.buffer {
            Buffer::Input(index) => (Area::Input(index), start),
            Buffer::Output => (Area::Output, start),
            Buffer::Scratch { slot, .. } => (Area::Scratch, self.scratch[place.rank][slot] + start),
        };
        Piece { rank: place.rank, area, start, bytes }
    }
}

//! A schedule made ready to run: one rank's steps with every chunk turned into bytes.
//!
//! A schedule is made once for an operation and an algorithm; a plan adds the length of the vector
//! and the type of its elements, and keeps only what this rank does. Making a plan costs some
//! microseconds, so the engine keeps the ones it used.

use std::collections::BTreeSet;

use lockstep_schedule::{Buffer, Chunks, Layout, Place, Schedule, Side, Step, SumTree};

use crate::element::Dtype;
use crate::kernel::Order;

/// Scratch slots start at cache lines.
const LINE: usize = 64;

/// A run of bytes in somebody's buffer. Members are positions in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) member: usize,
    pub(crate) area: Area,
    /// Where it begins in the area.
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

/// Which of a rank's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    Input(usize),
    Output,
    Scratch,
}

/// A message that arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) peer: usize,
    pub(crate) into: Piece,
    /// What it is combined with on arrival, if anything, and in which order; source 0 is what
    /// arrived, source 1 the other operand.
    pub(crate) with: Option<(Piece, Order)>,
}

/// What happens in a round, by kind. Steps of a round do not depend on each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PlanRound {
    pub(crate) num_signals: u32,
    /// Members and the number of signals to wait for.
    pub(crate) waits: Vec<(usize, u32)>,
    pub(crate) copies: Vec<(Piece, Piece)>,
    pub(crate) reductions: Vec<Reduce>,
    pub(crate) sends: Vec<(usize, Piece)>,
    pub(crate) recvs: Vec<Arrival>,
    /// What all of that moves.
    pub(crate) traffic: Traffic,
}

/// A reduction in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reduce {
    pub(crate) into: Vec<Piece>,
    pub(crate) sources: Vec<Piece>,
    pub(crate) order: Order,
}

/// What a rank moves in one call.
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

/// What one rank must know about a schedule as a whole, found out once for all lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent answers to independent questions")]
pub(crate) struct Facts {
    /// Whether any rank looks into another's memory.
    pub(crate) uses_memory: bool,
    /// Whether other ranks touch this rank's inputs or output.
    pub(crate) shares_input: bool,
    pub(crate) shares_output: bool,
    /// Whether every rank waits for every other, so that none can run two calls ahead.
    pub(crate) is_closed: bool,
    /// Whether every sum is complete when it is stored, so that a mean can be made on the way.
    pub(crate) has_whole_sums: bool,
    /// How many vectors are added up.
    pub(crate) num_addends: usize,
}

impl Facts {
    /// What the member at `position` must know.
    pub(crate) fn new(schedule: &Schedule, position: usize) -> Self {
        let num_addends = schedule.addends.all().len();
        let mut facts = Self {
            uses_memory: schedule.needs_memory(),
            shares_input: false,
            shares_output: false,
            is_closed: false,
            has_whole_sums: true,
            num_addends,
        };
        let mut waited = BTreeSet::new();
        for (id, step) in schedule.steps() {
            match step {
                Step::RecvReduce { .. } => facts.has_whole_sums = false,
                Step::Reduce { sum, .. } if sum.leaves().len() != num_addends => {
                    facts.has_whole_sums = false;
                }
                Step::Wait { rank, .. } => {
                    waited.insert((id.rank, *rank));
                }
                _ => {}
            }
            if id.rank != position && facts.uses_memory {
                for place in step.reads(id.rank).into_iter().chain(step.writes(id.rank)) {
                    let is_mine = place.rank == position;
                    facts.shares_input |= is_mine && matches!(place.buffer, Buffer::Input(_));
                    facts.shares_output |= is_mine && place.buffer == Buffer::Output;
                }
            }
        }
        let num_ranks = schedule.num_ranks();
        facts.is_closed = waited.len() == num_ranks * (num_ranks - 1);
        facts
    }
}

/// One rank's part of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) facts: Facts,
    pub(crate) rounds: Vec<PlanRound>,
    /// How many inputs this rank brings, and how long each is.
    pub(crate) num_inputs: usize,
    pub(crate) input_bytes: usize,
    pub(crate) output_bytes: usize,
    pub(crate) scratch_bytes: usize,
    /// Bytes of messages that are combined on arrival, in the round with the most.
    pub(crate) incoming_bytes: usize,
    /// How often this rank signals.
    pub(crate) num_signals: u32,
    pub(crate) traffic: Traffic,
}

impl Plan {
    /// The part of the member at `position`.
    pub(crate) fn new(
        schedule: &Schedule,
        facts: &Facts,
        layout: &Layout,
        dtype: Dtype,
        position: usize,
    ) -> Self {
        let compiler = Compiler::new(schedule, layout, dtype);
        let rounds: Vec<PlanRound> = schedule.programs[position]
            .iter()
            .map(|steps| compiler.round(position, steps))
            .collect();
        let incoming = |round: &PlanRound| {
            let combined = round.recvs.iter().filter(|arrival| arrival.with.is_some());
            combined.map(|arrival| arrival.into.bytes.next_multiple_of(LINE)).sum()
        };
        let mut plan = Self {
            facts: *facts,
            num_inputs: schedule.addends.num_inputs(position),
            input_bytes: layout.input_len(position) * dtype.bytes(),
            output_bytes: layout.output_len(position) * dtype.bytes(),
            scratch_bytes: compiler.scratch[position].last().copied().unwrap_or(0),
            incoming_bytes: rounds.iter().map(incoming).max().unwrap_or(0),
            num_signals: rounds.iter().map(|round| round.num_signals).sum(),
            traffic: Traffic::default(),
            rounds,
        };
        plan.rounds.iter().for_each(|round| plan.traffic.add(&round.traffic));
        plan
    }
}

impl PlanRound {
    fn count(&self, position: usize) -> Traffic {
        // All that goes to one peer in one round is one message.
        let peers: BTreeSet<usize> = self.sends.iter().map(|(peer, _)| *peer).collect();
        let elsewhere = |piece: &&Piece| piece.member != position;
        let copied_from = self.copies.iter().map(|(_, from)| from);
        let added = self.reductions.iter().flat_map(|reduce| &reduce.sources);
        let copied_to = self.copies.iter().map(|(into, _)| into);
        let stored = self.reductions.iter().flat_map(|reduce| &reduce.into);
        Traffic {
            messages: peers.len() as u64,
            sent_bytes: total(self.sends.iter().map(|(_, piece)| piece)),
            received_bytes: total(self.recvs.iter().map(|arrival| &arrival.into)),
            read_bytes: total(copied_from.chain(added).filter(elsewhere)),
            written_bytes: total(copied_to.chain(stored).filter(elsewhere)),
        }
    }
}

fn total<'a>(pieces: impl Iterator<Item = &'a Piece>) -> u64 {
    pieces.map(|piece| piece.bytes as u64).sum()
}

struct Compiler<'a> {
    layout: &'a Layout,
    element_bytes: usize,
    /// Where each scratch slot of each rank begins, and where the last ends.
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

    fn round(&self, position: usize, steps: &[Step]) -> PlanRound {
        let mut round = PlanRound::default();
        for step in steps {
            self.add(position, step, &mut round);
        }
        round.traffic = round.count(position);
        round
    }

    fn add(&self, position: usize, step: &Step, round: &mut PlanRound) {
        let own = |buffer: Buffer, chunks| self.piece(buffer.on(position), chunks);
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
        Piece { member: place.rank, area, start, bytes }
    }
}

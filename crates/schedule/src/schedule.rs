//! A schedule: an operation, carried out by a program for each rank, as plain data.

use std::collections::BTreeMap;

use crate::addends::Addends;
use crate::algorithm::Algorithm;
use crate::chunks::Chunks;
use crate::op::{Holding, Op};
use crate::step::{Buffer, Program, Round, Step};

/// Who sends, receives, adds and copies what, in which order.
///
/// It says nothing about the length of the vector or the type of its elements (see
/// [`Layout`](crate::Layout) for that), so it can be made once and used for every size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// What it computes.
    pub op: Op,
    /// How.
    pub algorithm: Algorithm,
    /// Into how many chunks the vector is cut.
    pub num_chunks: usize,
    /// What the ranks add up; one vector each for operations that only move data.
    pub addends: Addends,
    /// What each rank does.
    pub programs: Vec<Program>,
}

/// A round of a rank's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoundId {
    /// Whose.
    pub rank: usize,
    /// Which, counted from 0.
    pub round: usize,
}

/// A step of a rank's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId {
    /// Whose.
    pub rank: usize,
    /// In which round, counted from 0.
    pub round: usize,
    /// Which in that round, counted from 0.
    pub step: usize,
}

impl Schedule {
    /// How many ranks take part.
    pub fn num_ranks(&self) -> usize {
        self.programs.len()
    }

    /// The steps of one round.
    pub fn round(&self, id: RoundId) -> &Round {
        &self.programs[id.rank][id.round]
    }

    /// Every step of every rank, with its address.
    pub fn steps(&self) -> impl Iterator<Item = (StepId, &Step)> {
        self.programs.iter().enumerate().flat_map(|(rank, program)| {
            program.iter().enumerate().flat_map(move |(round, steps)| {
                let id = move |step| StepId { rank, round, step };
                steps.iter().enumerate().map(move |(step, what)| (id(step), what))
            })
        })
    }

    /// The chunks of `rank`'s inputs.
    pub fn input(&self, rank: usize) -> Holding {
        self.op.input(rank, self.num_ranks(), self.num_chunks)
    }

    /// The chunks of `rank`'s output.
    pub fn output(&self, rank: usize) -> Holding {
        self.op.output(rank, self.num_ranks(), self.num_chunks)
    }

    /// Whether ranks send messages.
    pub fn needs_messages(&self) -> bool {
        self.steps().any(|(_, step)| step.is_message())
    }

    /// Whether ranks look into each other's memory.
    pub fn needs_memory(&self) -> bool {
        self.memory_pairs().next().is_some()
    }

    /// Who looks into whose memory, counters included, as often as it happens.
    pub fn memory_pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.steps().flat_map(|(id, step)| {
            let others = step.memory_ranks(id.rank);
            others.into_iter().map(move |other| (id.rank, other))
        })
    }

    /// The pieces of working memory that the ranks need: for each rank and slot the runs of chunks
    /// that it holds at one time or another, each beginning at its `base`.
    pub fn scratch(&self) -> Vec<Vec<Vec<Chunks>>> {
        let mut ends: Vec<BTreeMap<(usize, usize), usize>> =
            vec![BTreeMap::new(); self.num_ranks()];
        for (id, step) in self.steps() {
            for place in step.reads(id.rank).into_iter().chain(step.writes(id.rank)) {
                if let Buffer::Scratch { slot, base } = place.buffer {
                    let end = ends[place.rank].entry((slot, base)).or_insert(base);
                    *end = step.chunks().end.max(*end);
                }
            }
        }
        let slots = |ends: BTreeMap<(usize, usize), usize>| {
            let num_slots = ends.keys().next_back().map_or(0, |(last, _)| last + 1);
            let mut slots = vec![Vec::new(); num_slots];
            for ((slot, start), end) in ends {
                slots[slot].push(Chunks { start, end });
            }
            slots
        };
        ends.into_iter().map(slots).collect()
    }
}

//! Schedule of a collective: an operation as one program per rank, as plain data.

use std::collections::BTreeMap;

use crate::algorithm::Algorithm;
use crate::chunks::Chunks;
use crate::contributions::Contributions;
use crate::instruction::{Buffer, Program, Round, Step};
use crate::op::{Op, StridedChunks};

/// Programs of a collective: the sends, receives, reductions and copies of every rank, in order.
///
/// A schedule is independent of the length of the vector and the type of its elements
/// ([`Layout`](crate::Layout) adds the length), so it is built once and used for every size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Operation.
    pub op: Op,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Number of chunks of the vector.
    pub num_chunks: usize,
    /// Contributions to the sum; one vector per rank for operations that only move data.
    pub contributions: Contributions,
    /// Program of each rank.
    pub programs: Vec<Program>,
}

/// Round of a rank's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoundId {
    /// Rank.
    pub rank: usize,
    /// Index of the round.
    pub round: usize,
}

/// Step of a rank's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId {
    /// Rank.
    pub rank: usize,
    /// Index of the round.
    pub round: usize,
    /// Index of the step in the round.
    pub step: usize,
}

impl Schedule {
    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.programs.len()
    }

    /// Steps of one round.
    pub fn round(&self, id: RoundId) -> &Round {
        &self.programs[id.rank][id.round]
    }

    /// All steps of all ranks, with their ids.
    pub fn steps(&self) -> impl Iterator<Item = (StepId, &Step)> {
        self.programs.iter().enumerate().flat_map(|(rank, program)| {
            program.iter().enumerate().flat_map(move |(round, steps)| {
                let id = move |step| StepId { rank, round, step };
                steps.iter().enumerate().map(move |(step, what)| (id(step), what))
            })
        })
    }

    /// Chunks of `rank`'s inputs.
    pub fn input(&self, rank: usize) -> StridedChunks {
        self.op.input(rank, self.num_ranks(), self.num_chunks)
    }

    /// Chunks of `rank`'s output.
    pub fn output(&self, rank: usize) -> StridedChunks {
        self.op.output(rank, self.num_ranks(), self.num_chunks)
    }

    /// Whether any rank sends messages.
    pub fn needs_messages(&self) -> bool {
        self.steps().any(|(_, step)| step.is_message())
    }

    /// Whether any rank accesses another rank's memory.
    pub fn needs_memory(&self) -> bool {
        self.memory_pairs().next().is_some()
    }

    /// Pairs of accessing rank and owner of the memory, counters included, once per access.
    pub fn memory_pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.steps().flat_map(|(id, step)| {
            let others = step.memory_ranks(id.rank);
            others.into_iter().map(move |other| (id.rank, other))
        })
    }

    /// Scratch slots of each rank, with the runs of chunks that each holds at some time; a slot
    /// begins at its `base`.
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

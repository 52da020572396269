//! Mutations of schedules, for tests of the verifier.
//!
//! Each mutation changes one small thing in one rank's program, as a bug would: a step is dropped,
//! a peer or a chunk is off by one, two rounds are swapped or merged, the sides of a sum are
//! swapped. [`verify`](crate::verify) must reject the result, or its report must show the
//! difference.

use crate::chunks::Chunks;
use crate::instruction::{Buffer, Side, Step};
use crate::schedule::{RoundId, Schedule, StepId};
use crate::sum_tree::SumTree;

/// One small change of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Drops a step.
    Drop(StepId),
    /// Swaps a round with the next.
    SwapRounds(RoundId),
    /// Merges a round with the next.
    JoinRounds(RoundId),
    /// Sends a message, copy or wait to the next rank.
    OtherPeer(StepId),
    /// Shifts a step to the next chunk, cyclically.
    OtherChunk(StepId),
    /// Removes one chunk from a step.
    FewerChunks(StepId),
    /// Reads the input instead of a partial sum, or the other way round.
    OtherSource(StepId),
    /// Swaps the operands of a sum.
    OtherSides(StepId),
}

/// All mutations of a schedule.
pub fn mutations(schedule: &Schedule) -> Vec<Mutation> {
    let of_step = schedule.steps().flat_map(|(id, _)| {
        [
            Mutation::Drop(id),
            Mutation::OtherPeer(id),
            Mutation::OtherChunk(id),
            Mutation::FewerChunks(id),
            Mutation::OtherSource(id),
            Mutation::OtherSides(id),
        ]
    });
    let of_rank = |(rank, program): (usize, &crate::Program)| {
        (1..program.len()).flat_map(move |next| {
            let id = RoundId { rank, round: next - 1 };
            [Mutation::SwapRounds(id), Mutation::JoinRounds(id)]
        })
    };
    of_step.chain(schedule.programs.iter().enumerate().flat_map(of_rank)).collect()
}

impl Mutation {
    /// Schedule with this change; `None` if the change has no effect.
    pub fn apply(self, schedule: &Schedule) -> Option<Schedule> {
        let mut mutant = schedule.clone();
        match self {
            Self::Drop(id) => {
                mutant.programs[id.rank][id.round].remove(id.step);
            }
            Self::SwapRounds(RoundId { rank, round }) => {
                mutant.programs[rank].swap(round, round + 1);
            }
            Self::JoinRounds(RoundId { rank, round }) => {
                let next = mutant.programs[rank].remove(round + 1);
                mutant.programs[rank][round].extend(next);
            }
            Self::OtherPeer(id) => {
                let num_ranks = schedule.num_ranks();
                *peer(step(&mut mutant, id))? += 1;
                *peer(step(&mut mutant, id))? %= num_ranks;
            }
            Self::OtherChunk(id) => {
                let num_chunks = schedule.num_chunks;
                let chunks = chunks(step(&mut mutant, id))?;
                let start = if chunks.end == num_chunks { 0 } else { chunks.start + 1 };
                *chunks = Chunks { start, end: start + chunks.len() };
            }
            Self::FewerChunks(id) => {
                let chunks = chunks(step(&mut mutant, id))?;
                chunks.end = chunks.end.checked_sub(1).filter(|end| chunks.start <= *end)?;
            }
            Self::OtherSource(id) => {
                let source = source(step(&mut mutant, id))?;
                *source = match *source {
                    Buffer::Input(_) => Buffer::Output,
                    Buffer::Output | Buffer::Scratch { .. } => Buffer::INPUT,
                };
            }
            Self::OtherSides(id) => swap_sides(step(&mut mutant, id))?,
        }
        (mutant != *schedule).then_some(mutant)
    }
}

fn step(schedule: &mut Schedule, id: StepId) -> &mut Step {
    &mut schedule.programs[id.rank][id.round][id.step]
}

/// Peer of a step.
fn peer(step: &mut Step) -> Option<&mut usize> {
    match step {
        Step::Send { peer, .. } | Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => {
            Some(peer)
        }
        Step::Copy { from, .. } => Some(&mut from.rank),
        Step::Wait { rank, .. } => Some(rank),
        Step::Reduce { .. } | Step::Signal => None,
    }
}

fn chunks(step: &mut Step) -> Option<&mut Chunks> {
    match step {
        Step::Send { chunks, .. }
        | Step::Recv { chunks, .. }
        | Step::RecvReduce { chunks, .. }
        | Step::Copy { chunks, .. }
        | Step::Reduce { chunks, .. } => Some(chunks),
        Step::Signal | Step::Wait { .. } => None,
    }
}

/// Source buffer of a step.
fn source(step: &mut Step) -> Option<&mut Buffer> {
    match step {
        Step::Send { from, .. } => Some(from),
        Step::RecvReduce { with, .. } => Some(with),
        Step::Copy { from, .. } => Some(&mut from.buffer),
        Step::Recv { .. } | Step::Reduce { .. } | Step::Signal | Step::Wait { .. } => None,
    }
}

fn swap_sides(step: &mut Step) -> Option<()> {
    match step {
        Step::RecvReduce { received, .. } => {
            *received = match received {
                Side::Left => Side::Right,
                Side::Right => Side::Left,
            };
            Some(())
        }
        Step::Reduce { sum: SumTree::Sum(left, right), .. } => {
            std::mem::swap(left, right);
            Some(())
        }
        _ => None,
    }
}

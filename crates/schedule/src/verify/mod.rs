//! Proof of a schedule by symbolic execution, all ranks together.
//!
//! Instead of numbers the inputs hold names (contribution of rank 2), and a sum holds the tree of
//! its additions. One run therefore proves the schedule for every length, type and value:
//!
//! - every send matches its receive, with the same chunks, and nothing is left over;
//! - it cannot deadlock, even with channels that buffer nothing (see the `walk` module);
//! - every rank's output is right, each contribution counted once;
//! - the *order* of every sum is known, and is the same on all ranks that get it;
//! - nothing is read before it is written, and there are no races: each access *happens after* the
//!   ones it conflicts with, by the rounds of a rank, by messages, and by signals that were waited
//!   for;
//! - when a rank is done, no other rank uses its buffers.
//!
//! The [`Report`] counts rounds, traffic and scratch memory.
//!
//! # Layout
//! - `shape`: checks that need no execution
//! - `symbol`: sums as trees, each stored once
//! - `memory`: symbolic memory with a race detector
//! - `proof`: the symbolic execution
//! - `report`: measures of a proven schedule

mod memory;
mod proof;
mod report;
mod shape;
mod symbol;

pub use report::{Report, Traffic, Transfer};

use crate::chunks::Chunks;
use crate::contributions::Contribution;
use crate::instruction::{Buffer, Place};
use crate::op::Op;
use crate::schedule::{Schedule, StepId};
use crate::sum_tree::SumTree;
use memory::Storage;

/// Proves that `schedule` implements its operation, for every length and type, or returns the first
/// defect.
pub fn verify(schedule: &Schedule) -> Result<Report, VerifyError> {
    shape::check(schedule)?;
    let sums = proof::run(schedule, Storage::Apart)?;
    let in_place =
        proof::run(schedule, Storage::InPlace).is_ok_and(|in_place_sums| in_place_sums == sums);
    Ok(Report::new(schedule, sums, in_place))
}

/// Defect of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A step that is invalid by itself.
    #[error("{at}: {what}")]
    Malformed {
        /// Step.
        at: StepId,
        /// Defect of the step.
        what: Malformed,
    },
    /// The number of programs is not the number of ranks.
    #[error("there are {programs} programs for {ranks} ranks")]
    WrongSize {
        /// Number of programs.
        programs: usize,
        /// Number of ranks of the contributions.
        ranks: usize,
    },
    /// The number of chunks does not suit the operation.
    #[error("{num_chunks} chunks do not suit {op} over {ranks} ranks")]
    WrongCut {
        /// Operation.
        op: Op,
        /// Number of ranks.
        ranks: usize,
        /// Number of chunks.
        num_chunks: usize,
    },
    /// Deadlock.
    #[error("{at} never completes: {step}")]
    Stuck {
        /// First step, by rank, that cannot complete.
        at: StepId,
        /// Text of the step.
        step: String,
    },
    /// A send matches a receive of other chunks.
    #[error("{send} sends {sent}, but {recv} expects {expected}")]
    Mismatch {
        /// Sending step.
        send: StepId,
        /// Chunks that are sent.
        sent: Chunks,
        /// Receiving step.
        recv: StepId,
        /// Chunks that are expected.
        expected: Chunks,
    },
    /// Memory is read before it is written.
    #[error("{at} reads chunk {chunk} of {place}, which holds nothing")]
    Unwritten {
        /// Reading step.
        at: StepId,
        /// Place that is read.
        place: Place,
        /// Chunk of the place.
        chunk: usize,
    },
    /// Two ranks, or two steps of a round, use the same memory at the same time.
    #[error("{at} {access} chunk {chunk} of {place} while rank {other} may still be using it")]
    Race {
        /// Step that comes too early.
        at: StepId,
        /// Whether it `reads` or `writes`.
        access: &'static str,
        /// Place.
        place: Place,
        /// Chunk of the place.
        chunk: usize,
        /// Rank that uses it.
        other: usize,
    },
    /// A rank is done while another still uses its memory.
    #[error("rank {rank} ends while rank {other} may still be using chunk {chunk} of its {buffer}")]
    LeftTooEarly {
        /// Rank that ends.
        rank: usize,
        /// Buffer that is still used.
        buffer: Buffer,
        /// Chunk of the buffer.
        chunk: usize,
        /// Rank that uses it.
        other: usize,
    },
    /// A result is wrong.
    #[error("rank {rank} ends with {found} in chunk {chunk}, not {expected}")]
    WrongResult {
        /// Rank of the output.
        rank: usize,
        /// Chunk of the output.
        chunk: usize,
        /// Value that it holds.
        found: String,
        /// Expected value.
        expected: String,
    },
    /// Two ranks have sums of the same contributions in different orders, which differ in bits.
    #[error("chunk {chunk} is {first} on one rank, but {second} on rank {rank}")]
    OrdersDiffer {
        /// Chunk.
        chunk: usize,
        /// Order on the first rank that has it.
        first: Box<SumTree<Contribution>>,
        /// Other rank.
        rank: usize,
        /// Order on that rank.
        second: Box<SumTree<Contribution>>,
    },
    /// A rank leaves a barrier that another may not have entered.
    #[error("rank {rank} leaves the barrier before rank {missing} has entered it")]
    NotABarrier {
        /// Rank that leaves.
        rank: usize,
        /// Rank that may not have entered.
        missing: usize,
    },
}

/// Defect of a single step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A rank that does not exist.
    #[error("there is no rank {0}")]
    NoSuchRank(usize),
    /// A rank that is its own peer.
    #[error("a rank needs no message or signal from itself")]
    OwnPeer,
    /// Chunks beyond the end.
    #[error("there are no chunks {0}")]
    NoSuchChunks(Chunks),
    /// Chunks that the buffer does not hold contiguously.
    #[error("{} does not hold chunks {} one after the other", .0, .1)]
    NotHeld(Place, Chunks),
    /// A write to an input.
    #[error("an input is written to")]
    WritesInput,
    /// A sum without target, or a wait for nothing.
    #[error("the step does nothing")]
    DoesNothing,
}

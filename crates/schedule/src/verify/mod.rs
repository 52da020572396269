//! Proves a schedule by running it on symbols, all ranks together.
//!
//! Instead of numbers the inputs hold names ("what rank 2 brought"), and a sum holds the tree of
//! its additions. So one run proves the schedule for every length, type and value:
//!
//! - every send meets its receive, with the same chunks, and nothing is left over;
//! - it cannot deadlock, even with channels that hold nothing (see the `walk` module);
//! - every rank's output is right, each contribution counted once;
//! - the *order* of every sum is known, and is the same on all ranks that get it;
//! - nothing is read before it is written, and nobody touches memory that another rank, or another
//!   step of the same round, may be using: each access must *happen after* the ones it conflicts
//!   with, by the rounds of a rank, by messages, and by signals that were waited for;
//! - when a rank is done, its buffers are its own again.
//!
//! What remains is counted in the [`Report`]: rounds, traffic, working memory.
//!
//! # Layout
//! - `shape`: what can be seen without running: numbers in range, buffers that hold their chunks
//! - `symbol`: sums as trees, each stored once
//! - `memory`: what every chunk of every buffer holds, and who touched it when
//! - `proof`: the run
//! - `report`: what was found

mod memory;
mod proof;
mod report;
mod shape;
mod symbol;

pub use report::{Report, Traffic, Transfer};

use crate::chunks::Chunks;
use crate::contributions::Contribution;
use crate::op::Op;
use crate::schedule::{Schedule, StepId};
use crate::step::{Buffer, Place};
use crate::sum_tree::SumTree;
use memory::Storage;

/// Proves that `schedule` does what its operation says, for every length and type, or says what
/// goes wrong first.
pub fn verify(schedule: &Schedule) -> Result<Report, VerifyError> {
    shape::check(schedule)?;
    let sums = proof::run(schedule, Storage::Apart)?;
    let in_place = proof::run(schedule, Storage::InPlace).is_ok_and(|again| again == sums);
    Ok(Report::new(schedule, sums, in_place))
}

/// What is wrong with a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A step that makes no sense by itself.
    #[error("{at}: {what}")]
    Malformed {
        /// Which step.
        at: StepId,
        /// What is wrong with it.
        what: Malformed,
    },
    /// The number of programs is not the number of ranks.
    #[error("there are {programs} programs for {ranks} ranks")]
    WrongSize {
        /// How many programs there are.
        programs: usize,
        /// How many ranks the contributions speak of.
        ranks: usize,
    },
    /// The vector is cut so that ranks cannot own their parts of it.
    #[error("{num_chunks} chunks are no way to cut the vector of {op} over {ranks} ranks")]
    WrongCut {
        /// The operation.
        op: Op,
        /// How many ranks there are.
        ranks: usize,
        /// How many chunks there are.
        num_chunks: usize,
    },
    /// Nobody can go on.
    #[error("{at} never ends: {step}")]
    Stuck {
        /// The first step, by rank, that cannot be done.
        at: StepId,
        /// What it is.
        step: String,
    },
    /// A send meets a receive of something else.
    #[error("{send} sends {sent}, but {recv} expects {expected}")]
    Mismatch {
        /// The sender's step.
        send: StepId,
        /// What it sends.
        sent: Chunks,
        /// The receiver's step.
        recv: StepId,
        /// What it expects.
        expected: Chunks,
    },
    /// Something is read that nobody wrote.
    #[error("{at} reads chunk {chunk} of {place}, which holds nothing")]
    Unwritten {
        /// The reading step.
        at: StepId,
        /// What it reads.
        place: Place,
        /// Which chunk of it.
        chunk: usize,
    },
    /// Two ranks, or two steps of a round, use the same memory at the same time.
    #[error("{at} {access} chunk {chunk} of {place} while rank {other} may still be using it")]
    Race {
        /// The step that comes too early.
        at: StepId,
        /// Whether it `reads` or `writes`.
        access: &'static str,
        /// The memory.
        place: Place,
        /// Which chunk of it.
        chunk: usize,
        /// Who uses it.
        other: usize,
    },
    /// A rank is done while another still uses its memory.
    #[error("rank {rank} ends while rank {other} may still be using chunk {chunk} of its {buffer}")]
    LeftTooEarly {
        /// Who ends.
        rank: usize,
        /// What is still used.
        buffer: Buffer,
        /// Which chunk of it.
        chunk: usize,
        /// By whom.
        other: usize,
    },
    /// A result is wrong.
    #[error("rank {rank} ends with {found} in chunk {chunk}, not {expected}")]
    WrongResult {
        /// Whose output.
        rank: usize,
        /// Which chunk of it.
        chunk: usize,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// Two ranks have sums of the same contributions in different orders, which are different bits.
    #[error("chunk {chunk} is {first} on one rank, but {second} on rank {rank}")]
    OrdersDiffer {
        /// Which chunk.
        chunk: usize,
        /// The order on the first rank that has it.
        first: Box<SumTree<Contribution>>,
        /// The other rank.
        rank: usize,
        /// The order there.
        second: Box<SumTree<Contribution>>,
    },
    /// A rank leaves a barrier that another may not have reached.
    #[error("rank {rank} leaves the barrier without a word of rank {missing}")]
    NotABarrier {
        /// Who leaves.
        rank: usize,
        /// Who may not have come.
        missing: usize,
    },
}

/// What can be wrong with a step by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A rank that does not exist.
    #[error("there is no rank {0}")]
    NoSuchRank(usize),
    /// A rank that talks to itself.
    #[error("a rank needs no message or signal from itself")]
    OwnPeer,
    /// Chunks beyond the end.
    #[error("there are no chunks {0}")]
    NoSuchChunks(Chunks),
    /// The buffer does not hold the chunks, or not one after the other.
    #[error("{} does not hold chunks {} one after the other", .0, .1)]
    NotHeld(Place, Chunks),
    /// Inputs belong to the caller.
    #[error("an input is written to")]
    WritesInput,
    /// A sum that goes nowhere, or a wait for nothing.
    #[error("the step does nothing")]
    DoesNothing,
}

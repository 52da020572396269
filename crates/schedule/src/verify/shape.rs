//! Checks that need no execution: numbers in range, buffers that hold their chunks.

use super::{Malformed, VerifyError};
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Place, Step};
use crate::schedule::{Schedule, StepId};

/// Checks the sizes, and every step by itself.
pub(super) fn check(schedule: &Schedule) -> Result<(), VerifyError> {
    let (programs, ranks) = (schedule.num_ranks(), schedule.contributions.num_ranks());
    if programs != ranks {
        return Err(VerifyError::WrongSize { programs, ranks });
    }
    let (op, num_chunks) = (schedule.op, schedule.num_chunks);
    if !op.fits(ranks, num_chunks) {
        return Err(VerifyError::WrongCut { op, ranks, num_chunks });
    }
    for (at, step) in schedule.steps() {
        check_step(schedule, at, step).map_err(|what| VerifyError::Malformed { at, what })?;
    }
    Ok(())
}

fn check_step(schedule: &Schedule, at: StepId, step: &Step) -> Result<(), Malformed> {
    match step {
        Step::Send { peer, .. } | Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => {
            check_peer(schedule, at, *peer)?;
        }
        Step::Wait { rank, count } => {
            check_peer(schedule, at, *rank)?;
            if *count == 0 {
                return Err(Malformed::DoesNothing);
            }
        }
        Step::Reduce { into, .. } if into.is_empty() => return Err(Malformed::DoesNothing),
        Step::Copy { .. } | Step::Reduce { .. } | Step::Signal => {}
    }
    let chunks = step.chunks();
    if chunks.start > chunks.end || chunks.end > schedule.num_chunks {
        return Err(Malformed::NoSuchChunks(chunks));
    }
    let written = step.writes(at.rank);
    if written.iter().any(|place| matches!(place.buffer, Buffer::Input(_))) && !chunks.is_empty() {
        return Err(Malformed::WritesInput);
    }
    for place in step.reads(at.rank).into_iter().chain(written) {
        check_place(schedule, place, chunks)?;
    }
    Ok(())
}

fn check_peer(schedule: &Schedule, at: StepId, peer: usize) -> Result<(), Malformed> {
    match peer {
        _ if peer >= schedule.num_ranks() => Err(Malformed::NoSuchRank(peer)),
        _ if peer == at.rank => Err(Malformed::OwnPeer),
        _ => Ok(()),
    }
}

fn check_place(schedule: &Schedule, place: Place, chunks: Chunks) -> Result<(), Malformed> {
    let Place { rank, buffer } = place;
    if rank >= schedule.num_ranks() {
        return Err(Malformed::NoSuchRank(rank));
    }
    let is_held = match buffer {
        _ if chunks.is_empty() => true,
        Buffer::Input(index) => {
            index < schedule.contributions.num_inputs(rank) && schedule.input(rank).has_run(chunks)
        }
        Buffer::Output => schedule.output(rank).has_run(chunks),
        Buffer::Scratch { base, .. } => base <= chunks.start,
    };
    if is_held { Ok(()) } else { Err(Malformed::NotHeld(place, chunks)) }
}

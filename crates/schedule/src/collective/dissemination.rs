//! Dissemination barrier (Hensgen, Finkel and Manber 1988).
//!
//! In round r every rank sends an empty message to the rank 2^r after it and receives one from the
//! rank 2^r before it. After ⌈log₂ n⌉ rounds every rank has heard, directly or indirectly, from
//! every other. It takes ⌈log₂ n⌉ rounds and no bytes.

use super::tree::height;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::Buffer;
use crate::op::Op;
use crate::schedule::Schedule;

/// Barrier.
pub fn barrier(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    for round in 0..height(num_ranks) {
        for rank in 0..num_ranks {
            let peer = (rank + (1 << round)) % num_ranks;
            // An empty message accesses no memory; every step names a buffer.
            let (from, into) = (Buffer::INPUT.on(rank), Buffer::Output.on(peer));
            builder.message(round, Chunks::NONE, from, into);
        }
    }
    builder.finish(Op::Barrier, Algorithm::Dissemination, 0)
}

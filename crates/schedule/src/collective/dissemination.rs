//! Dissemination: a barrier in ⌈log₂ n⌉ rounds of empty messages.
//!
//! In round r every rank tells the rank 2^r after it that it has come, and hears from the rank 2^r
//! before it. Each message passes on all that its sender has heard, so after ⌈log₂ n⌉ rounds
//! everybody has heard of everybody.

use super::tree::height;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::step::Buffer;

/// No rank leaves before every rank has come.
pub fn barrier(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    for round in 0..height(num_ranks) {
        for rank in 0..num_ranks {
            let peer = (rank + (1 << round)) % num_ranks;
            // An empty message touches no memory; a buffer is named because every step names one.
            let (from, into) = (Buffer::INPUT.on(rank), Buffer::Output.on(peer));
            builder.message(round, Chunks::NONE, from, into);
        }
    }
    builder.finish(Op::Barrier, Algorithm::Dissemination, 0)
}

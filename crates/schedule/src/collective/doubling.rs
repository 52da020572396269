//! Doubling: an all-gather in ⌈log₂ n⌉ rounds, for any number of ranks.
//!
//! In round r every rank sends the first 2^r parts it has, counted from its own, to the rank 2^r
//! before it, and receives as many from the rank 2^r after it. What is known doubles; the last
//! round carries what is still missing. (Bruck's algorithm. For powers of two others call the like
//! of it recursive doubling.) Parts are received where they belong, so nothing is rotated at the
//! end; a run that goes past the last rank travels as two steps of one round.

use super::tree::height;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::step::Buffer;

/// Every rank gets the parts of all ranks.
pub fn all_gather(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    gather(&mut builder, 0, num_ranks, Buffer::INPUT);
    builder.finish(Op::AllGather, Algorithm::Doubling, num_ranks)
}

/// From slot `start` on every rank's share, which lies in its buffer `own`, goes into all outputs.
fn gather(builder: &mut Builder, start: usize, num_ranks: usize, own: Buffer) {
    for rank in 0..num_ranks {
        builder.copy(start, rank, Chunks::one(rank), Buffer::Output.on(rank), own.on(rank));
    }
    for round in 0..height(num_ranks) {
        let distance = 1 << round;
        let num_parts = distance.min(num_ranks - distance);
        let from = if round == 0 { own } else { Buffer::Output };
        for rank in 0..num_ranks {
            let peer = (rank + num_ranks - distance) % num_ranks;
            let parts = (rank..rank + num_parts).map(|part| Chunks::one(part % num_ranks));
            for chunks in Chunks::join(parts.collect()) {
                builder.message(start + round, chunks, from.on(rank), Buffer::Output.on(peer));
            }
        }
    }
}

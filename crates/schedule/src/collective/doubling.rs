//! Doubling all-gather for any number of ranks (Bruck et al. 1997).
//!
//! In round r every rank sends the first 2^r parts it has, counted from its own, to the rank 2^r
//! before it, and receives as many from the rank 2^r after it. The parts held double each round;
//! the last round carries the rest. It takes ⌈log₂ n⌉ rounds and sends (n-1)/n of the vector per
//! rank. (For powers of two recursive doubling is similar.) Parts are received in place, so nothing
//! is rotated at the end; a run that wraps past the last rank takes two steps of one round.

use super::tree::height;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::Buffer;
use crate::op::Op;
use crate::schedule::Schedule;

/// All-gather.
pub fn all_gather(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    gather(&mut builder, 0, num_ranks, Buffer::INPUT);
    builder.finish(Op::AllGather, Algorithm::Doubling, num_ranks)
}

/// All-gather of every rank's share in buffer `own`, from slot `start` on.
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

//! Linear collectives: the root exchanges with every rank directly.
//!
//! One round, in which the root's link carries everything: (n-1) times the vector for a broadcast,
//! (n-1)/n of it for a scatter or gather. It suits few ranks, or parts of such different lengths
//! that forwarding them would not pay.

use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::Buffer;
use crate::op::Op;
use crate::schedule::Schedule;

/// Broadcast.
pub fn broadcast(num_ranks: usize, root: usize) -> Schedule {
    from_root(Op::Broadcast { root }, num_ranks, root, 1, |_| Chunks::all(1))
}

/// Scatter.
pub fn scatter(num_ranks: usize, root: usize) -> Schedule {
    from_root(Op::Scatter { root }, num_ranks, root, num_ranks, Chunks::one)
}

/// Gather.
pub fn gather(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let into = Buffer::Output.on(root);
    builder.copy(0, root, Chunks::one(root), into, Buffer::INPUT.on(root));
    for rank in (0..num_ranks).filter(|&rank| rank != root) {
        builder.message(0, Chunks::one(rank), Buffer::INPUT.on(rank), into);
    }
    builder.finish(Op::Gather { root }, Algorithm::Linear, num_ranks)
}

fn from_root(
    op: Op,
    num_ranks: usize,
    root: usize,
    num_chunks: usize,
    part: impl Fn(usize) -> Chunks,
) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let from = Buffer::INPUT.on(root);
    builder.copy(0, root, part(root), Buffer::Output.on(root), from);
    for rank in (0..num_ranks).filter(|&rank| rank != root) {
        builder.message(0, part(rank), from, Buffer::Output.on(rank));
    }
    builder.finish(op, Algorithm::Linear, num_chunks)
}

//! Scatter-gather broadcast (van de Geijn) and reduce for long vectors (Thakur, Rabenseifner and
//! Gropp 2005).
//!
//! A tree sends the whole vector over every link of the root. *Broadcast:* the root scatters the
//! vector over a tree, then all ranks all-gather it around a ring: ⌈log₂ n⌉ + n-1 rounds. *Reduce:*
//! a pairwise reduce-scatter, then the root gathers the parts: n rounds. Both send about twice the
//! vector on the busiest rank, whatever the number of ranks, where a tree sends it log₂ n times.
//!
//! *Order of the sum:* always canonical.

use super::pairwise::{Split, inputs};
use super::ring::Ring;
use super::tree::Tree;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::contributions::Contributions;
use crate::instruction::Buffer;
use crate::op::Op;
use crate::schedule::Schedule;

/// Broadcast.
pub fn broadcast(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let all = Chunks::all(num_ranks);
    builder.copy(0, root, all, Buffer::Output.on(root), Buffer::INPUT.on(root));
    let tree = Tree { num_ranks, root };
    for edge in tree.edges() {
        let block = Chunks { start: edge.block.start, end: edge.block.end };
        let from = if edge.parent == root { Buffer::INPUT } else { Buffer::Output };
        let (from, into) = (from.on(edge.parent), Buffer::Output.on(edge.child));
        builder.message(tree.height() - edge.height, block, from, into);
    }
    let order: Vec<usize> = (0..num_ranks).collect();
    let ring = Ring { order: &order, channels: 1 };
    ring.all_gather(&mut builder, tree.height(), Buffer::Output);
    builder.finish(Op::Broadcast { root }, Algorithm::ScatterGather, num_ranks)
}

/// Reduce.
pub fn reduce(contributions: &Contributions, root: usize) -> Schedule {
    let num_ranks = contributions.num_ranks();
    let mut builder = Builder::with_contributions(contributions.clone());
    let split = Split::whole(num_ranks);
    // Only the root has an output; other ranks keep their part of the sum in scratch memory.
    let mut rest = |rank: usize| match rank {
        _ if rank == root => Buffer::Output,
        _ => builder.scratch(rank, rank),
    };
    let rests: Vec<Buffer> = (0..num_ranks).map(&mut rest).collect();
    let gathering =
        split.reduce_scatter(&mut builder, 0, &inputs(contributions), |rank| rests[rank]);
    for rank in (0..num_ranks).filter(|&rank| rank != root) {
        let (from, into) = (rests[rank].on(rank), Buffer::Output.on(root));
        builder.message(gathering, Chunks::one(rank), from, into);
    }
    builder.finish(Op::Reduce { root }, Algorithm::ScatterGather, num_ranks)
}

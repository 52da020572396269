//! Direct collectives in shared memory, without messages.
//!
//! Once all ranks have arrived, rank i reads part i of all inputs, reduces it and writes the sum to
//! all outputs; once all ranks have done so, they may leave. That is two synchronizations and one
//! sweep over memory; per rank n reads and n writes of 1/n of the vector. Operations that only move
//! data (all-gather, broadcast …) copy instead of reducing. A rank starts reading at its neighbour,
//! so that ranks do not all read the same memory at once.
//!
//! *One-shot* is for vectors so short that only the synchronizations count: every rank reduces the
//! whole vector into scratch memory and copies it to its output when all ranks have finished
//! reading.
//!
//! *Order of the sum:* always canonical, also for ranks with several contributions.

use super::pairwise::inputs;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::contributions::Contributions;
use crate::instruction::{Buffer, Place};
use crate::op::Op;
use crate::schedule::Schedule;

/// All-reduce: each rank writes its part of the sum to all outputs.
pub fn all_reduce(contributions: &Contributions) -> Schedule {
    sum(contributions, Op::AllReduce, |_, ranks| {
        ranks.iter().map(|&r| Buffer::Output.on(r)).collect()
    })
}

/// Reduce-scatter.
pub fn reduce_scatter(contributions: &Contributions) -> Schedule {
    sum(contributions, Op::ReduceScatter, |rank, _| vec![Buffer::Output.on(rank)])
}

/// Reduce: each rank writes its part of the sum to the root's output.
pub fn reduce(contributions: &Contributions, root: usize) -> Schedule {
    sum(contributions, Op::Reduce { root }, |_, _| vec![Buffer::Output.on(root)])
}

/// All-reduce in which every rank reduces the whole vector.
pub fn one_shot(contributions: &Contributions) -> Schedule {
    let ranks: Vec<usize> = (0..contributions.num_ranks()).collect();
    let all = Chunks::all(1);
    let mut builder = Builder::with_contributions(contributions.clone());
    let [arrive, add, leave, keep] = [0, 1, 2, 3];
    builder.sync(arrive, &ranks);
    for &rank in &ranks {
        // A single rank has no readers, so the sum goes to the output at once.
        let beside = match ranks.len() {
            1 => Buffer::Output.on(rank),
            _ => builder.scratch(rank, 0).on(rank),
        };
        builder.reduce(add, rank, all, vec![beside], inputs(contributions));
        builder.copy(keep, rank, all, Buffer::Output.on(rank), beside);
    }
    builder.sync(leave, &ranks);
    builder.finish(Op::AllReduce, Algorithm::OneShot, 1)
}

/// All-gather.
pub fn all_gather(num_ranks: usize) -> Schedule {
    pull(Op::AllGather, num_ranks, num_ranks, |_, source| Chunks::one(source))
}

/// All-to-all.
pub fn all_to_all(num_ranks: usize) -> Schedule {
    let part = |rank, source| Chunks::one(source * num_ranks + rank);
    pull(Op::AllToAll, num_ranks, num_ranks * num_ranks, part)
}

/// Broadcast.
pub fn broadcast(num_ranks: usize, root: usize) -> Schedule {
    pull_from_root(Op::Broadcast { root }, num_ranks, root, 1, |_| Chunks::all(1))
}

/// Scatter.
pub fn scatter(num_ranks: usize, root: usize) -> Schedule {
    pull_from_root(Op::Scatter { root }, num_ranks, root, num_ranks, Chunks::one)
}

/// Gather: each rank writes its part to the root's output.
pub fn gather(num_ranks: usize, root: usize) -> Schedule {
    let others: Vec<usize> = (0..num_ranks).filter(|&rank| rank != root).collect();
    let mut builder = Builder::new(num_ranks);
    let [ready, store, done] = [0, 1, 2];
    let into = Buffer::Output.on(root);
    builder.signal_to(ready, root, &others);
    builder.copy(ready, root, Chunks::one(root), into, Buffer::INPUT.on(root));
    for &rank in &others {
        builder.wait(ready, rank, &[root]);
        builder.copy(store, rank, Chunks::one(rank), into, Buffer::INPUT.on(rank));
        builder.signal_to(done, rank, &[root]);
    }
    builder.wait(ready, root, &others);
    builder.finish(Op::Gather { root }, Algorithm::Direct, num_ranks)
}

/// Barrier with one counter per rank.
pub fn barrier(num_ranks: usize) -> Schedule {
    let ranks: Vec<usize> = (0..num_ranks).collect();
    let mut builder = Builder::new(num_ranks);
    builder.sync(0, &ranks);
    builder.finish(Op::Barrier, Algorithm::Direct, 0)
}

/// Rank i reduces part i and writes it to the places given by `into`.
fn sum(
    contributions: &Contributions,
    op: Op,
    into: impl Fn(usize, &[usize]) -> Vec<Place>,
) -> Schedule {
    let num_ranks = contributions.num_ranks();
    let ranks: Vec<usize> = (0..num_ranks).collect();
    let mut builder = Builder::with_contributions(contributions.clone());
    let [arrive, add, leave] = [0, 1, 2];
    builder.sync(arrive, &ranks);
    for &rank in &ranks {
        let share = Chunks::one(rank);
        builder.reduce(add, rank, share, into(rank, &ranks), inputs(contributions));
    }
    builder.sync(leave, &ranks);
    builder.finish(op, Algorithm::Direct, num_ranks)
}

/// Every rank copies its part of every input; `part` selects it, given the reader and the source.
fn pull(
    op: Op,
    num_ranks: usize,
    num_chunks: usize,
    part: impl Fn(usize, usize) -> Chunks,
) -> Schedule {
    let ranks: Vec<usize> = (0..num_ranks).collect();
    let mut builder = Builder::new(num_ranks);
    let [arrive, read, leave] = [0, 1, 2];
    builder.sync(arrive, &ranks);
    for &rank in &ranks {
        for distance in 0..num_ranks {
            let source = (rank + distance) % num_ranks;
            let (into, from) = (Buffer::Output.on(rank), Buffer::INPUT.on(source));
            builder.copy(read, rank, part(rank, source), into, from);
        }
    }
    builder.sync(leave, &ranks);
    builder.finish(op, Algorithm::Direct, num_chunks)
}

/// Every rank copies its part from the root, which stays until all are done.
fn pull_from_root(
    op: Op,
    num_ranks: usize,
    root: usize,
    num_chunks: usize,
    part: impl Fn(usize) -> Chunks,
) -> Schedule {
    let others: Vec<usize> = (0..num_ranks).filter(|&rank| rank != root).collect();
    let mut builder = Builder::new(num_ranks);
    let [ready, read, done] = [0, 1, 2];
    let from = Buffer::INPUT.on(root);
    builder.signal_to(ready, root, &others);
    builder.copy(ready, root, part(root), Buffer::Output.on(root), from);
    for &rank in &others {
        builder.wait(ready, rank, &[root]);
        builder.copy(read, rank, part(rank), Buffer::Output.on(rank), from);
        builder.signal_to(done, rank, &[root]);
    }
    builder.wait(ready, root, &others);
    builder.finish(op, Algorithm::Direct, num_chunks)
}

//! Direct: ranks that see each other's memory work on it in place, without messages.
//!
//! A collective on one host needs no transfers at all: once everybody has arrived, rank i reads
//! part i of all inputs, adds it up and stores the sum into all outputs; once everybody has done
//! that, all may leave. Two synchronisations and one sweep over memory, which is as much as the sum
//! alone would cost. Movers (all-gather, broadcast …) are the same with a copy for the sum. A rank
//! starts reading at its neighbour, so that not everybody reads the same memory at once.
//!
//! *One-shot* is for vectors so short that only the synchronisations count: every rank adds up
//! everything for itself, beside its output, and moves it there when nobody reads any more.
//!
//! *Order of the sum:* canonical, always, also for ranks with several contributions.

use super::pairwise::inputs;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::contributions::Contributions;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::step::{Buffer, Place};

/// Every rank gets the sum: each stores its part of it into all outputs.
pub fn all_reduce(contributions: &Contributions) -> Schedule {
    sum(contributions, Op::AllReduce, |_, ranks| {
        ranks.iter().map(|&r| Buffer::Output.on(r)).collect()
    })
}

/// Rank i gets part i of the sum.
pub fn reduce_scatter(contributions: &Contributions) -> Schedule {
    sum(contributions, Op::ReduceScatter, |rank, _| vec![Buffer::Output.on(rank)])
}

/// The root gets the sum: each rank stores its part into the root's output.
pub fn reduce(contributions: &Contributions, root: usize) -> Schedule {
    sum(contributions, Op::Reduce { root }, |_, _| vec![Buffer::Output.on(root)])
}

/// Every rank gets the sum, by adding up everything.
pub fn one_shot(contributions: &Contributions) -> Schedule {
    let ranks: Vec<usize> = (0..contributions.num_ranks()).collect();
    let all = Chunks::all(1);
    let mut builder = Builder::with_contributions(contributions.clone());
    let [arrive, add, leave, keep] = [0, 1, 2, 3];
    builder.sync(arrive, &ranks);
    for &rank in &ranks {
        // Alone, nobody else reads, and the sum can go where it belongs at once.
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

/// Every rank gets the parts of all ranks.
pub fn all_gather(num_ranks: usize) -> Schedule {
    pull(Op::AllGather, num_ranks, num_ranks, |_, source| Chunks::one(source))
}

/// Rank d gets part d of every rank's vector.
pub fn all_to_all(num_ranks: usize) -> Schedule {
    let part = |rank, source| Chunks::one(source * num_ranks + rank);
    pull(Op::AllToAll, num_ranks, num_ranks * num_ranks, part)
}

/// Every rank gets the root's vector.
pub fn broadcast(num_ranks: usize, root: usize) -> Schedule {
    pull_from_root(Op::Broadcast { root }, num_ranks, root, 1, |_| Chunks::all(1))
}

/// Rank i gets part i of the root's vector.
pub fn scatter(num_ranks: usize, root: usize) -> Schedule {
    pull_from_root(Op::Scatter { root }, num_ranks, root, num_ranks, Chunks::one)
}

/// The root gets the parts of all ranks, which store them into its output.
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

/// No rank leaves before every rank has come: one counter each.
pub fn barrier(num_ranks: usize) -> Schedule {
    let ranks: Vec<usize> = (0..num_ranks).collect();
    let mut builder = Builder::new(num_ranks);
    builder.sync(0, &ranks);
    builder.finish(Op::Barrier, Algorithm::Direct, 0)
}

/// Rank i adds up part i and stores it where `into` says, given its rank and all ranks.
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

/// Every rank copies its part from every input; `part` says which, given the reader and the source.
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

/// Every rank copies its part from the root, which stays until all have done so.
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

//! Pairwise exchange: every pair of ranks exchanges its parts directly (Thakur, Rabenseifner and
//! Gropp 2005).
//!
//! In round t rank i sends to rank i+t and receives from rank i-t, so that every rank sends and
//! receives one message. This is the standard all-to-all. It also gives a canonical sum over
//! messages for *any* number of ranks: every rank first receives its share of all vectors unreduced
//! and then adds them in any order. It takes n-1 rounds; a reduce-scatter sends (n-1)/n of the
//! vector per rank, an all-reduce twice that, as little as a ring. The price is scratch memory for
//! the unreduced shares, almost one vector per rank and contribution.
//!
//! *Order of the sum:* always canonical, also for ranks with several contributions.

use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::contributions::Contributions;
use crate::instruction::{Buffer, Place};
use crate::op::Op;
use crate::schedule::Schedule;
use crate::sum_tree::SumTree;

/// All-reduce.
pub fn all_reduce(contributions: &Contributions) -> Schedule {
    let mut builder = Builder::with_contributions(contributions.clone());
    let split = Split::whole(contributions.num_ranks());
    let gathering =
        split.reduce_scatter(&mut builder, 0, &inputs(contributions), |_| Buffer::Output);
    split.all_gather(&mut builder, gathering, Buffer::Output);
    builder.finish(Op::AllReduce, Algorithm::Pairwise, contributions.num_ranks())
}

/// Reduce-scatter.
pub fn reduce_scatter(contributions: &Contributions) -> Schedule {
    let mut builder = Builder::with_contributions(contributions.clone());
    let split = Split::whole(contributions.num_ranks());
    split.reduce_scatter(&mut builder, 0, &inputs(contributions), |_| Buffer::Output);
    builder.finish(Op::ReduceScatter, Algorithm::Pairwise, contributions.num_ranks())
}

/// All-gather.
pub fn all_gather(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    Split::whole(num_ranks).all_gather(&mut builder, 0, Buffer::INPUT);
    builder.finish(Op::AllGather, Algorithm::Pairwise, num_ranks)
}

/// All-to-all.
pub fn all_to_all(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    for rank in 0..num_ranks {
        let own = Chunks::one(rank * num_ranks + rank);
        builder.copy(0, rank, own, Buffer::Output.on(rank), Buffer::INPUT.on(rank));
        for round in 1..num_ranks {
            let peer = (rank + round) % num_ranks;
            let part = Chunks::one(rank * num_ranks + peer);
            builder.message(round, part, Buffer::INPUT.on(rank), Buffer::Output.on(peer));
        }
    }
    builder.finish(Op::AllToAll, Algorithm::Pairwise, num_ranks * num_ranks)
}

/// Canonical sum of all ranks' inputs.
pub(crate) fn inputs(contributions: &Contributions) -> SumTree<Place> {
    contributions
        .tree()
        .map(&mut |contribution| Buffer::Input(contribution.index).on(contribution.rank))
}

/// Chunks divided among some ranks.
pub(crate) struct Split {
    /// Ranks.
    pub(crate) ranks: Vec<usize>,
    /// Chunks that each rank owns.
    pub(crate) shares: Vec<Chunks>,
}

impl Split {
    /// One chunk per rank of a group.
    pub(crate) fn whole(num_ranks: usize) -> Self {
        let shares = Chunks::all(num_ranks).split(num_ranks);
        Self { ranks: (0..num_ranks).collect(), shares }
    }

    /// Reduce-scatter from slot `start` on: every rank collects its share of all leaves of the sum
    /// and adds them into the buffer `into(rank)`. Returns the next slot.
    pub(crate) fn reduce_scatter(
        &self,
        builder: &mut Builder,
        start: usize,
        sum: &SumTree<Place>,
        into: impl Fn(usize) -> Buffer,
    ) -> usize {
        for (position, (&rank, &share)) in self.ranks.iter().zip(&self.shares).enumerate() {
            let mut collect = |leaf: &Place| {
                if leaf.rank == rank {
                    return *leaf;
                }
                let beside = builder.scratch(rank, share.start).on(rank);
                let round = self.round(leaf.rank, position);
                builder.message(start + round - 1, share, *leaf, beside);
                beside
            };
            let collected = sum.map(&mut collect);
            let adding = start + self.ranks.len() - 1;
            builder.reduce(adding, rank, share, vec![into(rank).on(rank)], collected);
        }
        start + self.ranks.len()
    }

    /// All-gather from slot `start` on: every rank sends its share in buffer `own` to every output.
    /// Returns the next slot.
    pub(crate) fn all_gather(&self, builder: &mut Builder, start: usize, own: Buffer) -> usize {
        for (&rank, &share) in self.ranks.iter().zip(&self.shares) {
            builder.copy(start, rank, share, Buffer::Output.on(rank), own.on(rank));
            for (position, &peer) in self.ranks.iter().enumerate() {
                if peer != rank {
                    let slot = start + self.round(rank, position) - 1;
                    builder.message(slot, share, own.on(rank), Buffer::Output.on(peer));
                }
            }
        }
        start + self.ranks.len()
    }

    /// Round, counted from 1, in which `rank` sends to the rank at index `position`.
    fn round(&self, rank: usize, position: usize) -> usize {
        let sender = self.ranks.iter().position(|&member| member == rank);
        let sender = sender.expect("the leaves of a sum belong to its ranks");
        (position + self.ranks.len() - sender) % self.ranks.len()
    }
}

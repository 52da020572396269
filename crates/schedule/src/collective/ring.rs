//! Ring collectives (Patarasuk and Yuan 2009): every rank communicates with its two neighbours
//! only.
//!
//! The vector is split into one share per rank. In the reduce-scatter a share starts at the rank
//! after its owner and travels once around the ring; every rank adds its own part, and the share
//! arrives at its owner after n-1 rounds. In the all-gather complete shares travel n-1 rounds
//! further. All links carry a share in every round, so an all-reduce sends 2(n-1)/n of the vector
//! per rank, which is optimal, in 2(n-1) rounds.
//!
//! With several channels each share is split into as many chunks, and odd channels run in the
//! opposite direction, so that both directions of every link are busy.
//!
//! The ring follows rank order, or an order that avoids slow links
//! ([`Links::ring_order`](crate::Links::ring_order)).
//!
//! *Order of the sum:* the chunks of share i are added from the rank after i around to i, the lower
//! of two neighbours on the left: the same on all ranks, but a different order for every share, and
//! canonical for one or two ranks only.

use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Side};
use crate::op::Op;
use crate::schedule::Schedule;

/// All-reduce: reduce-scatter, then all-gather.
pub fn all_reduce(order: &[usize], channels: usize) -> Schedule {
    let ring = Ring { order, channels };
    let mut builder = Builder::new(order.len());
    let gathering = ring.reduce_scatter(&mut builder, 0, |_, _| Buffer::Output);
    ring.all_gather(&mut builder, gathering, Buffer::Output);
    ring.finish(builder, Op::AllReduce)
}

/// Reduce-scatter.
pub fn reduce_scatter(order: &[usize], channels: usize) -> Schedule {
    let ring = Ring { order, channels };
    let mut builder = Builder::new(order.len());
    let last_round = order.len().saturating_sub(2);
    // Partial sums alternate between two buffers: one is sent while the next arrives.
    ring.reduce_scatter(&mut builder, 0, |round, chunk| match round {
        _ if round == last_round => Buffer::Output,
        _ => Buffer::Scratch { slot: 2 * (chunk % channels) + round % 2, base: chunk },
    });
    ring.finish(builder, Op::ReduceScatter)
}

/// All-gather.
pub fn all_gather(order: &[usize], channels: usize) -> Schedule {
    let ring = Ring { order, channels };
    let mut builder = Builder::new(order.len());
    ring.all_gather(&mut builder, 0, Buffer::INPUT);
    ring.finish(builder, Op::AllGather)
}

/// Ring over all ranks of a group.
pub(crate) struct Ring<'a> {
    /// Ranks in ring order.
    pub(crate) order: &'a [usize],
    pub(crate) channels: usize,
}

impl Ring<'_> {
    /// Reduce-scatter from slot `start` on; returns the next slot. `rests` gives the buffer of a
    /// chunk's partial sum by round.
    fn reduce_scatter(
        &self,
        builder: &mut Builder,
        start: usize,
        rests: impl Fn(usize, usize) -> Buffer,
    ) -> usize {
        let num_ranks = self.order.len();
        if num_ranks == 1 {
            let all = Chunks::all(self.channels);
            builder.copy(start, 0, all, Buffer::Output.on(0), Buffer::INPUT.on(0));
            return start + 1;
        }
        for round in 0..num_ranks - 1 {
            for (place, &rank) in self.order.iter().enumerate() {
                for channel in 0..self.channels {
                    let next = self.ahead(place, 1, channel);
                    let chunk = self.chunk(self.behind(place, round + 1, channel), channel);
                    let from = match round {
                        0 => Buffer::INPUT,
                        _ => rests(round - 1, chunk),
                    };
                    builder.message_sum(
                        start + round,
                        Chunks::one(chunk),
                        from.on(rank),
                        rests(round, chunk).on(next),
                        Buffer::INPUT,
                        if rank < next { Side::Left } else { Side::Right },
                    );
                }
            }
        }
        start + num_ranks - 1
    }

    /// All-gather from slot `start` on: each share starts in its owner's buffer `own` and reaches
    /// every output. Returns the next slot.
    pub(crate) fn all_gather(&self, builder: &mut Builder, start: usize, own: Buffer) -> usize {
        let num_ranks = self.order.len();
        for rank in 0..num_ranks {
            let share = Chunks::all(num_ranks * self.channels).part(num_ranks, rank);
            builder.copy(start, rank, share, Buffer::Output.on(rank), own.on(rank));
        }
        for round in 0..num_ranks - 1 {
            for (place, &rank) in self.order.iter().enumerate() {
                for channel in 0..self.channels {
                    let next = self.ahead(place, 1, channel);
                    let chunk = self.chunk(self.behind(place, round, channel), channel);
                    let from = if round == 0 { own } else { Buffer::Output };
                    let into = Buffer::Output.on(next);
                    builder.message(start + round, Chunks::one(chunk), from.on(rank), into);
                }
            }
        }
        start + num_ranks
    }

    fn finish(&self, builder: Builder, op: Op) -> Schedule {
        let algorithm = Algorithm::Ring { channels: self.channels };
        builder.finish(op, algorithm, self.order.len() * self.channels)
    }

    /// Chunk of `owner`'s share on `channel`.
    fn chunk(&self, owner: usize, channel: usize) -> usize {
        owner * self.channels + channel
    }

    /// Rank `distance` positions ahead in the direction of a channel.
    fn ahead(&self, place: usize, distance: usize, channel: usize) -> usize {
        let num_ranks = self.order.len();
        let distance = if channel.is_multiple_of(2) { distance } else { num_ranks - distance };
        self.order[(place + distance) % num_ranks]
    }

    /// Rank `distance` positions back.
    fn behind(&self, place: usize, distance: usize, channel: usize) -> usize {
        self.ahead(place, self.order.len() - distance, channel)
    }
}

//! Rabenseifner's all-reduce: recursive halving and doubling (Rabenseifner 2004).
//!
//! *Halving* (reduce-scatter): in round r every rank and its partner at distance 2^r split the
//! chunks they both work on; each sends the half it gives up and adds the half it keeps. After log₂
//! n rounds every rank has one share of the sum. *Doubling* (all-gather) runs the same rounds in
//! reverse and copies. The all-reduce takes 2 log₂ n rounds instead of a ring's 2(n-1) and sends
//! 2(n-1)/n of the vector per rank, as little as a ring. Other group sizes are first reduced to a
//! power of two.
//!
//! The distance *doubles* while the vector halves. (Many libraries begin with the furthest partner
//! instead.) The partial sum after round r then covers an aligned block of 2^(r+1) ranks.
//!
//! *Order of the sum:* canonical for powers of two.

use super::power_of_two::PowerOfTwoGroup;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Place, Side};
use crate::op::Op;
use crate::schedule::Schedule;

/// All-reduce.
pub fn all_reduce(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let group = PowerOfTwoGroup::new(num_ranks);
    let num_chunks = 1 << group.num_doublings();
    let all = Chunks::all(num_chunks);
    let (places, slot) = group.fold_in(&mut builder, 0, all);
    let shares = contiguous_shares(all, places.len());
    let slot = halve(&mut builder, slot, &places, &shares, |_| Buffer::Output);
    let slot = double(&mut builder, slot, &places, &shares);
    group.return_result(&mut builder, slot, all);
    builder.finish(Op::AllReduce, Algorithm::Rabenseifner, num_chunks)
}

/// Reduce-scatter; `num_ranks` must be a power of two. The parts exchanged in a round are not
/// contiguous (rank 0 keeps parts 0, 2, 4 … in the first round), so they take several steps of that
/// round.
pub fn reduce_scatter(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let shares = Chunks::all(num_ranks).split(num_ranks);
    let places: Vec<Place> = (0..num_ranks).map(|rank| Buffer::INPUT.on(rank)).collect();
    halve(&mut builder, 0, &places, &shares, |rounds_left| match rounds_left {
        0 => Buffer::Output,
        _ => Buffer::Scratch { slot: 0, base: 0 },
    });
    builder.finish(Op::ReduceScatter, Algorithm::Halving, num_ranks)
}

/// One share per rank, ordered so that the shares sent together in a round are contiguous: rank i
/// owns the part whose number is i with its bits reversed.
pub(crate) fn contiguous_shares(chunks: Chunks, group_size: usize) -> Vec<Chunks> {
    let num_bits = group_size.trailing_zeros();
    let reversed =
        |index: usize| index.reverse_bits().checked_shr(usize::BITS - num_bits).unwrap_or(0);
    (0..group_size).map(|index| chunks.part(group_size, reversed(index))).collect()
}

/// Halving from slot `start` on: rank i ends with the sum of `shares[i]` in its output. `places`
/// are the operands; `rests` gives the buffer of partial sums by the number of rounds left. Returns
/// the next slot.
pub(crate) fn halve(
    builder: &mut Builder,
    start: usize,
    places: &[Place],
    shares: &[Chunks],
    rests: impl Fn(usize) -> Buffer,
) -> usize {
    let num_rounds = num_rounds(places);
    if let ([only], [share]) = (places, shares) {
        builder.copy(start, only.rank, *share, Buffer::Output.on(only.rank), *only);
        return start + 1;
    }
    for round in 0..num_rounds {
        let latest = |index: usize| match round {
            0 => places[index].buffer,
            _ => rests(num_rounds - round),
        };
        for index in 0..places.len() {
            let partner = index ^ (1 << round);
            let (from, into) = (latest(index), rests(num_rounds - 1 - round));
            let received = if index < partner { Side::Left } else { Side::Right };
            for chunks in owned_after(shares, partner, round + 1) {
                builder.message_sum(
                    start + round,
                    chunks,
                    from.on(places[index].rank),
                    into.on(places[partner].rank),
                    latest(partner),
                    received,
                );
            }
        }
    }
    start + num_rounds
}

/// Doubling from slot `start` on: the shares that [`halve`] left in the outputs reach all outputs.
/// Returns the next slot.
pub(crate) fn double(
    builder: &mut Builder,
    start: usize,
    places: &[Place],
    shares: &[Chunks],
) -> usize {
    let num_rounds = num_rounds(places);
    for round in 0..num_rounds {
        let distance_bit = num_rounds - 1 - round;
        for (index, place) in places.iter().enumerate() {
            let partner = places[index ^ (1 << distance_bit)];
            for chunks in owned_after(shares, index, distance_bit + 1) {
                let (from, into) = (Buffer::Output.on(place.rank), Buffer::Output.on(partner.rank));
                builder.message(start + round, chunks, from, into);
            }
        }
    }
    start + num_rounds
}

fn num_rounds(places: &[Place]) -> usize {
    assert!(places.len().is_power_of_two(), "halving needs a power of two");
    places.len().trailing_zeros() as usize
}

/// Chunks that rank `index` still works on after some rounds of halving: the shares of all ranks
/// that agree with it in that many low bits.
fn owned_after(shares: &[Chunks], index: usize, num_rounds: usize) -> Vec<Chunks> {
    let last_bits = (1 << num_rounds) - 1;
    let agrees = |other: &usize| (other ^ index) & last_bits == 0;
    Chunks::join((0..shares.len()).filter(agrees).map(|other| shares[other]).collect())
}

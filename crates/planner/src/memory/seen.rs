//! Pages of other ranks that a rank has looked into.
//!
//! Where ranks share memory nothing is sent: a rank reads what it needs where it lies and writes
//! sums where they belong. Every page that it touches counts as its own from then on, although it
//! exists once. Which pages these are follows from the schedules: their steps name the rank, the
//! buffer and the elements. Buffers that several buckets use in turn count once.
//!
//! Linux maps shared memory in windows of 64 KiB around the page that is touched, as far as
//! somebody has filled it. So of gradients, which are whole before anybody looks, whole windows
//! count; of what is gathered the owner has filled its own part only, and that is all that is
//! mapped.

use crate::traffic::{Call, Chosen, GroupCalls, Wires};
use lockstep_config::units::Bytes;
use lockstep_schedule::{Buffer, Layout, Op, Place, Schedule, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The size of a page.
const PAGE: u64 = 4 << 10;

/// What the system maps at once where all of it is there.
const WINDOW: u64 = 64 << 10;

/// A buffer of another rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Region {
    rank: usize,
    op: Op,
    /// Whose, or none where all calls of the operation use it in turn.
    call: Option<usize>,
    /// Which of the rank's addends, or of the buffers that are used in turn.
    number: usize,
}

/// What each rank will have looked into after a step.
pub(super) fn bytes_by_rank(calls: &GroupCalls, wires: &Wires) -> Vec<Bytes> {
    let mut ranks = vec![BTreeMap::<Region, Vec<Range<u64>>>::new(); calls.addends.num_ranks()];
    let mut chosen = Chosen::new(wires, &calls.addends);
    for (index, call) in calls.list.iter().enumerate() {
        let schedule = chosen.of(call);
        let layout = call.layout(schedule);
        // A buffer of its own, or those that it shares with others.
        let turns = if call.turns.is_empty() { &[0][..] } else { &call.turns };
        for (rank, seen) in ranks.iter_mut().enumerate() {
            for (place, pages) in places(schedule, &layout, call, rank) {
                for turn in turns {
                    // Stretches of a bucket are gathered one by one; all else is of whole buckets.
                    let own = if call.op == Op::AllGather { index } else { call.bucket };
                    let region = Region {
                        rank: place.rank,
                        op: call.op,
                        call: call.turns.is_empty().then_some(own),
                        number: turn + input_number(place.buffer),
                    };
                    seen.entry(region).or_default().push(pages.clone());
                }
            }
        }
    }
    ranks
        .into_iter()
        .map(|seen| Bytes(PAGE * seen.into_values().map(num_pages).sum::<u64>()))
        .collect()
}

/// The same for calls on memory that others cannot look into: each rank copies what it brings to
/// one place, as long as the longest of them, and the others look there.
pub(super) fn staged_by_rank(calls: &GroupCalls, wires: &Wires) -> Vec<Bytes> {
    let num_ranks = calls.addends.num_ranks();
    if num_ranks == 1 || !wires.is_one_host() {
        return vec![Bytes(0); num_ranks];
    }
    let longest = calls.list.iter().map(Call::count).max().unwrap_or(0);
    let staging = Bytes(4 * longest as u64).0.next_multiple_of(PAGE);
    let mut most = vec![Bytes(0); num_ranks];
    let ops: BTreeSet<Op> = calls.list.iter().map(|call| call.op).collect();
    for op in ops {
        let of_op = calls.list.iter().filter(|call| call.op == op);
        let in_one_place = |call: &Call| Call { turns: vec![0], ..call.clone() };
        let list = of_op.map(in_one_place).collect();
        let seen = bytes_by_rank(&GroupCalls { addends: calls.addends.clone(), list }, wires);
        most = most.into_iter().zip(seen).map(|(one, other)| one.max(other)).collect();
    }
    most.into_iter().map(|seen| seen + Bytes(staging)).collect()
}

/// The working memory of each rank's calls: what schedules keep aside, and messages that are added
/// to something when they have come. It grows to the largest call and stays.
pub(super) fn working_by_rank(calls: &GroupCalls, wires: &Wires) -> Vec<Bytes> {
    let mut chosen = Chosen::new(wires, &calls.addends);
    let mut most = vec![(0, 0); calls.addends.num_ranks()];
    for call in &calls.list {
        let schedule = chosen.of(call);
        let layout = call.layout(schedule);
        let scratch = layout.scratch_lens(schedule);
        for (rank, (kept, coming)) in most.iter_mut().enumerate() {
            *kept = (*kept).max(scratch[rank].iter().sum());
            let added = |step: &&Step| matches!(step, Step::RecvReduce { .. });
            let rounds = schedule.programs[rank].iter().map(|round| {
                let lens = round.iter().filter(added).map(|step| layout.len(step.chunks()));
                lens.sum::<usize>()
            });
            *coming = rounds.fold(*coming, usize::max);
        }
    }
    most.into_iter().map(|(kept, coming)| Bytes(4 * (kept + coming) as u64)).collect()
}

/// The pages of other ranks' buffers that a rank gets to see in a call, counted from the beginning
/// of the buffer.
fn places<'a>(
    schedule: &'a Schedule,
    layout: &'a Layout,
    call: &'a Call,
    rank: usize,
) -> impl Iterator<Item = (Place, Range<u64>)> + 'a {
    let is_memory = |step: &&Step| matches!(step, Step::Copy { .. } | Step::Reduce { .. });
    let steps = schedule.programs[rank].iter().flatten().filter(is_memory);
    steps.flat_map(move |step| {
        let places = step.reads(rank).into_iter().chain(step.writes(rank));
        let others = places.filter(move |place| place.rank != rank);
        others.filter_map(move |place| {
            // What is gathered lies where it belongs in the whole.
            let buffer = if call.op == Op::AllGather { Buffer::Output } else { place.buffer };
            let elements = layout.range(place.rank, buffer, step.chunks());
            let size = call.element.0;
            let bytes = elements.start as u64 * size..elements.end as u64 * size;
            let once = if call.op == Op::AllGather { PAGE } else { WINDOW };
            let pages = bytes.start / once * once..bytes.end.next_multiple_of(once);
            (!elements.is_empty()).then_some((place, pages.start / PAGE..pages.end / PAGE))
        })
    })
}

/// Sums are written over the first addend.
const fn input_number(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input(number) => number,
        Buffer::Output | Buffer::Scratch { .. } => 0,
    }
}

/// The number of pages in any of the ranges.
fn num_pages(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_by_key(|range| range.start);
    let count = |(total, end): (u64, u64), range: Range<u64>| {
        let new = range.end.saturating_sub(range.start.max(end));
        (total + new, end.max(range.end))
    };
    ranges.into_iter().fold((0, 0), count).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_once() {
        assert_eq!(num_pages(vec![4..6, 0..2, 1..3, 5..6]), 5);
        assert_eq!(num_pages(Vec::new()), 0);
    }
}

//! Pages of other ranks' shared memory that a rank has mapped.
//!
//! Ranks that share memory send nothing: a rank reads its operands in place and writes sums to
//! their targets. Every page that it accesses counts towards its resident memory from then on,
//! although it exists once. The pages follow from the schedules, whose steps name rank, buffer and
//! elements. Pool buffers that several buckets share count once.
//!
//! Linux maps shared memory in windows of 64 KiB around an accessed page, as far as the pages
//! exist. Gradients exist completely before other ranks read them, so whole windows count; of
//! gathered parameters the owner has filled its own part only, and only that is mapped.

use crate::traffic::{Call, GroupCalls, Interconnect, SelectedSchedules};
use lockstep_config::units::Bytes;
use lockstep_schedule::{Buffer, Layout, Op, Place, Schedule, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of a page.
const PAGE: u64 = 4 << 10;

/// Bytes that the system maps at once where all pages exist.
const WINDOW: u64 = 64 << 10;

/// Buffer of another rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Region {
    rank: usize,
    op: Op,
    /// Owning call, or none where all calls of the operation share the buffer.
    call: Option<usize>,
    /// Index of the rank's contribution, or of the pool buffer.
    number: usize,
}

/// Bytes that each rank has mapped after a step.
pub(super) fn bytes_by_rank(calls: &GroupCalls, interconnect: &Interconnect) -> Vec<Bytes> {
    let mut ranks =
        vec![BTreeMap::<Region, Vec<Range<u64>>>::new(); calls.contributions.num_ranks()];
    let mut chosen = SelectedSchedules::new(interconnect, &calls.contributions);
    for (index, call) in calls.list.iter().enumerate() {
        let schedule = chosen.of(call);
        let layout = call.layout(schedule);
        // The call's own buffer, or the pool buffers that it shares.
        let turns = if call.turns.is_empty() { &[0][..] } else { &call.turns };
        for (rank, mapped) in ranks.iter_mut().enumerate() {
            for (place, pages) in places(schedule, &layout, call, rank) {
                for turn in turns {
                    // Runs of a bucket are gathered one by one; other calls take whole buckets.
                    let own = if call.op == Op::AllGather { index } else { call.bucket };
                    let region = Region {
                        rank: place.rank,
                        op: call.op,
                        call: call.turns.is_empty().then_some(own),
                        number: turn + input_number(place.buffer),
                    };
                    mapped.entry(region).or_default().push(pages.clone());
                }
            }
        }
    }
    ranks
        .into_iter()
        .map(|mapped| Bytes(PAGE * mapped.into_values().map(num_pages).sum::<u64>()))
        .collect()
}

/// Bytes that each rank has mapped after calls on private memory: each rank copies its input to a
/// staging area, as long as the longest of them, which the other ranks read.
pub(super) fn staged_by_rank(calls: &GroupCalls, interconnect: &Interconnect) -> Vec<Bytes> {
    let num_ranks = calls.contributions.num_ranks();
    if num_ranks == 1 || !interconnect.is_one_host() {
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
        let mapped = bytes_by_rank(
            &GroupCalls { contributions: calls.contributions.clone(), list },
            interconnect,
        );
        most = most.into_iter().zip(mapped).map(|(one, other)| one.max(other)).collect();
    }
    most.into_iter().map(|mapped| mapped + Bytes(staging)).collect()
}

/// Scratch memory of each rank's calls: scratch of the schedules, and messages that are added on
/// arrival. It grows to the largest call and stays.
pub(super) fn working_by_rank(calls: &GroupCalls, interconnect: &Interconnect) -> Vec<Bytes> {
    let mut chosen = SelectedSchedules::new(interconnect, &calls.contributions);
    let mut most = vec![(0, 0); calls.contributions.num_ranks()];
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

/// Pages of other ranks' buffers that a rank accesses in a call, relative to the start of the
/// buffer.
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
            // Gathered parameters are in place in the output.
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

/// Sums are written over the first contribution.
const fn input_number(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input(number) => number,
        Buffer::Output | Buffer::Scratch { .. } => 0,
    }
}

/// Number of pages in any of the ranges.
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

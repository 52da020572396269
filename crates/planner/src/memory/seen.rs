//! Pages of other ranks that a rank has looked into.
//!
//! Where ranks share memory nothing is sent: a rank reads what it needs where it lies and writes
//! sums where they belong. Every page that it touches counts as its own from then on, although it
//! exists once. Which pages these are follows from the schedules: their steps name the rank, the
//! buffer and the elements. Buffers that several buckets use in turn count once.

use crate::traffic::{Call, Chosen, StepCalls, Wires};
use lockstep_config::units::Bytes;
use lockstep_parallel::ReplicaPlan;
use lockstep_schedule::{Buffer, Layout, Op, Place, Schedule, Step};
use std::collections::BTreeMap;
use std::ops::Range;

/// The size of a page.
const PAGE: u64 = 4096;

/// A buffer of another rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Region {
    rank: usize,
    op: Op,
    /// Which call's, or none where all calls of the operation use it in turn.
    call: Option<usize>,
    /// Which of the rank's addends, or of the buffers that are used in turn.
    number: usize,
}

/// What each rank will have looked into after a step.
pub(super) fn bytes_by_rank(calls: &StepCalls, plan: &ReplicaPlan, wires: &Wires) -> Vec<Bytes> {
    let mut ranks = vec![BTreeMap::<Region, Vec<Range<u64>>>::new(); plan.shares.len()];
    let mut chosen = Chosen::new(wires, &calls.addends);
    for (index, call) in calls.list.iter().enumerate() {
        let schedule = chosen.of(call);
        let layout = call.layout(schedule);
        let num_in_turn = num_in_turn(call, plan);
        for (rank, seen) in ranks.iter_mut().enumerate() {
            for (place, pages) in places(schedule, &layout, call, rank) {
                for number in 0..num_in_turn.unwrap_or(1) {
                    let call_index = if num_in_turn.is_some() { None } else { Some(index) };
                    let addend = input_number(place.buffer);
                    let region = Region {
                        rank: place.rank,
                        op: call.op,
                        call: call_index,
                        number: number + addend,
                    };
                    seen.entry(region).or_default().push(pages.clone());
                }
            }
        }
    }
    ranks.into_iter().map(|seen| Bytes(PAGE * seen.into_values().map(num_pages).sum::<u64>())).collect()
}

/// How many buffers all calls of an operation share, or nothing where each bucket has its own:
/// leaves of one lane are filled in two, and parameters that are brought lie in two.
fn num_in_turn(call: &Call, plan: &ReplicaPlan) -> Option<usize> {
    let is_shared = match call.op {
        Op::AllToAll => plan.leaves.lanes_per_leaf == 1,
        Op::AllGather => plan.zero == 3,
        _ => false,
    };
    is_shared.then_some(lockstep_parallel::zero::NUM_IN_FLIGHT)
}

/// The pages of other ranks' buffers that a rank touches in a call. A buffer begins with a page, or
/// nearly so.
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
            let bytes = elements.start as u64 * 4..elements.end as u64 * 4;
            let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
            (!elements.is_empty()).then_some((place, pages))
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

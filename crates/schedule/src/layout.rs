//! Offsets of a schedule's chunks in real buffers, for a vector of known length.
//!
//! All ranks must use the same layout: it is a function of the schedule and of a count (or of the
//! explicit lengths of all-to-all-v, all-gather-v and the like), never of the rank.

use std::ops::Range;

use crate::chunks::{Chunks, boundary};
use crate::instruction::Buffer;
use crate::op::StridedChunks;
use crate::schedule::Schedule;

/// Length of every chunk, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Offset of each chunk in the vector of all chunks, with one more entry for the end.
    starts: Vec<usize>,
    inputs: Vec<StridedChunks>,
    outputs: Vec<StridedChunks>,
}

impl Layout {
    /// A vector of `count` elements, split evenly. For an all-to-all `count` is the total length of
    /// all ranks' inputs.
    pub fn even(schedule: &Schedule, count: usize) -> Self {
        // A barrier has no chunks to split.
        let num_chunks = schedule.num_chunks;
        let start = |chunk| boundary(count, num_chunks.max(1), chunk);
        Self::with_starts(schedule, (0..=num_chunks).map(start).collect())
    }

    /// Chunk i has `lens[i]` elements. (All-to-all-v: `lens[s * n + d]` is sent from s to d.)
    pub fn explicit(schedule: &Schedule, lens: &[usize]) -> Self {
        assert_eq!(lens.len(), schedule.num_chunks, "one length for every chunk");
        let mut starts = vec![0];
        for len in lens {
            starts.push(starts[starts.len() - 1] + len);
        }
        Self::with_starts(schedule, starts)
    }

    /// Part i has `lens[i]` elements, where part i is the input of rank i to a gather or its output
    /// of a scatter (all-gather-v, reduce-scatter-v, gather-v, scatter-v). Unlike with
    /// [`explicit`](Self::explicit), a part may consist of several chunks.
    pub fn by_part(schedule: &Schedule, lens: &[usize]) -> Self {
        let num_parts = lens.len();
        let all = Chunks::all(schedule.num_chunks);
        let chunk_lens = |part: usize| {
            let cut = Chunks::all(lens[part]).split(all.part(num_parts, part).len());
            cut.into_iter().map(Chunks::len)
        };
        let lens: Vec<usize> = (0..num_parts).flat_map(chunk_lens).collect();
        Self::explicit(schedule, &lens)
    }

    fn with_starts(schedule: &Schedule, starts: Vec<usize>) -> Self {
        let ranks = 0..schedule.num_ranks();
        let inputs = ranks.clone().map(|rank| schedule.input(rank)).collect();
        let outputs = ranks.map(|rank| schedule.output(rank)).collect();
        Self { starts, inputs, outputs }
    }

    /// Number of elements of the vector.
    pub fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Number of elements of these chunks.
    pub fn len(&self, chunks: Chunks) -> usize {
        if chunks.is_empty() { 0 } else { self.starts[chunks.end] - self.starts[chunks.start] }
    }

    /// Whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Number of elements of each input of `rank`.
    pub fn input_len(&self, rank: usize) -> usize {
        self.holding_len(self.inputs[rank])
    }

    /// Number of elements of `rank`'s output.
    pub fn output_len(&self, rank: usize) -> usize {
        self.holding_len(self.outputs[rank])
    }

    /// Required number of elements of each scratch slot, by rank.
    pub fn scratch_lens(&self, schedule: &Schedule) -> Vec<Vec<usize>> {
        let longest = |runs: Vec<Chunks>| runs.into_iter().map(|run| self.len(run)).max();
        let slots = |slots: Vec<_>| slots.into_iter().map(|runs| longest(runs).unwrap_or(0));
        schedule.scratch().into_iter().map(|rank| slots(rank).collect()).collect()
    }

    /// Elements of `buffer` on `rank` that hold these chunks. The chunks must be contiguous in it,
    /// which [`verify`](crate::verify) proves for every step of a schedule.
    pub fn range(&self, rank: usize, buffer: Buffer, chunks: Chunks) -> Range<usize> {
        let start = match buffer {
            _ if chunks.is_empty() => 0,
            Buffer::Input(_) => self.offset(self.inputs[rank], chunks.start),
            Buffer::Output => self.offset(self.outputs[rank], chunks.start),
            Buffer::Scratch { base, .. } => self.starts[chunks.start] - self.starts[base],
        };
        start..start + self.len(chunks)
    }

    fn offset(&self, holding: StridedChunks, chunk: usize) -> usize {
        if holding.stride == 1 {
            return self.starts[chunk] - self.starts[holding.first];
        }
        let before = holding.iter().take_while(|&held| held != chunk);
        before.map(|held| self.len(Chunks::one(held))).sum()
    }

    fn holding_len(&self, holding: StridedChunks) -> usize {
        holding.iter().map(|chunk| self.len(Chunks::one(chunk))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::contributions::Contributions;
    use crate::op::Op;

    fn empty_schedule(op: Op, num_ranks: usize, num_chunks: usize) -> Schedule {
        Schedule {
            op,
            algorithm: Algorithm::Pairwise,
            num_chunks,
            contributions: Contributions::one_each(num_ranks),
            programs: vec![Vec::new(); num_ranks],
        }
    }

    #[test]
    fn buffers_are_tiled_by_the_chunks_they_hold() {
        for num_ranks in 1..6 {
            for op in Op::all(num_ranks) {
                let num_chunks = num_ranks * num_ranks;
                let schedule = empty_schedule(op, num_ranks, num_chunks);
                for count in [0, 1, 7, 100] {
                    let layout = Layout::even(&schedule, count);
                    for rank in 0..num_ranks {
                        let mut next = 0;
                        for chunk in schedule.output(rank).iter() {
                            let range = layout.range(rank, Buffer::Output, Chunks::one(chunk));
                            assert_eq!(range.start, next, "{op}, {count} elements, rank {rank}");
                            next = range.end;
                        }
                        assert_eq!(next, layout.output_len(rank));
                    }
                }
            }
        }
    }

    #[test]
    fn an_all_to_all_of_a_remainder_splits_every_source_alike() {
        let schedule = empty_schedule(Op::AllToAll, 3, 9);
        let layout = Layout::even(&schedule, 3 * 7);
        let row = |s| (0..3).map(|d| layout.len(Chunks::one(3 * s + d))).collect::<Vec<_>>();
        assert!((0..3).all(|rank| row(rank) == [2, 2, 3] && layout.input_len(rank) == 7));
    }

    #[test]
    fn explicit_lengths_may_differ() {
        let schedule = empty_schedule(Op::AllToAll, 2, 4);
        let layout = Layout::explicit(&schedule, &[5, 0, 2, 1]);
        assert_eq!((layout.input_len(0), layout.output_len(0), layout.output_len(1)), (5, 7, 1));
        assert_eq!(layout.range(0, Buffer::Output, Chunks::one(2)), 5..7);
        assert_eq!(layout.range(1, Buffer::INPUT, Chunks::one(3)), 2..3);
    }

    #[test]
    fn parts_of_several_chunks_are_cut_evenly() {
        let schedule = empty_schedule(Op::AllGather, 2, 4);
        let layout = Layout::by_part(&schedule, &[5, 2]);
        let lens: Vec<usize> = (0..4).map(|chunk| layout.len(Chunks::one(chunk))).collect();
        assert_eq!(lens, [2, 3, 1, 1]);
        assert_eq!((layout.input_len(0), layout.input_len(1), layout.output_len(0)), (5, 2, 7));
    }

    #[test]
    fn scratch_begins_at_its_base() {
        let schedule = empty_schedule(Op::AllReduce, 4, 4);
        let layout = Layout::even(&schedule, 10);
        let buffer = Buffer::Scratch { slot: 0, base: 1 };
        assert_eq!(layout.range(0, buffer, Chunks { start: 2, end: 4 }), 3..8);
    }
}

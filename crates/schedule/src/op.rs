//! Collective operations, and the chunks of each rank's input and output.
//!
//! All ranks together hold one vector, split into numbered chunks. An operation defines which
//! chunks a rank's input and output hold. In an all-gather over four ranks, rank 2's input is chunk
//! 2 and its output is chunks 0 to 3. In an all-to-all the vector is a square matrix: chunk `s * n
//! + d` is sent from rank `s` to rank `d`, so inputs are rows and outputs are columns.

use std::fmt;

use crate::chunks::Chunks;

/// Collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// Every rank gets the sum of all ranks' vectors.
    AllReduce,
    /// Rank i gets part i of the sum of all ranks' vectors.
    ReduceScatter,
    /// Every rank gets the parts of all ranks, one after the other.
    AllGather,
    /// Every rank gets the vector of the root.
    Broadcast {
        /// Rank that has the vector.
        root: usize,
    },
    /// The root gets the sum of all ranks' vectors.
    Reduce {
        /// Rank that receives the sum.
        root: usize,
    },
    /// Rank i gets part i of the root's vector.
    Scatter {
        /// Rank that has the vector.
        root: usize,
    },
    /// The root gets the parts of all ranks, one after the other.
    Gather {
        /// Rank that receives the parts.
        root: usize,
    },
    /// Rank d gets part d of every rank's vector.
    AllToAll,
    /// No rank leaves before every rank has entered.
    Barrier,
}

/// Chunks of a buffer, in order: `first`, `first + stride`, …, `len` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StridedChunks {
    /// First chunk.
    pub first: usize,
    /// Distance between neighbours.
    pub stride: usize,
    /// Number of chunks.
    pub len: usize,
}

impl Op {
    /// Chunks of `rank`'s inputs, for a vector of `num_chunks`.
    pub fn input(self, rank: usize, num_ranks: usize, num_chunks: usize) -> StridedChunks {
        let all = StridedChunks::run(Chunks::all(num_chunks));
        let own = || StridedChunks::run(Chunks::all(num_chunks).part(num_ranks, rank));
        match self {
            Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. } => all,
            Self::AllGather | Self::Gather { .. } | Self::AllToAll => own(),
            Self::Broadcast { root } | Self::Scatter { root } if rank == root => all,
            Self::Broadcast { .. } | Self::Scatter { .. } | Self::Barrier => StridedChunks::NOTHING,
        }
    }

    /// Chunks of `rank`'s output, for a vector of `num_chunks`.
    pub fn output(self, rank: usize, num_ranks: usize, num_chunks: usize) -> StridedChunks {
        let all = StridedChunks::run(Chunks::all(num_chunks));
        let own = || StridedChunks::run(Chunks::all(num_chunks).part(num_ranks, rank));
        match self {
            Self::AllReduce | Self::AllGather | Self::Broadcast { .. } => all,
            Self::ReduceScatter | Self::Scatter { .. } => own(),
            Self::Reduce { root } | Self::Gather { root } if rank == root => all,
            Self::Reduce { .. } | Self::Gather { .. } | Self::Barrier => StridedChunks::NOTHING,
            Self::AllToAll => StridedChunks { first: rank, stride: num_ranks, len: num_ranks },
        }
    }

    /// Whether a vector of `num_chunks` chunks suits the operation: equal numbers of chunks per
    /// rank where ranks own parts, none for a barrier.
    pub const fn fits(self, num_ranks: usize, num_chunks: usize) -> bool {
        match self {
            Self::AllReduce | Self::Broadcast { .. } | Self::Reduce { .. } => num_chunks > 0,
            Self::ReduceScatter | Self::AllGather | Self::Scatter { .. } | Self::Gather { .. } => {
                num_chunks > 0 && num_chunks.is_multiple_of(num_ranks)
            }
            Self::AllToAll => num_chunks == num_ranks * num_ranks,
            Self::Barrier => num_chunks == 0,
        }
    }

    /// Whether the result is a sum; other operations only move data.
    pub const fn is_sum(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. })
    }

    /// Root of the operation, if it has one.
    pub const fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Scatter { root }
            | Self::Gather { root } => Some(root),
            _ => None,
        }
    }

    /// All operations, with rank 0 as the root.
    pub const FROM_RANK_0: [Self; 9] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast { root: 0 },
        Self::Reduce { root: 0 },
        Self::Scatter { root: 0 },
        Self::Gather { root: 0 },
        Self::AllToAll,
        Self::Barrier,
    ];

    /// The operation with another root, where it has one.
    pub const fn with_root(self, root: usize) -> Self {
        match self {
            Self::Broadcast { .. } => Self::Broadcast { root },
            Self::Reduce { .. } => Self::Reduce { root },
            Self::Scatter { .. } => Self::Scatter { root },
            Self::Gather { .. } => Self::Gather { root },
            Self::AllReduce
            | Self::ReduceScatter
            | Self::AllGather
            | Self::AllToAll
            | Self::Barrier => self,
        }
    }

    /// All operations in a group of `num_ranks`, with every root.
    pub fn all(num_ranks: usize) -> Vec<Self> {
        let roots = |op: &Self| if op.root().is_some() { num_ranks } else { 1 };
        let all = Self::FROM_RANK_0.iter();
        all.flat_map(|op| (0..roots(op)).map(|root| op.with_root(root))).collect()
    }
}

impl StridedChunks {
    /// No chunks.
    pub const NOTHING: Self = Self { first: 0, stride: 1, len: 0 };

    /// Consecutive chunks.
    pub const fn run(chunks: Chunks) -> Self {
        Self { first: chunks.start, stride: 1, len: chunks.len() }
    }

    /// Chunks in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.len).map(move |index| self.first + index * self.stride)
    }

    /// Position of `chunk` in the buffer, if it is held.
    pub fn position(self, chunk: usize) -> Option<usize> {
        let distance = chunk.checked_sub(self.first)?;
        let index = distance / self.stride;
        (distance.is_multiple_of(self.stride) && index < self.len).then_some(index)
    }

    /// Whether `chunks` are contiguous in the buffer.
    pub fn has_run(self, chunks: Chunks) -> bool {
        chunks.is_empty()
            || ((self.stride == 1 || chunks.len() == 1)
                && self.position(chunks.start).is_some()
                && self.position(chunks.end - 1).is_some())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::Scatter { .. } => "scatter",
            Self::Gather { .. } => "gather",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
        };
        f.write_str(name)?;
        self.root().map_or(Ok(()), |root| write!(f, " (root {root})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_operations_is_complete() {
        // Without a wildcard: a new operation must be given a place here, and then be listed.
        let place = |op: &Op| match op {
            Op::AllReduce => 0,
            Op::ReduceScatter => 1,
            Op::AllGather => 2,
            Op::Broadcast { .. } => 3,
            Op::Reduce { .. } => 4,
            Op::Scatter { .. } => 5,
            Op::Gather { .. } => 6,
            Op::AllToAll => 7,
            Op::Barrier => 8,
        };
        let places: Vec<usize> = Op::FROM_RANK_0.iter().map(place).collect();
        assert_eq!(places, (0..9).collect::<Vec<_>>());
        let rooted = Op::FROM_RANK_0.iter().filter(|op| op.root().is_some()).count();
        assert_eq!(Op::all(5).len(), 9 - rooted + 5 * rooted);
        assert!(Op::all(5).contains(&Op::Gather { root: 4 }));
    }

    #[test]
    fn the_outputs_of_an_all_to_all_are_the_columns_of_its_inputs() {
        let (num_ranks, num_chunks) = (3, 9);
        let row = Op::AllToAll.input(1, num_ranks, num_chunks);
        let column = Op::AllToAll.output(1, num_ranks, num_chunks);
        assert_eq!(row.iter().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(column.iter().collect::<Vec<_>>(), [1, 4, 7]);
        assert!(row.has_run(Chunks { start: 3, end: 6 }));
        assert!(!column.has_run(Chunks { start: 1, end: 5 }));
        assert!(column.has_run(Chunks::one(4)) && !column.has_run(Chunks::one(5)));
    }

    #[test]
    fn positions_invert_the_order_of_strided_chunks() {
        for holding in [StridedChunks::NOTHING, StridedChunks { first: 2, stride: 3, len: 4 }] {
            for (position, chunk) in holding.iter().enumerate() {
                assert_eq!(holding.position(chunk), Some(position));
            }
            let held = (0..20).filter(|&chunk| holding.position(chunk).is_some()).count();
            assert_eq!(held, holding.len);
        }
    }

    #[test]
    fn every_chunk_of_a_result_is_in_some_input() {
        for num_ranks in 1..5 {
            for op in Op::all(num_ranks) {
                let num_chunks = num_ranks * num_ranks;
                for rank in 0..num_ranks {
                    for chunk in op.output(rank, num_ranks, num_chunks).iter() {
                        let mut ranks = 0..num_ranks;
                        let brought = ranks.any(|source| {
                            op.input(source, num_ranks, num_chunks).position(chunk).is_some()
                        });
                        assert!(brought, "{op}: chunk {chunk} of rank {rank}");
                    }
                }
            }
        }
    }
}

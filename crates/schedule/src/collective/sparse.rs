//! Sparse all-reduce of tables of which every rank has a few rows.
//!
//! The gradient of an embedding has as many rows as the vocabulary, and one step uses a few of
//! them. Each rank contributes a list of row numbers and the rows themselves. All ranks gather all
//! lists (two all-gathers with different lengths per rank, one for numbers and one for values) and
//! merge them: the result has the union of the rows, each the sum over the ranks that have it, in
//! the order of the canonical tree. Where many ranks contribute many rows, the lists are longer
//! than the table, and [`plan`] selects a dense all-reduce.
//!
//! *Order of the sum:* canonical. A dense sum adds zeros for the rows that a rank does not have;
//! that changes nothing but the sign of a zero. So where [`MergedRow::is_everywhere`] is false,
//! adding +0 to the merged row gives exactly the bits of the dense sum.

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_config::units::Bytes;

use crate::layout::Layout;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::sum_tree::SumTree;

/// Bytes of a row number on the wire.
pub const INDEX_BYTES: Bytes = Bytes(8);

/// Table to reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Number of rows.
    pub num_rows: usize,
    /// Bytes of a row.
    pub row_bytes: Bytes,
    /// Elements of a row.
    pub row_len: usize,
}

/// Dense or sparse all-reduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// All-reduce of the whole table.
    Dense,
    /// All-gather of the rows, then [`merge`].
    Sparse {
        /// Layout of the row numbers in the all-gather schedule.
        indices: Layout,
        /// Layout of the rows in the same schedule.
        values: Layout,
    },
}

/// Selects by the bytes that the busiest rank receives. `num_rows_by_rank` is the number of rows of
/// each rank (exchanged beforehand); `gather` is the all-gather schedule to use.
pub fn plan(table: Table, num_rows_by_rank: &[usize], gather: &Schedule) -> Plan {
    assert_eq!(gather.op, Op::AllGather, "rows are gathered");
    assert_eq!(gather.num_ranks(), num_rows_by_rank.len(), "every rank brings rows, or none");
    let num_ranks = num_rows_by_rank.len() as u64;
    let table_bytes = table.row_bytes * table.num_rows as u64;
    let dense = Bytes(table_bytes.0 * 2 * (num_ranks - 1) / num_ranks);

    let all_rows: usize = num_rows_by_rank.iter().sum();
    let fewest_own = num_rows_by_rank.iter().min().copied().unwrap_or(0);
    let sparse = (table.row_bytes + INDEX_BYTES) * (all_rows - fewest_own) as u64;
    if dense < sparse {
        return Plan::Dense;
    }
    let lens: Vec<usize> = num_rows_by_rank.iter().map(|rows| rows * table.row_len).collect();
    Plan::Sparse {
        indices: Layout::by_part(gather, num_rows_by_rank),
        values: Layout::by_part(gather, &lens),
    }
}

/// Row of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedRow {
    /// Row number in the table.
    pub row: u64,
    /// Rows to add, and their order.
    pub sum: SumTree<Source>,
    /// Whether every rank contributes the row.
    pub is_everywhere: bool,
}

/// Row that a rank contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Contributing rank.
    pub rank: usize,
    /// Index in that rank's list.
    pub position: usize,
}

/// Union of the ranks' rows, ascending, each with its sum. A rank's list must be ascending without
/// duplicates.
pub fn merge(rows_by_rank: &[&[u64]]) -> Vec<MergedRow> {
    let num_ranks = rows_by_rank.len();
    let mut sources: BTreeMap<u64, Vec<(Range<usize>, Source)>> = BTreeMap::new();
    for (rank, rows) in rows_by_rank.iter().enumerate() {
        assert!(rows.is_sorted_by(|a, b| a < b), "the rows of rank {rank} are not ascending");
        for (position, &row) in rows.iter().enumerate() {
            let block = (rank..rank + 1, Source { rank, position });
            sources.entry(row).or_default().push(block);
        }
    }
    let merged = |(row, blocks): (u64, Vec<_>)| MergedRow {
        row,
        sum: SumTree::over_blocks(num_ranks, &blocks),
        is_everywhere: blocks.len() == num_ranks,
    };
    sources.into_iter().map(merged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Chunks;
    use crate::collective::{pairwise, ring};

    const TABLE: Table = Table { num_rows: 1000, row_bytes: Bytes(64), row_len: 16 };

    #[test]
    fn few_rows_travel_as_rows_and_many_as_the_table() {
        let gather = pairwise::all_gather(4);
        // Dense: 2 * 3/4 of 64,000 bytes. Sparse: 72 bytes for each row of the other ranks.
        let sparse = |rows| matches!(plan(TABLE, &[rows; 4], &gather), Plan::Sparse { .. });
        let most = 96_000 / 72 / 3;
        assert!(sparse(0) && sparse(most));
        assert!(!sparse(most + 1) && !sparse(1000));
    }

    #[test]
    fn a_rank_alone_keeps_its_rows() {
        let gather = pairwise::all_gather(1);
        assert!(matches!(plan(TABLE, &[1000], &gather), Plan::Sparse { .. }));
    }

    #[test]
    fn lists_of_different_lengths_are_split_over_all_channels() {
        let gather = ring::all_gather(&[0, 1], 2);
        let Plan::Sparse { indices, values } = plan(TABLE, &[3, 1], &gather) else {
            unreachable!("four rows are fewer than a thousand");
        };
        assert_eq!((indices.input_len(0), indices.input_len(1), indices.output_len(0)), (3, 1, 4));
        assert_eq!(values.output_len(1), 64);
        assert_eq!(indices.len(Chunks::one(0)) + indices.len(Chunks::one(1)), 3);
    }

    #[test]
    fn a_row_is_added_in_canonical_order_over_the_ranks_that_have_it() {
        let rows: [&[u64]; 4] = [&[2, 7], &[7], &[1, 2, 7], &[2, 7]];
        let merged = merge(&rows);
        let shown: Vec<String> = merged
            .iter()
            .map(|merged| {
                let ranks = merged.sum.map(&mut |source| source.rank);
                format!("{}: {ranks} {}", merged.row, merged.is_everywhere)
            })
            .collect();
        assert_eq!(shown, ["1: 2 false", "2: 0+(2+3) false", "7: (0+1)+(2+3) true"]);
        assert_eq!(merged[1].sum.leaves()[1], &Source { rank: 2, position: 1 });
    }

    fn add<T>(tree: &SumTree<T>, value: &impl Fn(&T) -> f64) -> f64 {
        match tree {
            SumTree::Leaf(leaf) => value(leaf),
            SumTree::Sum(left, right) => add(left, value) + add(right, value),
        }
    }

    #[test]
    fn with_zero_added_the_bits_are_those_of_the_dense_sum() {
        // Values that show every reordering, and zeros of both signs.
        let value = |row: u64, rank: usize| match row {
            0 => -0.0,
            _ => [1e16, 1.0, -1e16, 3.0][rank] * (1.0 + row as f64),
        };
        for mask in 1..16_usize {
            for row in 0..3 {
                let lists: Vec<Vec<u64>> = (0..4).map(|rank| vec![row; mask >> rank & 1]).collect();
                let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
                let merged = &merge(&lists)[0];
                let mut sparse = add(&merged.sum, &|source| value(row, source.rank));
                if !merged.is_everywhere {
                    sparse += 0.0;
                }
                let has = |rank: usize| mask >> rank & 1 == 1;
                let dense = |rank: &usize| if has(*rank) { value(row, *rank) } else { 0.0 };
                let dense = add(&SumTree::canonical(4), &dense);
                assert_eq!(sparse.to_bits(), dense.to_bits(), "row {row}, ranks {mask:04b}");
            }
        }
    }
}

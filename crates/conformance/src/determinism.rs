//! Checks of determinism: sums have a fixed order on every rank and in every call.

use lockstep_comm::{Comm, Reduction, Rows, Table};
use lockstep_schedule::{Op, SumTree};

use super::{Effort, Row, assert_same, each_algorithm};

pub(super) const CHECKS: &[Row] = &[
    ("canonical sums have the bits of the canonical tree", 16, canonical_bits),
    ("a sparse sum has the bits of the dense one", 16, sparse_bits),
    ("a thousand repetitions give the same bits", 5, same_bits_every_time),
    ("all ranks get the same bits with every algorithm", 8, same_bits_everywhere),
];

/// Numbers of very different magnitude, so that every order of additions has other bits.
fn mixed_magnitude(rank: usize, index: usize) -> f32 {
    let mixed = (rank * 7919 + index * 104_729 + 12_345) % 1_000_003;
    let scale = [1.0e-3, 1.0, 1.0e4, 1.0e7][(rank + index) % 4];
    (mixed as f32 / 1_000_003.0 - 0.5) * scale
}

fn sum_tree(tree: &SumTree<usize>, index: usize) -> f32 {
    match tree {
        SumTree::Leaf(rank) => mixed_magnitude(*rank, index),
        SumTree::Sum(left, right) => sum_tree(left, index) + sum_tree(right, index),
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn canonical_bits(comm: &Comm, _: Effort) {
    let tree = SumTree::canonical(comm.group_size());
    for count in [1, 10, 1000] {
        let expected: Vec<u32> = (0..count).map(|index| sum_tree(&tree, index).to_bits()).collect();
        let mut buffer: Vec<f32> =
            (0..count).map(|index| mixed_magnitude(comm.group_rank(), index)).collect();
        let input = buffer.clone();
        comm.canonical().all_reduce(&mut buffer, Reduction::Sum).expect("all-reduce");
        assert_same(&bits(&buffer), &expected, "canonical sum");
        let own = comm.part_of(count, comm.group_rank());
        let mut part = vec![0.0; own.len()];
        comm.canonical().reduce_scatter(&input, &mut part, Reduction::Sum).expect("reduce-scatter");
        assert_same(&bits(&part), &expected[own], "canonical part");
        let mut whole = input;
        comm.canonical().reduce(&mut whole, 0, Reduction::Sum).expect("reduce");
        if comm.group_rank() == 0 {
            assert_same(&bits(&whole), &expected, "canonical sum at the root");
        }
    }
}

/// Compares sparse and dense sums bit by bit, in both representations of the sparse result.
fn sparse_bits(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    let table = Table { num_rows: 97, row_len: 3 };
    // Few rows are sent as rows, all rows as a table; one rank has no rows.
    for (step, is_sparse) in [(31, true), (1, n == 1)] {
        let has = |rank: usize, row: u64| rank != 1 && (row + rank as u64).is_multiple_of(step);
        let element = |rank: usize, row: u64, column: usize| {
            if has(rank, row) { mixed_magnitude(rank, 3 * row as usize + column) } else { 0.0 }
        };
        let me = comm.group_rank();
        let rows: Vec<u64> = (0..97).filter(|&row| has(me, row)).collect();
        let values: Vec<f32> =
            rows.iter().flat_map(|&row| (0..3).map(move |k| element(me, row, k))).collect();
        let mut dense: Vec<f32> =
            (0..97).flat_map(|row| (0..3).map(move |k| element(me, row, k))).collect();
        comm.canonical().all_reduce(&mut dense, Reduction::Mean).expect("all-reduce");
        let found = comm.sparse_all_reduce(table, &rows, &values, Reduction::Mean);
        let found = found.expect("sparse all-reduce");
        let started = comm.start_sparse_all_reduce(table, rows, values, Reduction::Mean);
        assert_eq!(started.expect("start").finish().expect("sparse all-reduce"), found);
        if let Rows::Some { rows, .. } = &found {
            let union = (0..97).filter(|&row| (0..n).any(|rank| has(rank, row)));
            assert_eq!(*rows, union.collect::<Vec<u64>>(), "the union of the rows");
        }
        assert_eq!(matches!(found, Rows::Some { .. }), is_sparse, "every {step}th row");
        assert_same(&bits(&found.into_table(table)), &bits(&dense), "sparse sum");
    }
}

fn same_bits_every_time(comm: &Comm, _: Effort) {
    let input: Vec<f32> = (0..100).map(|index| mixed_magnitude(comm.group_rank(), index)).collect();
    let mut first = Vec::new();
    for repetition in 0..1000 {
        let mut buffer = input.clone();
        comm.all_reduce(&mut buffer, Reduction::Sum).expect("all-reduce");
        if repetition == 0 {
            first = bits(&buffer);
        }
        assert_same(&bits(&buffer), &first, &format!("repetition {repetition}"));
    }
}

fn same_bits_everywhere(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    each_algorithm(comm, Op::AllReduce, |by_algorithm, name| {
        let mut buffer: Vec<f32> =
            (0..100).map(|index| mixed_magnitude(comm.group_rank(), index)).collect();
        by_algorithm.all_reduce(&mut buffer, Reduction::Sum).expect(name);
        let own = bits(&buffer);
        let mut all = vec![0; 100 * n];
        comm.all_gather(&own, &mut all).expect("all-gather");
        for (rank, theirs) in all.chunks(100).enumerate() {
            assert_same(theirs, &own, &format!("the bits of rank {rank} by {name}"));
        }
    });
}

//! Promises about bits: sums have a stated order, whoever computes them and however often.

use lockstep_comm::{Comm, Reduction, Rows, Table};
use lockstep_schedule::{Op, SumTree};

use super::{Effort, Row, assert_same, each_algorithm};

pub(super) const CHECKS: &[Row] = &[
    ("sums have the bits of the canonical tree where that is asked for", 16, canonical_bits),
    ("a sparse sum has the bits of the dense one", 16, sparse_bits),
    ("a thousand repetitions give the same bits", 5, same_bits_every_time),
    ("all ranks get the same bits, by every algorithm", 8, same_bits_everywhere),
];

/// Numbers of very different size, so that every order of additions has bits of its own.
fn rough(position: usize, index: usize) -> f32 {
    let mixed = (position * 7919 + index * 104_729 + 12_345) % 1_000_003;
    let scale = [1.0e-3, 1.0, 1.0e4, 1.0e7][(position + index) % 4];
    (mixed as f32 / 1_000_003.0 - 0.5) * scale
}

fn add_up(tree: &SumTree<usize>, index: usize) -> f32 {
    match tree {
        SumTree::Leaf(position) => rough(*position, index),
        SumTree::Sum(left, right) => add_up(left, index) + add_up(right, index),
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn canonical_bits(comm: &Comm, _: Effort) {
    let tree = SumTree::canonical(comm.group_size());
    for count in [1, 10, 1000] {
        let expected: Vec<u32> = (0..count).map(|index| add_up(&tree, index).to_bits()).collect();
        let mut buffer: Vec<f32> =
            (0..count).map(|index| rough(comm.group_rank(), index)).collect();
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

/// The bits of a sparse sum, whichever way it was made, are those of the dense one.
fn sparse_bits(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    let table = Table { num_rows: 97, row_len: 3 };
    // Few rows travel as rows, all rows as the table; one rank has none at all.
    for (step, is_sparse) in [(31, true), (1, n == 1)] {
        let has = |position: usize, row: u64| {
            position != 1 && (row + position as u64).is_multiple_of(step)
        };
        let element = |position: usize, row: u64, column: usize| {
            if has(position, row) { rough(position, 3 * row as usize + column) } else { 0.0 }
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
            let union = (0..97).filter(|&row| (0..n).any(|position| has(position, row)));
            assert_eq!(*rows, union.collect::<Vec<u64>>(), "the union of the rows");
        }
        assert_eq!(matches!(found, Rows::Some { .. }), is_sparse, "every {step}th row");
        assert_same(&bits(&found.into_table(table)), &bits(&dense), "sparse sum");
    }
}

fn same_bits_every_time(comm: &Comm, _: Effort) {
    let input: Vec<f32> = (0..100).map(|index| rough(comm.group_rank(), index)).collect();
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
        let mut buffer: Vec<f32> = (0..100).map(|index| rough(comm.group_rank(), index)).collect();
        by_algorithm.all_reduce(&mut buffer, Reduction::Sum).expect(name);
        let own = bits(&buffer);
        let mut all = vec![0; 100 * n];
        comm.all_gather(&own, &mut all).expect("all-gather");
        for (position, theirs) in all.chunks(100).enumerate() {
            assert_same(theirs, &own, &format!("the bits of member {position} by {name}"));
        }
    });
}

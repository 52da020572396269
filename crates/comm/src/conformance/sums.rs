//! Promises of operations that add up.

use half::{bf16, f16};
use lockstep_schedule::{Op, SumTree};

use super::{Row, assert_same, counts, data, each_algorithm, roots, value};
use crate::comm::Comm;
use crate::element::{Element, Reduction};

pub(super) const CHECKS: &[Row] = &[
    ("an all-reduce adds up, by every algorithm, for every length", 32, all_reduce),
    ("a reduce-scatter gives every rank its part of the sum", 32, reduce_scatter),
    ("a reduce gives the root the sum and the others nothing", 16, reduce),
    ("every type can be added, averaged and compared", 8, every_type),
    ("memory of the arena gives the same as any other", 16, arena_or_not),
    ("sums have the bits of the canonical tree where that is asked for", 16, canonical_bits),
    ("a thousand repetitions give the same bits", 5, same_bits_every_time),
    ("all ranks get the same bits, by every algorithm", 8, same_bits_everywhere),
];

/// The sum of all members' element `index`, in the order of their positions.
fn sum<T: Element>(comm: &Comm, index: usize) -> T {
    (1..comm.num_members()).fold(value(0, index), |sum, p| T::add(sum, value(p, index)))
}

fn all_reduce(comm: &Comm) {
    each_algorithm(comm, Op::AllReduce, |comm, name| {
        for &count in counts(comm) {
            let what = format!("all-reduce of {count} by {name}");
            let expected: Vec<i32> = (0..count).map(|index| sum(comm, index)).collect();
            let mut buffer = data::<i32>(comm.position(), 0, count);
            let input = buffer.clone();
            comm.all_reduce(&mut buffer, Reduction::Sum).expect(&what);
            assert_same(&buffer, &expected, &what);
            let mut output = vec![-1; count];
            comm.all_reduce_into(&input, &mut output, Reduction::Sum).expect(&what);
            assert_same(&output, &expected, &what);
        }
    });
}

fn reduce_scatter(comm: &Comm) {
    each_algorithm(comm, Op::ReduceScatter, |comm, name| {
        for &count in counts(comm) {
            let what = format!("reduce-scatter of {count} by {name}");
            let part = comm.part_of(count, comm.position());
            let expected: Vec<f32> = part.clone().map(|index| sum(comm, index)).collect();
            let input = data::<f32>(comm.position(), 0, count);
            let mut output = vec![-1.0; part.len()];
            comm.reduce_scatter(&input, &mut output, Reduction::Sum).expect(&what);
            assert_same(&output, &expected, &what);
        }
    });
}

fn reduce(comm: &Comm) {
    for root in roots(comm) {
        each_algorithm(comm, Op::Reduce { root }, |comm, name| {
            for count in [0, 1, 10, 1000] {
                let what = format!("reduce of {count} to {root} by {name}");
                let input = data::<i64>(comm.position(), 0, count);
                let mut buffer = input.clone();
                comm.reduce(&mut buffer, root, Reduction::Sum).expect(&what);
                let sums: Vec<i64> = (0..count).map(|index| sum(comm, index)).collect();
                let expected = if comm.position() == root { &sums } else { &input };
                assert_same(&buffer, expected, &what);
            }
        });
    }
}

fn every_type(comm: &Comm) {
    of_type::<f32>(comm);
    of_type::<f64>(comm);
    of_type::<bf16>(comm);
    of_type::<f16>(comm);
    of_type::<i8>(comm);
    of_type::<i16>(comm);
    of_type::<i32>(comm);
    of_type::<i64>(comm);
    of_type::<u8>(comm);
    of_type::<u16>(comm);
    of_type::<u32>(comm);
    of_type::<u64>(comm);
}

fn of_type<T: Element>(comm: &Comm) {
    let n = comm.num_members();
    for reduction in Reduction::ALL {
        for count in [1, 17, 100, 1000] {
            let combine = |a: T, b: T| match reduction {
                Reduction::Sum | Reduction::Mean => T::add(a, b),
                Reduction::Max => T::max(a, b),
                Reduction::Min => T::min(a, b),
            };
            let expected: Vec<T> = (0..count)
                .map(|index| {
                    let all = (1..n).fold(value(0, index), |all, p| combine(all, value(p, index)));
                    if reduction == Reduction::Mean { T::divide(all, n) } else { all }
                })
                .collect();
            let what = format!("{reduction} of {count} {}", T::DTYPE);
            let mut buffer = data::<T>(comm.position(), 0, count);
            comm.all_reduce(&mut buffer, reduction).expect(&what);
            assert_same(&buffer, &expected, &what);
        }
    }
}

fn arena_or_not(comm: &Comm) {
    if !comm.shares_memory() {
        return;
    }
    for &count in counts(comm) {
        let expected: Vec<f32> = (0..count).map(|index| sum(comm, index)).collect();
        let mut buffer = comm.allocate::<f32>(count + 3).expect("the arena has room");
        // A part of a buffer, and only some ranks in the arena: neither makes a difference.
        let mut private = data::<f32>(comm.position(), 0, count);
        buffer[3..].copy_from_slice(&private);
        let is_private = comm.position().is_multiple_of(2);
        let mine: &mut [f32] = if is_private { &mut private } else { &mut buffer[3..] };
        comm.all_reduce(mine, Reduction::Sum).expect("all-reduce");
        assert_same(mine, &expected, &format!("{count} elements, half of them in the arena"));
    }
}

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

fn canonical_bits(comm: &Comm) {
    let tree = SumTree::canonical(comm.num_members());
    for count in [1, 10, 1000] {
        let expected: Vec<u32> = (0..count).map(|index| add_up(&tree, index).to_bits()).collect();
        let mut buffer: Vec<f32> = (0..count).map(|index| rough(comm.position(), index)).collect();
        comm.canonical().all_reduce(&mut buffer, Reduction::Sum).expect("all-reduce");
        assert_same(&bits(&buffer), &expected, "canonical sum");
    }
}

fn same_bits_every_time(comm: &Comm) {
    let input: Vec<f32> = (0..100).map(|index| rough(comm.position(), index)).collect();
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

fn same_bits_everywhere(comm: &Comm) {
    let n = comm.num_members();
    each_algorithm(comm, Op::AllReduce, |by_algorithm, name| {
        let mut buffer: Vec<f32> = (0..100).map(|index| rough(comm.position(), index)).collect();
        by_algorithm.all_reduce(&mut buffer, Reduction::Sum).expect(name);
        let own = bits(&buffer);
        let mut all = vec![0; 100 * n];
        comm.all_gather(&own, &mut all).expect("all-gather");
        for (position, theirs) in all.chunks(100).enumerate() {
            assert_same(theirs, &own, &format!("the bits of member {position} by {name}"));
        }
    });
}

//! Checks of reductions.

use lockstep_comm::{Comm, Element, Reduction};
use lockstep_schedule::Op;

use super::{Effort, LONG, Row, assert_same, counts, data, each_algorithm, roots, value};

pub(super) const CHECKS: &[Row] = &[
    ("an all-reduce sums with every algorithm and length", 32, all_reduce),
    ("a reduce-scatter gives every rank its part of the sum", 32, reduce_scatter),
    ("a reduce gives the sum to the root only", 16, reduce),
    ("a long vector is summed like a short one", 5, long_vector),
    ("arena and private memory give the same result", 16, arena_or_not),
];

/// Sum of element `index` over all ranks, in rank order.
fn sum<T: Element>(comm: &Comm, index: usize) -> T {
    (1..comm.group_size()).fold(value(0, index), |sum, p| T::add(sum, value(p, index)))
}

fn all_reduce(comm: &Comm, effort: Effort) {
    each_algorithm(comm, Op::AllReduce, |comm, name| {
        for &count in counts(comm, effort) {
            let what = format!("all-reduce of {count} by {name}");
            let expected: Vec<i32> = (0..count).map(|index| sum(comm, index)).collect();
            let mut buffer = data::<i32>(comm.group_rank(), 0, count);
            let input = buffer.clone();
            comm.all_reduce(&mut buffer, Reduction::Sum).expect(&what);
            assert_same(&buffer, &expected, &what);
            let mut output = vec![-1; count];
            comm.all_reduce_into(&input, &mut output, Reduction::Sum).expect(&what);
            assert_same(&output, &expected, &what);
        }
    });
}

fn reduce_scatter(comm: &Comm, effort: Effort) {
    each_algorithm(comm, Op::ReduceScatter, |comm, name| {
        for &count in counts(comm, effort) {
            let what = format!("reduce-scatter of {count} by {name}");
            let part = comm.part_of(count, comm.group_rank());
            let expected: Vec<f32> = part.clone().map(|index| sum(comm, index)).collect();
            let input = data::<f32>(comm.group_rank(), 0, count);
            let mut output = vec![-1.0; part.len()];
            comm.reduce_scatter(&input, &mut output, Reduction::Sum).expect(&what);
            assert_same(&output, &expected, &what);
        }
    });
}

fn reduce(comm: &Comm, effort: Effort) {
    for root in roots(comm, effort) {
        each_algorithm(comm, Op::Reduce { root }, |comm, name| {
            for &count in counts(comm, effort) {
                let what = format!("reduce of {count} to {root} by {name}");
                let input = data::<i64>(comm.group_rank(), 0, count);
                let mut buffer = input.clone();
                comm.reduce(&mut buffer, root, Reduction::Sum).expect(&what);
                let sums: Vec<i64> = (0..count).map(|index| sum(comm, index)).collect();
                let expected = if comm.group_rank() == root { &sums } else { &input };
                assert_same(&buffer, expected, &what);
            }
        });
    }
}

fn long_vector(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    each_algorithm(comm, Op::AllReduce, |comm, name| {
        let mut buffer = vec![comm.group_rank() as u32; LONG];
        comm.all_reduce(&mut buffer, Reduction::Sum).expect(name);
        let expected = (n * (n - 1) / 2) as u32;
        let wrong = buffer.iter().position(|&sum| sum != expected);
        assert_eq!(wrong, None, "all-reduce of {LONG} by {name}");
    });
    let own = comm.part_of(LONG, comm.group_rank());
    let mut part = vec![0_u8; own.len()];
    comm.reduce_scatter(&vec![2; LONG], &mut part, Reduction::Min).expect("reduce-scatter");
    assert!(part.iter().all(|&least| least == 2), "reduce-scatter of {LONG}");
    let mut whole = vec![comm.group_rank() as u16; LONG];
    comm.reduce(&mut whole, n - 1, Reduction::Max).expect("reduce");
    let expected = if comm.group_rank() == n - 1 { n - 1 } else { comm.group_rank() } as u16;
    assert!(whole.iter().all(|&largest| largest == expected), "reduce of {LONG}");
}

fn arena_or_not(comm: &Comm, effort: Effort) {
    if !comm.shares_memory() {
        return;
    }
    for &count in counts(comm, effort) {
        let expected: Vec<f32> = (0..count).map(|index| sum(comm, index)).collect();
        let mut buffer = comm.allocate::<f32>(count + 3).expect("the arena has room");
        // A part of a buffer, on some ranks in the arena, on others in private memory.
        let mut private = data::<f32>(comm.group_rank(), 0, count);
        buffer[3..].copy_from_slice(&private);
        let is_private = comm.group_rank().is_multiple_of(2);
        let mine: &mut [f32] = if is_private { &mut private } else { &mut buffer[3..] };
        comm.all_reduce(mine, Reduction::Sum).expect("all-reduce");
        assert_same(mine, &expected, &format!("{count} elements, half of them in the arena"));
    }
}

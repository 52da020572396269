//! Checks of in-place collectives.

use lockstep_comm::{Comm, CommError, Element, Reduction};
use lockstep_schedule::Op;

use super::{Effort, Row, assert_same, counts, data, each_algorithm, roots, value};

pub(super) const CHECKS: &[Row] = &[
    ("an all-gather fills in the parts of the other ranks", 8, all_gather),
    ("a reduce-scatter replaces the part of the rank", 8, reduce_scatter),
    ("a scatter and a gather work in place", 8, scatter_and_gather),
];

/// Runs a call in private memory and in the arena; both must produce `expected`.
fn in_both_memories<T: Element>(
    comm: &Comm,
    (data, expected): (&[T], &[T]),
    what: &str,
    call: impl Fn(&mut [T]) -> Result<(), CommError>,
) {
    let mut private = data.to_vec();
    call(&mut private).expect(what);
    assert_same(&private, expected, what);
    let mut shared = comm.allocate::<T>(data.len()).expect("the arena has room");
    shared.copy_from_slice(data);
    call(&mut shared).expect(what);
    assert_same(&shared, expected, what);
}

fn all_gather(comm: &Comm, effort: Effort) {
    each_algorithm(comm, Op::AllGather, |comm, name| {
        for &count in counts(comm, effort) {
            let what = format!("all-gather of {count} in place by {name}");
            let mut own = vec![u32::MAX; count];
            let part = comm.part_of(count, comm.group_rank());
            own[part.clone()].copy_from_slice(&data::<u32>(0, part.start, part.len()));
            let all = data::<u32>(0, 0, count);
            in_both_memories(comm, (&own, &all), &what, |data| comm.all_gather_in_place(data));
        }
    });
}

fn reduce_scatter(comm: &Comm, effort: Effort) {
    let n = comm.group_size();
    each_algorithm(comm, Op::ReduceScatter, |comm, name| {
        for &count in counts(comm, effort) {
            let what = format!("reduce-scatter of {count} in place by {name}");
            let own = data::<i64>(comm.group_rank(), 0, count);
            let mut expected = own.clone();
            for index in comm.part_of(count, comm.group_rank()) {
                expected[index] = (0..n).map(|p| value::<i64>(p, index)).sum();
            }
            let sum = |data: &mut [i64]| comm.reduce_scatter_in_place(data, Reduction::Sum);
            in_both_memories(comm, (&own, &expected), &what, sum);
        }
    });
}

fn scatter_and_gather(comm: &Comm, effort: Effort) {
    for root in roots(comm, effort) {
        each_algorithm(comm, Op::Gather { root }, |comm, name| {
            for count in [0, 1, 10, 1000] {
                let what = format!("scatter and gather of {count} in place, root {root}, {name}");
                let me = comm.group_rank();
                let whole = data::<u8>(root, 0, count);
                let part = comm.part_of(count, me);
                let mut scattered = vec![0; count];
                scattered[part.clone()].copy_from_slice(&whole[part]);
                let nothing = vec![0; count];
                let before = if me == root { &whole } else { &nothing };
                let after = if me == root { &whole } else { &scattered };
                let scatter = |data: &mut [u8]| comm.scatter_in_place(data, root);
                in_both_memories(comm, (before, after), &what, scatter);
                let after = if me == root { &whole } else { &scattered };
                let gather = |data: &mut [u8]| comm.gather_in_place(data, root);
                in_both_memories(comm, (&scattered, after), &what, gather);
            }
        });
    }
}

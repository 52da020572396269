//! Checks of every element type.

use half::{bf16, f16};

use lockstep_comm::{Comm, Element, Reduction};

use super::{Effort, Row, assert_same, data, value};

pub(super) const CHECKS: &[Row] = &[
    ("every type can be summed, averaged and compared", 8, every_type_reduces),
    ("every type can be moved by every collective", 8, every_type_moves),
];

/// Calls a generic function for every type.
macro_rules! for_every_type {
    ($function:ident($($argument:expr),*)) => {
        $function::<f32>($($argument),*);
        $function::<f64>($($argument),*);
        $function::<bf16>($($argument),*);
        $function::<f16>($($argument),*);
        $function::<i8>($($argument),*);
        $function::<i16>($($argument),*);
        $function::<i32>($($argument),*);
        $function::<i64>($($argument),*);
        $function::<u8>($($argument),*);
        $function::<u16>($($argument),*);
        $function::<u32>($($argument),*);
        $function::<u64>($($argument),*);
    };
}

fn every_type_reduces(comm: &Comm, effort: Effort) {
    let is_small = comm.group_size() <= 5 || effort == Effort::Thorough;
    let counts: &[usize] = if is_small { &[1, 17, 100, 1000] } else { &[19] };
    for_every_type!(reduces(comm, counts));
}

/// Expected reduction of element `index`.
fn reduced<T: Element>(comm: &Comm, reduction: Reduction, index: usize) -> T {
    let n = comm.group_size();
    let combine = |a: T, b: T| match reduction {
        Reduction::Sum | Reduction::Mean => T::add(a, b),
        Reduction::Max => T::max(a, b),
        Reduction::Min => T::min(a, b),
    };
    let all = (1..n).fold(value(0, index), |all, p| combine(all, value(p, index)));
    if reduction == Reduction::Mean { T::divide(all, n) } else { all }
}

fn reduces<T: Element>(comm: &Comm, counts: &[usize]) {
    let (n, me) = (comm.group_size(), comm.group_rank());
    for reduction in Reduction::ALL {
        for &count in counts {
            let what = format!("{reduction} of {count} {}", T::DTYPE);
            let expected: Vec<T> = (0..count).map(|i| reduced(comm, reduction, i)).collect();
            let input = data::<T>(me, 0, count);
            let mut buffer = input.clone();
            comm.all_reduce(&mut buffer, reduction).expect(&what);
            assert_same(&buffer, &expected, &what);
            let own = comm.part_of(count, me);
            let mut part = vec![T::from_small(0); own.len()];
            comm.reduce_scatter(&input, &mut part, reduction).expect(&what);
            assert_same(&part, &expected[own], &what);
            let mut buffer = input.clone();
            comm.reduce(&mut buffer, n / 2, reduction).expect(&what);
            assert_same(&buffer, if me == n / 2 { &expected } else { &input }, &what);
        }
    }
}

fn every_type_moves(comm: &Comm, _: Effort) {
    for_every_type!(moves(comm));
}

fn moves<T: Element>(comm: &Comm) {
    let (n, me, name) = (comm.group_size(), comm.group_rank(), T::DTYPE.name());
    let zeros = |count: usize| vec![T::from_small(0); count];
    let each = 7;
    let mut buffer = data::<T>(me, 0, each);
    comm.broadcast(&mut buffer, n - 1).expect(name);
    assert_same(&buffer, &data::<T>(n - 1, 0, each), name);
    let own = data::<T>(0, each * me, each);
    let mut all = zeros(each * n);
    comm.all_gather(&own, &mut all).expect(name);
    assert_same(&all, &data::<T>(0, 0, each * n), name);
    let mut at_root = zeros(each * n);
    comm.gather(&own, &mut at_root, 0).expect(name);
    if me == 0 {
        assert_same(&at_root, &all, name);
    }
    let mut scattered = zeros(each);
    comm.scatter(&all, &mut scattered, 0).expect(name);
    assert_same(&scattered, &own, name);
    let mut moved = zeros(each * n);
    comm.all_to_all(&data::<T>(me, 0, each * n), &mut moved).expect(name);
    let expected: Vec<T> = (0..n).flat_map(|source| data(source, me * each, each)).collect();
    assert_same(&moved, &expected, name);
    let counts: Vec<usize> = (0..n).map(|target| target % 3).collect();
    let mut arrived = Vec::new();
    let total = counts.iter().sum();
    comm.all_to_all_v(&data::<T>(me, 0, total), &counts, &mut arrived).expect(name);
    let start = (0..me).map(|target| target % 3).sum();
    let expected: Vec<T> = (0..n).flat_map(|source| data(source, start, me % 3)).collect();
    assert_same(&arrived, &expected, name);
    if n > 1 {
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        comm.send_recv(&own, next, &mut scattered, before, 3).expect(name);
        assert_same(&scattered, &data::<T>(0, each * before, each), name);
    }
    let mut copied = zeros(each);
    comm.copy(&own, &mut copied).expect(name);
    assert_same(&copied, &own, name);
}

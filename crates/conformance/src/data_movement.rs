//! Checks of collectives that move data.

use lockstep_comm::{Comm, Reduction};
use lockstep_mesh::Group;
use lockstep_schedule::Op;

use super::{Effort, LONG, Row, assert_same, counts, data, each_algorithm, roots};

pub(super) const CHECKS: &[Row] = &[
    ("an all-gather gives every rank all parts", 32, all_gather),
    ("a broadcast gives every rank the data of any root", 16, broadcast),
    ("a scatter and a gather are each other's inverse", 16, scatter_and_gather),
    ("an all-to-all is a transposition", 32, all_to_all),
    ("an all-to-all-v moves the requested counts", 16, all_to_all_v),
    ("an all-gather-v gives every rank all parts", 8, all_gather_v),
    ("a long vector is moved like a short one", 5, long_vector),
    ("a barrier holds with every algorithm", 32, barrier),
    ("groups do not disturb each other", 16, groups),
];

fn all_gather(comm: &Comm, effort: Effort) {
    each_algorithm(comm, Op::AllGather, |comm, name| {
        for &count in counts(comm, effort) {
            let what = format!("all-gather of {count} by {name}");
            // The expected value of an element does not depend on the rank that sends it.
            let part = comm.part_of(count, comm.group_rank());
            let input = data::<u16>(0, part.start, part.len());
            let mut output = vec![0; count];
            comm.all_gather(&input, &mut output).expect(&what);
            assert_same(&output, &data::<u16>(0, 0, count), &what);
        }
    });
}

fn broadcast(comm: &Comm, effort: Effort) {
    for root in roots(comm, effort) {
        each_algorithm(comm, Op::Broadcast { root }, |comm, name| {
            for &count in counts(comm, effort) {
                let what = format!("broadcast of {count} from {root} by {name}");
                let mut buffer = data::<f64>(comm.group_rank(), 0, count);
                comm.broadcast(&mut buffer, root).expect(&what);
                assert_same(&buffer, &data::<f64>(root, 0, count), &what);
            }
        });
    }
}

fn scatter_and_gather(comm: &Comm, effort: Effort) {
    for root in roots(comm, effort) {
        each_algorithm(comm, Op::Scatter { root }, |comm, name| {
            for &count in counts(comm, effort) {
                let what = format!("scatter and gather of {count}, root {root}, by {name}");
                let part = comm.part_of(count, comm.group_rank());
                let mut whole = vec![0_i16; count];
                if comm.group_rank() == root {
                    whole = data(root, 0, count);
                }
                let mut own = vec![-1; part.len()];
                comm.scatter(&whole, &mut own, root).expect(&what);
                assert_same(&own, &data::<i16>(root, part.start, part.len()), &what);
                let mut back = vec![-1; count];
                comm.gather(&own, &mut back, root).expect(&what);
                let expected =
                    if comm.group_rank() == root { whole.clone() } else { vec![-1; count] };
                assert_same(&back, &expected, &what);
            }
        });
    }
}

fn all_to_all(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    each_algorithm(comm, Op::AllToAll, |comm, name| {
        for each in [0, 1, 10, 333] {
            let what = format!("all-to-all of {each} for each by {name}");
            let input = data::<u32>(comm.group_rank(), 0, each * n);
            let mut output = vec![0; each * n];
            comm.all_to_all(&input, &mut output).expect(&what);
            let expected: Vec<u32> =
                (0..n).flat_map(|source| data(source, comm.group_rank() * each, each)).collect();
            assert_same(&output, &expected, &what);
        }
    });
}

fn all_to_all_v(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    // Some pairs exchange nothing, others a lot.
    let count = |source: usize, target: usize| (source * 3 + target * 5) % 4 * 25;
    let start = |source: usize, target: usize| (0..target).map(|t| count(source, t)).sum();
    each_algorithm(comm, Op::AllToAll, |comm, name| {
        let me = comm.group_rank();
        let counts: Vec<usize> = (0..n).map(|target| count(me, target)).collect();
        let input = data::<i32>(me, 0, counts.iter().sum());
        let mut output = Vec::new();
        let arrived = comm.all_to_all_v(&input, &counts, &mut output).expect(name);
        let expected: Vec<i32> =
            (0..n).flat_map(|source| data(source, start(source, me), count(source, me))).collect();
        assert_same(&output, &expected, &format!("uneven all-to-all by {name}"));
        assert_eq!(arrived, (0..n).map(|source| count(source, me)).collect::<Vec<_>>());
    });
}

fn all_gather_v(comm: &Comm, _: Effort) {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let count = |rank: usize| rank * 7 % 5 * 30;
    let expected: Vec<f64> = (0..n).flat_map(|rank| data(rank, 0, count(rank))).collect();
    each_algorithm(comm, Op::AllGather, |comm, name| {
        let mut output = Vec::new();
        let lengths = comm.all_gather_v(&data::<f64>(me, 0, count(me)), &mut output).expect(name);
        assert_same(&output, &expected, &format!("uneven all-gather by {name}"));
        assert_eq!(lengths, (0..n).map(count).collect::<Vec<_>>());
    });
}

fn long_vector(comm: &Comm, _: Effort) {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let own = comm.part_of(LONG, me);
    let whole = data::<u16>(0, 0, LONG);
    let mut all = vec![0; LONG];
    comm.all_gather(&whole[own.clone()], &mut all).expect("all-gather");
    assert_same(&all, &whole, "all-gather");
    let mut broadcast_data = if me == n - 1 { whole.clone() } else { vec![0; LONG] };
    comm.broadcast(&mut broadcast_data, n - 1).expect("broadcast");
    assert_same(&broadcast_data, &whole, "broadcast");
    let mut part = vec![0; own.len()];
    comm.scatter(&whole, &mut part, 0).expect("scatter");
    assert_same(&part, &whole[own], "scatter");
    let mut at_root = vec![0; LONG];
    comm.gather(&part, &mut at_root, 0).expect("gather");
    assert_same(&at_root, if me == 0 { &whole } else { &at_root }, "gather");
    let input = vec![me as u8; LONG / n * n];
    let mut moved = vec![0; input.len()];
    comm.all_to_all(&input, &mut moved).expect("all-to-all");
    for (source, part) in moved.chunks(LONG / n).enumerate() {
        assert!(part.iter().all(|&byte| usize::from(byte) == source), "all-to-all from {source}");
    }
}

fn barrier(comm: &Comm, _: Effort) {
    each_algorithm(comm, Op::Barrier, |comm, name| {
        for _ in 0..20 {
            comm.barrier().expect(name);
        }
    });
}

fn groups(comm: &Comm, _: Effort) {
    let ranks = comm.ranks();
    let half =
        |parity: usize| -> Vec<_> { ranks.iter().copied().skip(parity).step_by(2).collect() };
    let partition: Vec<Group> =
        [half(0), half(1)].into_iter().filter(|ranks| !ranks.is_empty()).map(Group::new).collect();
    let own = comm.split(&partition, "parity").expect("split");
    assert_eq!(own.group_rank(), comm.group_rank() / 2);
    for _ in 0..50 {
        let mut small = [comm.group_rank() as u32];
        own.all_reduce(&mut small, Reduction::Sum).expect("all-reduce of the half");
        let parity = comm.group_rank() % 2;
        let expected: usize = (0..comm.group_size()).skip(parity).step_by(2).sum();
        assert_eq!(small, [expected as u32]);
        let mut all = [1_u32];
        comm.all_reduce(&mut all, Reduction::Sum).expect("all-reduce of the whole");
        assert_eq!(all, [comm.group_size() as u32]);
    }
}

//! Promises of operations that only move data.

use lockstep_mesh::Group;
use lockstep_schedule::Op;

use super::{Row, assert_same, counts, data, each_algorithm, roots};
use crate::comm::Comm;
use crate::element::Reduction;

pub(super) const CHECKS: &[Row] = &[
    ("an all-gather gives every rank everybody's part", 32, all_gather),
    ("a broadcast gives every rank the root's data, whoever the root is", 16, broadcast),
    ("a scatter and a gather are each other's inverse", 16, scatter_and_gather),
    ("an all-to-all is a transposition", 32, all_to_all),
    ("an uneven all-to-all moves what was asked for", 16, all_to_all_v),
    ("a barrier holds, by every algorithm", 32, barrier),
    ("messages match by tag, and in order for one tag", 16, tags),
    ("messages longer than any buffer get through both ways at once", 8, long_messages),
    ("groups do not disturb each other", 16, groups),
];

fn all_gather(comm: &Comm) {
    each_algorithm(comm, Op::AllGather, |comm, name| {
        for &count in counts(comm) {
            let what = format!("all-gather of {count} by {name}");
            // Element i of the result is known to everybody, whoever brings it.
            let part = comm.part_of(count, comm.position());
            let input = data::<u16>(0, part.start, part.len());
            let mut output = vec![0; count];
            comm.all_gather(&input, &mut output).expect(&what);
            assert_same(&output, &data::<u16>(0, 0, count), &what);
        }
    });
}

fn broadcast(comm: &Comm) {
    for root in roots(comm) {
        each_algorithm(comm, Op::Broadcast { root }, |comm, name| {
            for count in [0, 1, 10, 1000] {
                let what = format!("broadcast of {count} from {root} by {name}");
                let mut buffer = data::<f64>(comm.position(), 0, count);
                comm.broadcast(&mut buffer, root).expect(&what);
                assert_same(&buffer, &data::<f64>(root, 0, count), &what);
            }
        });
    }
}

fn scatter_and_gather(comm: &Comm) {
    for root in roots(comm) {
        each_algorithm(comm, Op::Scatter { root }, |comm, name| {
            for count in [0, 1, 10, 1000] {
                let what = format!("scatter and gather of {count}, root {root}, by {name}");
                let part = comm.part_of(count, comm.position());
                let mut whole = vec![0_i16; count];
                if comm.position() == root {
                    whole = data(root, 0, count);
                }
                let mut own = vec![-1; part.len()];
                comm.scatter(&whole, &mut own, root).expect(&what);
                assert_same(&own, &data::<i16>(root, part.start, part.len()), &what);
                let mut back = vec![-1; count];
                comm.gather(&own, &mut back, root).expect(&what);
                let expected =
                    if comm.position() == root { whole.clone() } else { vec![-1; count] };
                assert_same(&back, &expected, &what);
            }
        });
    }
}

fn all_to_all(comm: &Comm) {
    let n = comm.num_members();
    each_algorithm(comm, Op::AllToAll, |comm, name| {
        for each in [0, 1, 10, 333] {
            let what = format!("all-to-all of {each} for each by {name}");
            let input = data::<u32>(comm.position(), 0, each * n);
            let mut output = vec![0; each * n];
            comm.all_to_all(&input, &mut output).expect(&what);
            let expected: Vec<u32> =
                (0..n).flat_map(|source| data(source, comm.position() * each, each)).collect();
            assert_same(&output, &expected, &what);
        }
    });
}

fn all_to_all_v(comm: &Comm) {
    let n = comm.num_members();
    // Some pairs exchange nothing, others a lot.
    let count = |source: usize, target: usize| (source * 3 + target * 5) % 4 * 25;
    let start = |source: usize, target: usize| (0..target).map(|t| count(source, t)).sum();
    each_algorithm(comm, Op::AllToAll, |comm, name| {
        let me = comm.position();
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

fn barrier(comm: &Comm) {
    each_algorithm(comm, Op::Barrier, |comm, name| {
        for _ in 0..20 {
            comm.barrier().expect(name);
        }
    });
}

fn tags(comm: &Comm) {
    let n = comm.num_members();
    if n == 1 {
        return;
    }
    let (next, before) = ((comm.position() + 1) % n, (comm.position() + n - 1) % n);
    for (tag, content) in [(7, 70_u32), (8, 80), (7, 71)] {
        comm.send(&[content + comm.position() as u32], next, tag).expect("send");
    }
    comm.signal(next, 7).expect("signal");
    for (tag, content) in [(8, 80), (7, 70), (7, 71)] {
        let mut arrived = [0_u32];
        comm.recv(&mut arrived, before, tag).expect("recv");
        assert_eq!(arrived, [content + before as u32], "tag {tag}");
    }
    comm.wait_for(before, 7).expect("wait");
}

fn long_messages(comm: &Comm) {
    let n = comm.num_members();
    if n == 1 {
        return;
    }
    let (next, before) = ((comm.position() + 1) % n, (comm.position() + n - 1) % n);
    let leaving = data::<u64>(comm.position(), 0, 100_003);
    let mut arriving = vec![0; leaving.len()];
    comm.send_recv(&leaving, next, &mut arriving, before, 1).expect("send and receive");
    assert_same(&arriving, &data::<u64>(before, 0, leaving.len()), "long message");
}

fn groups(comm: &Comm) {
    let members = comm.members();
    let half =
        |parity: usize| -> Vec<_> { members.iter().copied().skip(parity).step_by(2).collect() };
    let partition: Vec<Group> =
        [half(0), half(1)].into_iter().filter(|ranks| !ranks.is_empty()).map(Group::new).collect();
    let own = comm.split(&partition, "parity").expect("split");
    assert_eq!(own.position(), comm.position() / 2);
    for _ in 0..50 {
        let mut small = [comm.position() as u32];
        own.all_reduce(&mut small, Reduction::Sum).expect("all-reduce of the half");
        let parity = comm.position() % 2;
        let expected: usize = (0..comm.num_members()).skip(parity).step_by(2).sum();
        assert_eq!(small, [expected as u32]);
        let mut all = [1_u32];
        comm.all_reduce(&mut all, Reduction::Sum).expect("all-reduce of the whole");
        assert_eq!(all, [comm.num_members() as u32]);
    }
}

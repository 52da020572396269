//! Checks of one-sided access and of the counters.

use lockstep_comm::{Comm, Reduction, Window, WindowLocation};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Algorithm, Layout, Op, Schedule, verify};

use super::{Effort, Row, data};

pub(super) const CHECKS: &[Row] = &[
    ("a get returns what was put into a window", 16, put_and_get),
    ("a nonblocking put completes before a later signal", 16, put_then_signal),
    ("the counters equal the verified schedule", 5, counters),
];

fn put_and_get(comm: &Comm, _: Effort) {
    if !comm.shares_memory() {
        return;
    }
    let n = comm.group_size();
    let me = comm.group_rank();
    let mut buffer = comm.allocate::<u32>(n + 1).expect("the arena has room");
    buffer[n] = 1000 + me as u32;
    let window = Window::open(comm, buffer).expect("open");
    for target in 0..n {
        window.put(target, me, &[(10 * target + me) as u32]).expect("put");
    }
    comm.barrier().expect("barrier");
    let expected: Vec<u32> = (0..n).map(|source| (10 * me + source) as u32).collect();
    let mut own = vec![0; n];
    window.get(me, 0, &mut own).expect("get");
    assert_eq!(own, expected);
    for source in 0..n {
        let mut got = [0];
        window.get(source, n, &mut got).expect("get");
        assert_eq!(got, [1000 + source as u32]);
    }
    assert!(window.get(0, n, &mut [0, 0]).is_err(), "past the end");
    assert!(window.put(n, 0, &[0]).is_err(), "there is no such rank");
    assert!(window.get(0, usize::MAX, &mut [0]).is_err(), "past every end");
    comm.barrier().expect("barrier");
    // From the last element of the next rank to the own first one, without a buffer in between.
    let next = WindowLocation { group_rank: (me + 1) % n, start: n };
    window.copy(next, WindowLocation { group_rank: me, start: 0 }, 1).expect("copy");
    assert!(window.copy(next, next, 2).is_err(), "past the end");
    let buffer = window.close().expect("close");
    assert_eq!(buffer[0], 1000 + ((me + 1) % n) as u32);
}

/// Nonblocking puts and gets keep their order with signals.
fn put_then_signal(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if !comm.shares_memory() || n == 1 {
        return;
    }
    let me = comm.group_rank();
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let buffer = comm.allocate::<u64>(5000).expect("the arena has room");
    let window = Window::open(comm, buffer).expect("open");
    let arrived = comm.start_wait_for(before, 4).expect("start");
    let found = window.start_get(me, 0, vec![0; 5000]).expect("start");
    let put = window.start_put(next, 0, vec![me as u64 + 1; 5000]).expect("start");
    let signalled = comm.start_signal(next, 4).expect("start");
    put.finish().expect("put");
    signalled.finish().expect("signal");
    arrived.finish().expect("wait");
    assert_eq!(found.finish().expect("get"), vec![before as u64 + 1; 5000]);
    window.close().expect("close");
}

fn counters(comm: &Comm, _: Effort) {
    let last = comm.group_size() - 1;
    let ops = [
        Op::AllReduce,
        Op::ReduceScatter,
        Op::AllGather,
        Op::Broadcast { root: last },
        Op::Reduce { root: last },
        Op::Scatter { root: 0 },
        Op::Gather { root: 0 },
        Op::AllToAll,
        Op::Barrier,
    ];
    for (op, &algorithm) in ops.iter().flat_map(|op| algorithms(*op).iter().map(move |a| (op, a))) {
        let Ok(schedule) = build(*op, algorithm, &GroupSpec::new(comm.group_size())) else {
            continue;
        };
        if comm.offers(*op, algorithm) {
            count_one(comm, *op, algorithm, &schedule);
        }
    }
}

fn count_one(comm: &Comm, op: Op, algorithm: Algorithm, schedule: &Schedule) {
    let report = verify(schedule).expect("every schedule verifies");
    let n = comm.group_size();
    let count = if op == Op::AllToAll { 100 * n * n } else { 1001 };
    let layout = Layout::even(schedule, count);
    let verified = &report.ranks[comm.group_rank()];
    let before = comm.counters().of(op);
    call(&comm.using(algorithm), op, count);
    let after = comm.counters().of(op);
    let counted = [
        after.calls - before.calls,
        after.traffic.messages - before.traffic.messages,
        after.traffic.sent_bytes - before.traffic.sent_bytes,
        after.traffic.received_bytes - before.traffic.received_bytes,
        after.traffic.read_bytes - before.traffic.read_bytes,
        after.traffic.written_bytes - before.traffic.written_bytes,
    ];
    let bytes = |len: usize| 4 * len as u64;
    let expected = [
        1,
        verified.num_messages as u64,
        bytes(verified.sent_len(&layout)),
        bytes(verified.received_len(&layout)),
        bytes(verified.read_len(&layout)),
        bytes(verified.written_len(&layout)),
    ];
    assert_eq!(
        counted, expected,
        "{op} by {algorithm}: calls, messages, sent, received, read, written"
    );
}

/// Runs a collective on a vector of `count` elements, as a layout counts them.
fn call(comm: &Comm, op: Op, count: usize) {
    let own = comm.part_of(count, comm.group_rank()).len();
    let mut whole = data::<f32>(comm.group_rank(), 0, count);
    let mut part = vec![0.0; own];
    let result = match op {
        Op::AllReduce => comm.all_reduce(&mut whole, Reduction::Sum),
        Op::ReduceScatter => comm.reduce_scatter(&whole, &mut part, Reduction::Sum),
        Op::AllGather => comm.all_gather(&part, &mut whole),
        Op::Broadcast { root } => comm.broadcast(&mut whole, root),
        Op::Reduce { root } => comm.reduce(&mut whole, root, Reduction::Sum),
        Op::Scatter { root } => comm.scatter(&whole, &mut part, root),
        Op::Gather { root } => comm.gather(&part, &mut whole, root),
        Op::AllToAll => comm.all_to_all(&whole[..own], &mut part),
        Op::Barrier => comm.barrier(),
    };
    result.unwrap_or_else(|error| panic!("{error}"));
}

//! Promises of one-sided access and of the counters.

use lockstep_schedule::collective::{Team, algorithms, build};
use lockstep_schedule::{Layout, Op, verify};

use super::{Row, data};
use crate::comm::Comm;
use crate::element::Reduction;
use crate::window::Window;

pub(super) const CHECKS: &[Row] = &[
    ("what was put into a window can be got from it", 16, put_and_get),
    ("the counters count what the proof of the schedule says", 5, counters),
];

fn put_and_get(comm: &Comm) {
    if !comm.shares_memory() {
        return;
    }
    let n = comm.num_members();
    let me = comm.position();
    let mut buffer = comm.allocate::<u32>(n + 1).expect("the arena has room");
    buffer[n] = 1000 + me as u32;
    let mut window = Window::open(comm, buffer).expect("open");
    for target in 0..n {
        window.put(target, me, &[(10 * target + me) as u32]).expect("put");
    }
    comm.barrier().expect("barrier");
    let expected: Vec<u32> = (0..n).map(|source| (10 * me + source) as u32).collect();
    assert_eq!(window.own()[..n], expected);
    for source in 0..n {
        let mut got = [0];
        window.get(source, n, &mut got).expect("get");
        assert_eq!(got, [1000 + source as u32]);
    }
    assert!(window.get(0, n, &mut [0, 0]).is_err(), "past the end");
    window.close().expect("close");
}

fn counters(comm: &Comm) {
    let n = comm.num_members();
    let count = 1001;
    for &algorithm in algorithms(Op::AllReduce) {
        let Ok(schedule) = build(Op::AllReduce, algorithm, &Team::new(n)) else { continue };
        if !comm.offers(Op::AllReduce, algorithm) {
            continue;
        }
        let report = verify(&schedule).expect("every schedule is proven");
        let layout = Layout::even(&schedule, count);
        let said = &report.ranks[comm.position()];
        let before = comm.counters().of(Op::AllReduce);
        let mut buffer = data::<f32>(comm.position(), 0, count);
        comm.using(algorithm).all_reduce(&mut buffer, Reduction::Sum).expect("all-reduce");
        let after = comm.counters().of(Op::AllReduce);
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
            said.num_messages as u64,
            bytes(said.sent_len(&layout)),
            bytes(said.received_len(&layout)),
            bytes(said.read_len(&layout)),
            bytes(said.written_len(&layout)),
        ];
        assert_eq!(
            counted, expected,
            "{algorithm}: calls, messages, sent, received, read, written"
        );
    }
}

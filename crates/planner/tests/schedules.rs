//! What the planner counts from a schedule is what the schedule's own proof says.

use lockstep_config::units::Bytes;
use lockstep_planner::traffic::{Call, Chosen, Lengths, Moved, Wires};
use lockstep_schedule::collective::{Team, algorithms, build};
use lockstep_schedule::{Addends, Layout, Op, verify};

#[test]
fn bytes_are_those_of_the_proof() {
    for op in [Op::AllReduce, Op::ReduceScatter, Op::AllGather, Op::AllToAll] {
        for &algorithm in algorithms(op) {
            for num_ranks in [1, 2, 3, 4, 8] {
                let Ok(schedule) = build(op, algorithm, &Team::new(num_ranks)) else { continue };
                let report = verify(&schedule).expect("every schedule is right");
                let layout = Layout::even(&schedule, 1000);
                for (rank, proven) in report.ranks.iter().enumerate() {
                    let moved = Moved::of(&schedule, &layout, Bytes(4), rank);
                    let bytes = |len: usize| Bytes(4 * len as u64);
                    assert_eq!(moved.sent, bytes(proven.sent_len(&layout)), "{op}, {algorithm}");
                    assert_eq!(moved.received, bytes(proven.received_len(&layout)));
                    assert_eq!(moved.read, bytes(proven.read_len(&layout)), "{op}, {algorithm}");
                    assert_eq!(moved.written, bytes(proven.written_len(&layout)));
                    assert_eq!(moved.messages, proven.num_messages as u64);
                }
            }
        }
    }
}

#[test]
fn memory_is_used_where_it_is_and_messages_where_it_is_not() {
    let lengths = Lengths::Even(1 << 20);
    let call = Call::once(Op::AllReduce, lengths);
    let addends = Addends::one_each(4);
    for (wires, has_messages) in [(Wires::memory(4), false), (Wires::messages(4), true)] {
        let mut chosen = Chosen::new(&wires, &addends);
        assert_eq!(chosen.of(&call).needs_messages(), has_messages);
    }
}

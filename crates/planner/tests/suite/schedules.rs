//! Traffic counted by the planner against the report of each schedule's proof.

use lockstep_config::units::Bytes;
use lockstep_planner::traffic::{Call, Interconnect, Lengths, SelectedSchedules, TrafficCounts};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Contributions, Layout, Op, verify};

#[test]
fn bytes_are_those_of_the_proof() {
    for op in [Op::AllReduce, Op::ReduceScatter, Op::AllGather, Op::AllToAll] {
        for &algorithm in algorithms(op) {
            for num_ranks in [1, 2, 3, 4, 8] {
                let Ok(schedule) = build(op, algorithm, &GroupSpec::new(num_ranks)) else {
                    continue;
                };
                let report = verify(&schedule).expect("every schedule is right");
                let layout = Layout::even(&schedule, 1000);
                for (rank, proven) in report.ranks.iter().enumerate() {
                    let moved = TrafficCounts::of(&schedule, &layout, Bytes(4), rank);
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
fn shared_memory_is_used_where_available_and_messages_elsewhere() {
    let lengths = Lengths::Even(1 << 20);
    let call = Call::once(Op::AllReduce, lengths);
    let contributions = Contributions::one_each(4);
    for (interconnect, has_messages) in
        [(Interconnect::memory(4), false), (Interconnect::messages(4), true)]
    {
        let mut chosen = SelectedSchedules::new(&interconnect, &contributions);
        assert_eq!(chosen.of(&call).needs_messages(), has_messages);
    }
}

//! Hand-written schedules with one defect each, and the verifier's error.

use lockstep_schedule::{
    Algorithm, Buffer, Chunks, Contributions, Op, Program, Schedule, Side, Step, SumTree, verify,
};

fn schedule(op: Op, num_chunks: usize, programs: Vec<Program>) -> Schedule {
    let contributions = Contributions::one_each(programs.len());
    Schedule { op, algorithm: Algorithm::Pairwise, num_chunks, contributions, programs }
}

/// Error of the verifier for a schedule over one chunk.
fn rejection(op: Op, programs: Vec<Program>) -> String {
    verify(&schedule(op, 1, programs)).expect_err("it is wrong").to_string()
}

const ALL: Chunks = Chunks::all(1);

fn send(peer: usize, from: Buffer) -> Step {
    Step::Send { peer, chunks: ALL, from }
}

fn recv(peer: usize, into: Buffer) -> Step {
    Step::Recv { peer, chunks: ALL, into }
}

/// Receives and adds to the input, with the received operand on the given side.
fn add(peer: usize, received: Side) -> Step {
    let (into, with) = (Buffer::Output, Buffer::INPUT);
    Step::RecvReduce { peer, chunks: ALL, into, with, received }
}

fn copy(rank: usize, source: usize) -> Step {
    let (into, from) = (Buffer::Output.on(rank), Buffer::INPUT.on(source));
    Step::Copy { chunks: ALL, into, from }
}

fn wait(rank: usize, count: usize) -> Step {
    Step::Wait { rank, count }
}

const INPUT: Buffer = Buffer::INPUT;
const OUTPUT: Buffer = Buffer::Output;
const BROADCAST: Op = Op::Broadcast { root: 0 };

#[test]
fn two_ranks_that_both_send_first_deadlock_unless_send_and_recv_share_a_round() {
    let one_after_the_other = |peer, side| vec![vec![send(peer, INPUT)], vec![add(peer, side)]];
    assert_eq!(
        rejection(
            Op::AllReduce,
            vec![one_after_the_other(1, Side::Right), one_after_the_other(0, Side::Left)]
        ),
        "rank 0 round 0 step 0 never completes: [0]→1"
    );
    let together = |peer, side| vec![vec![send(peer, INPUT), add(peer, side)]];
    let exchange = vec![together(1, Side::Right), together(0, Side::Left)];
    let report = verify(&schedule(Op::AllReduce, 1, exchange)).expect("this one is right");
    assert!(report.canonical && report.num_rounds == 1);
    // The received sum is written over the sent one, so the two must not share a buffer.
    assert!(!report.in_place);
}

#[test]
fn an_unmatched_message_deadlocks() {
    let root = vec![vec![copy(0, 0), send(1, INPUT)], vec![send(1, INPUT)]];
    assert_eq!(
        rejection(BROADCAST, vec![root, vec![vec![recv(0, OUTPUT)]]]),
        "rank 0 round 1 step 0 never completes: [0]→1"
    );
}

#[test]
fn a_wait_without_signal_deadlocks() {
    let root = vec![vec![copy(0, 0), Step::Signal]];
    let programs = vec![root, vec![vec![wait(0, 2)], vec![copy(1, 0)]]];
    assert_eq!(rejection(BROADCAST, programs), "rank 1 round 0 step 0 never completes: ?0");
}

#[test]
fn sent_and_expected_chunks_must_match() {
    let chunks = |start, end| Chunks { start, end };
    let sent = Step::Send { peer: 1, chunks: chunks(0, 2), from: INPUT };
    let expected = Step::Recv { peer: 0, chunks: chunks(1, 2), into: OUTPUT };
    let wrong = schedule(BROADCAST, 2, vec![vec![vec![sent]], vec![vec![expected]]]);
    assert_eq!(
        verify(&wrong).expect_err("it is wrong").to_string(),
        "rank 0 round 0 step 0 sends [0..2), but rank 1 round 0 step 0 expects [1]"
    );
}

#[test]
fn nothing_is_read_before_it_is_written() {
    let programs = vec![vec![vec![send(1, OUTPUT)]], vec![vec![recv(0, OUTPUT)]]];
    assert_eq!(
        rejection(BROADCAST, programs),
        "rank 0 round 0 step 0 reads chunk 0 of rank 0's output, which holds nothing"
    );
}

#[test]
fn a_rebased_scratch_slot_loses_its_contents() {
    let scratch = |base| Buffer::Scratch { slot: 0, base };
    let keep = |chunk: usize, base| Step::Copy {
        chunks: Chunks::one(chunk),
        into: scratch(base).on(0),
        from: INPUT.on(0),
    };
    let take = |chunk: usize, base| Step::Copy {
        chunks: Chunks::one(chunk),
        into: OUTPUT.on(0),
        from: scratch(base).on(0),
    };
    let right = vec![vec![keep(0, 0), keep(1, 0)], vec![take(0, 0), take(1, 0)]];
    assert!(verify(&schedule(BROADCAST, 2, vec![right])).is_ok());
    let moved = vec![vec![keep(0, 0)], vec![keep(1, 1)], vec![take(0, 0), take(1, 1)]];
    assert_eq!(
        verify(&schedule(BROADCAST, 2, vec![moved])).expect_err("it is wrong").to_string(),
        "rank 0 round 2 step 0 reads chunk 0 of rank 0's scratch 0, which holds nothing"
    );
}

#[test]
fn two_steps_of_a_round_must_not_conflict() {
    let root = vec![vec![copy(0, 0), send(1, OUTPUT)]];
    assert_eq!(
        rejection(BROADCAST, vec![root, vec![vec![recv(0, OUTPUT)]]]),
        "rank 0 round 0 step 1 reads chunk 0 of rank 0's output while rank 0 may still be using it"
    );
}

#[test]
fn another_ranks_memory_is_read_only_after_its_signal() {
    let root = vec![vec![Step::Signal, copy(0, 0)], vec![wait(1, 1)]];
    let hasty = vec![vec![copy(1, 0)], vec![Step::Signal]];
    let too_early =
        "rank 1 round 0 step 0 reads chunk 0 of rank 0's input while rank 0 may still be using it";
    assert_eq!(rejection(BROADCAST, vec![root.clone(), hasty]), too_early);
    // A wait in the same round is too late: steps of a round are unordered.
    let same_round = vec![vec![wait(0, 1), copy(1, 0)], vec![Step::Signal]];
    let too_early = too_early.replace("step 0", "step 1");
    assert_eq!(rejection(BROADCAST, vec![root.clone(), same_round]), too_early);
    let right = vec![vec![wait(0, 1)], vec![copy(1, 0)], vec![Step::Signal]];
    assert!(verify(&schedule(BROADCAST, 1, vec![root, right])).is_ok());
}

#[test]
fn no_rank_leaves_while_others_read_its_memory() {
    let root = vec![vec![Step::Signal, copy(0, 0)]];
    let reader = vec![vec![wait(0, 1)], vec![copy(1, 0)]];
    assert_eq!(
        rejection(BROADCAST, vec![root, reader]),
        "rank 0 ends while rank 1 may still be using chunk 0 of its input"
    );
}

#[test]
fn every_contribution_counts_once() {
    let exchange = |rank: usize| {
        let twice = SumTree::sum(SumTree::Leaf(INPUT.on(rank)), SumTree::Leaf(INPUT.on(rank)));
        vec![vec![Step::Reduce { chunks: ALL, into: vec![OUTPUT.on(rank)], sum: twice }]]
    };
    assert_eq!(
        rejection(Op::AllReduce, vec![exchange(0), exchange(1)]),
        "rank 0 ends with 0+0 in chunk 0, not a sum of all 2 contributions"
    );
    assert_eq!(
        rejection(Op::AllReduce, vec![vec![vec![copy(0, 0)]], vec![vec![copy(1, 1)]]]),
        "rank 0 ends with 0 in chunk 0, not a sum of all 2 contributions"
    );
    assert_eq!(
        rejection(BROADCAST, vec![vec![vec![copy(0, 0)]], vec![]]),
        "rank 1 ends with nothing in chunk 0, not 0"
    );
}

#[test]
fn all_ranks_add_in_one_order() {
    let exchange = |peer| vec![vec![send(peer, INPUT), add(peer, Side::Right)]];
    assert_eq!(
        rejection(Op::AllReduce, vec![exchange(1), exchange(0)]),
        "chunk 0 is 0+1 on one rank, but 1+0 on rank 1"
    );
}

#[test]
fn a_barrier_holds_every_rank() {
    let empty = |peer| {
        let (chunks, from) = (Chunks::NONE, INPUT);
        (Step::Send { peer, chunks, from }, Step::Recv { peer, chunks, into: OUTPUT })
    };
    // Messages go from 0 to 1 to 2, but not back.
    let programs = vec![
        vec![vec![empty(1).0]],
        vec![vec![empty(0).1], vec![empty(2).0]],
        vec![vec![empty(1).1]],
    ];
    let wrong = schedule(Op::Barrier, 0, programs);
    assert_eq!(
        verify(&wrong).expect_err("it is wrong").to_string(),
        "rank 0 leaves the barrier before rank 1 has entered it"
    );
}

#[test]
fn malformed_steps_are_reported() {
    let alone = |step: Step| rejection(BROADCAST, vec![vec![vec![step]], vec![]]);
    assert_eq!(alone(send(7, INPUT)), "rank 0 round 0 step 0: there is no rank 7");
    assert_eq!(
        alone(send(0, INPUT)),
        "rank 0 round 0 step 0: a rank needs no message or signal from itself"
    );
    let beyond = Step::Send { peer: 1, chunks: Chunks { start: 1, end: 3 }, from: INPUT };
    assert_eq!(alone(beyond), "rank 0 round 0 step 0: there are no chunks [1..3)");
    assert_eq!(alone(recv(1, INPUT)), "rank 0 round 0 step 0: an input is written to");
    assert_eq!(
        alone(copy(0, 1)),
        "rank 0 round 0 step 0: rank 1's input does not hold chunks [0] one after the other"
    );
    assert_eq!(alone(wait(1, 0)), "rank 0 round 0 step 0: the step does nothing");
    let mut short = schedule(BROADCAST, 1, vec![vec![], vec![]]);
    short.programs.pop();
    let error = verify(&short).expect_err("it is wrong").to_string();
    assert_eq!(error, "there are 1 programs for 2 ranks");
    let odd = schedule(Op::AllGather, 3, vec![vec![], vec![]]);
    let error = verify(&odd).expect_err("it is wrong").to_string();
    assert_eq!(error, "3 chunks do not suit all-gather over 2 ranks");
}

//! Promises of messages from one rank to another.

use lockstep_comm::{Comm, Reduction};

use super::{Effort, Row, assert_same, data};

/// How often each rank asks.
const ROUNDS: u32 = 5;

pub(super) const CHECKS: &[Row] = &[
    ("messages match by tag, and in order for one tag", 16, tags),
    ("messages longer than any buffer get through both ways at once", 8, long_messages),
    ("long messages that nobody asked for yet do not stand in the way", 8, long_early_messages),
    ("messages in the background and direct ones meet", 16, in_the_background),
    ("whoever sends first is heard first, and everybody in the end", 16, whoever_is_first),
    ("a signal says that what was written before is there", 16, signals),
];

fn tags(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let (next, before) = ((comm.group_rank() + 1) % n, (comm.group_rank() + n - 1) % n);
    for (tag, content) in [(7, 70_u32), (8, 80), (7, 71)] {
        comm.send(&[content + comm.group_rank() as u32], next, tag).expect("send");
    }
    comm.signal(next, 7).expect("signal");
    for (tag, content) in [(8, 80), (7, 70), (7, 71)] {
        let mut arrived = [0_u32];
        comm.recv(&mut arrived, before, tag).expect("recv");
        assert_eq!(arrived, [content + before as u32], "tag {tag}");
    }
    comm.wait_for(before, 7).expect("wait");
}

fn long_messages(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let (next, before) = ((comm.group_rank() + 1) % n, (comm.group_rank() + n - 1) % n);
    let leaving = data::<u64>(comm.group_rank(), 0, 100_003);
    let mut arriving = vec![0; leaving.len()];
    comm.send_recv(&leaving, next, &mut arriving, before, 1).expect("send and receive");
    assert_same(&arriving, &data::<u64>(before, 0, leaving.len()), "long message");
}

fn long_early_messages(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let me = comm.group_rank();
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    // Asked for in the opposite order, while the sender sends; the longest does not fit any ring.
    let len = |tag: u64| 60_000 / (1 + 10 * tag as usize);
    let start = |tag: u64| {
        let content = data::<u64>(me, tag as usize, len(tag));
        comm.start_send::<u64, _>(content, next, tag).expect("start")
    };
    let leaving: Vec<_> = (0..3).map(start).collect();
    for tag in (0..3).rev() {
        let mut arrived = vec![0; len(tag)];
        comm.recv(&mut arrived, before, tag).expect("recv");
        assert_same(&arrived, &data::<u64>(before, tag as usize, len(tag)), "early message");
    }
    for sent in leaving {
        sent.finish().expect("send");
    }
}

fn in_the_background(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let me = comm.group_rank();
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    // Started here and received directly there, and the other way round, while a call is under way.
    let call = comm.start_all_reduce(vec![1_u32; 100], Reduction::Sum).expect("start");
    let sent = comm.start_send::<u32, _>(vec![me as u32; 5], next, 1).expect("start");
    let mut arrived = [0; 5];
    comm.recv(&mut arrived, before, 1).expect("recv");
    assert_eq!(arrived, [before as u32; 5]);
    sent.finish().expect("send");
    // A receive that was started does not keep the send from going that the other waits for.
    let arriving = comm.start_recv::<u32, _>(vec![0; 50_000], before, 3).expect("start");
    comm.send(&vec![me as u32 + 7; 50_000], next, 3).expect("send");
    assert_same(&arriving.finish().expect("recv"), &vec![before as u32 + 7; 50_000], "message");
    assert_same(&call.finish().expect("all-reduce"), &vec![n as u32; 100], "all-reduce");
}

fn whoever_is_first(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    if comm.group_rank() > 0 {
        for round in 0..ROUNDS {
            let me = comm.group_rank() as u32;
            comm.send(&[me, round], 0, 1).expect("ask");
            comm.send(&vec![me + round; 40_000], 0, 2).expect("bring");
            let mut answer = [0];
            comm.recv(&mut answer, 0, 3).expect("hear");
            assert_eq!(answer, [me * ROUNDS + round]);
        }
        return;
    }
    let mut heard = vec![0; n];
    let mut others: Vec<usize> = (1..n).collect();
    while !others.is_empty() {
        let from = comm.wait_any(&others, 1).expect("somebody asks");
        let (mut request, mut content) = ([0, 0], vec![0; 40_000]);
        comm.recv(&mut request, from, 1).expect("what");
        assert_eq!(request, [from as u32, heard[from]], "in order");
        comm.recv(&mut content, from, 2).expect("with what");
        assert_same(&content, &vec![from as u32 + heard[from]; 40_000], "content");
        comm.send(&[from as u32 * ROUNDS + heard[from]], from, 3).expect("answer");
        heard[from] += 1;
        if heard[from] == ROUNDS {
            others.retain(|other| *other != from);
        } else {
            others.rotate_left(1);
        }
    }
    assert!(comm.wait_any(&[], 1).is_err() && comm.wait_any(&[0], 1).is_err());
}

fn signals(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let me = comm.group_rank();
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let waiting = comm.start_wait_for(before, 9).expect("start");
    comm.barrier().expect("barrier");
    assert!(!waiting.is_done(), "nobody has signalled yet");
    comm.barrier().expect("barrier");
    comm.signal(next, 9).expect("signal");
    waiting.finish().expect("wait");
    comm.signal(next, 10).expect("signal");
    comm.wait_for(before, 10).expect("wait");
    comm.start_signal(next, 11).expect("start").finish().expect("signal");
    comm.wait_for(before, 11).expect("wait");
}

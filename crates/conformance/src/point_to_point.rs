//! Checks of point-to-point messages.

use lockstep_comm::{Comm, Reduction};

use super::{Effort, Row, assert_same, data};

/// Number of requests of each rank.
const ROUNDS: u32 = 5;

pub(super) const CHECKS: &[Row] = &[
    ("messages match by tag, and in order for one tag", 16, tags),
    ("messages longer than any buffer pass in both directions at once", 8, long_messages),
    ("long messages without a posted receive do not block others", 8, long_early_messages),
    ("nonblocking and blocking messages match", 16, nonblocking),
    ("wait_any serves senders in order of arrival", 16, wait_any),
    ("messages from and to several ranks pass at once", 8, several_at_once),
    ("a signal orders after earlier writes", 16, signals),
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

/// Rank 0 exchanges messages of different lengths with all others, which are in no common order.
fn several_at_once(comm: &Comm, _: Effort) {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let len = |rank: usize| 40_000 + 1000 * rank;
    if me > 0 {
        let mut arrived = vec![0; len(me)];
        comm.send_each(&[(0, &data::<u64>(me, 0, len(me))[..])], 4).expect("send");
        comm.recv_each(&mut [(0, &mut arrived[..])], 4).expect("receive");
        assert_same(&arrived, &data::<u64>(0, me, len(me)), "message of rank 0");
        return;
    }
    let mut arrived: Vec<_> = (1..n).map(|rank| vec![0; len(rank)]).collect();
    let mut windows: Vec<_> = (1..n).zip(arrived.iter_mut().map(Vec::as_mut_slice)).collect();
    if !windows.is_empty() {
        comm.recv_each(&mut windows, 4).expect("receive");
    }
    for (rank, arrived) in (1..n).zip(&arrived) {
        assert_same(arrived, &data::<u64>(rank, 0, len(rank)), "message to rank 0");
    }
    let leaving: Vec<_> = (1..n).map(|rank| data::<u64>(0, rank, len(rank))).collect();
    let windows: Vec<_> = (1..n).zip(leaving.iter().map(Vec::as_slice)).collect();
    if !windows.is_empty() {
        comm.send_each(&windows, 4).expect("send");
    }
}

fn long_early_messages(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let me = comm.group_rank();
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    // Received in reverse order during the sends; the longest exceeds every ring buffer.
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

fn nonblocking(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    let me = comm.group_rank();
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    // Nonblocking send with blocking receive, and the reverse, during a collective.
    let call = comm.start_all_reduce(vec![1_u32; 100], Reduction::Sum).expect("start");
    let sent = comm.start_send::<u32, _>(vec![me as u32; 5], next, 1).expect("start");
    let mut arrived = [0; 5];
    comm.recv(&mut arrived, before, 1).expect("recv");
    assert_eq!(arrived, [before as u32; 5]);
    sent.finish().expect("send");
    // A pending receive does not block the send that the peer waits for.
    let arriving = comm.start_recv::<u32, _>(vec![0; 50_000], before, 3).expect("start");
    comm.send(&vec![me as u32 + 7; 50_000], next, 3).expect("send");
    assert_same(&arriving.finish().expect("recv"), &vec![before as u32 + 7; 50_000], "message");
    assert_same(&call.finish().expect("all-reduce"), &vec![n as u32; 100], "all-reduce");
}

fn wait_any(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    if n == 1 {
        return;
    }
    if comm.group_rank() > 0 {
        for round in 0..ROUNDS {
            let me = comm.group_rank() as u32;
            comm.send(&[me, round], 0, 1).expect("request");
            comm.send(&vec![me + round; 40_000], 0, 2).expect("content");
            let mut answer = [0];
            comm.recv(&mut answer, 0, 3).expect("answer");
            assert_eq!(answer, [me * ROUNDS + round]);
        }
        return;
    }
    let mut num_received = vec![0; n];
    let mut others: Vec<usize> = (1..n).collect();
    while !others.is_empty() {
        let from = comm.wait_any(&others, 1).expect("a request");
        let (mut request, mut content) = ([0, 0], vec![0; 40_000]);
        comm.recv(&mut request, from, 1).expect("request");
        assert_eq!(request, [from as u32, num_received[from]], "in order");
        comm.recv(&mut content, from, 2).expect("content");
        assert_same(&content, &vec![from as u32 + num_received[from]; 40_000], "content");
        comm.send(&[from as u32 * ROUNDS + num_received[from]], from, 3).expect("answer");
        num_received[from] += 1;
        if num_received[from] == ROUNDS {
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
    assert!(!waiting.is_done(), "no rank has signalled yet");
    comm.barrier().expect("barrier");
    comm.signal(next, 9).expect("signal");
    waiting.finish().expect("wait");
    comm.signal(next, 10).expect("signal");
    comm.wait_for(before, 10).expect("wait");
    comm.start_signal(next, 11).expect("start").finish().expect("signal");
    comm.wait_for(before, 11).expect("wait");
}

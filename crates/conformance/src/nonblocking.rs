//! Checks of nonblocking calls.

use std::time::Duration;

use lockstep_comm::{Comm, Reduction};

use super::{Effort, Row, assert_same, data};

pub(super) const CHECKS: &[Row] = &[
    ("several calls in flight complete in order", 16, several_in_flight),
    ("a blocking call waits for those in flight", 16, direct_after_started),
    ("every collective can run in the background", 8, every_operation),
    ("a wait for a call in flight ends at its deadline and can be resumed", 8, deadline),
];

fn several_in_flight(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    let start = |k: u32| {
        let buffer = vec![k + comm.group_rank() as u32; 1000];
        comm.start_all_reduce(buffer, Reduction::Sum).expect("start")
    };
    let handles: Vec<_> = (0..8).map(start).collect();
    for (k, handle) in handles.into_iter().enumerate() {
        let expected = (n * k + n * (n - 1) / 2) as u32;
        assert_same(&handle.finish().expect("all-reduce"), &vec![expected; 1000], "in flight");
    }
}

fn direct_after_started(comm: &Comm, _: Effort) {
    let handle = comm.start_all_reduce(vec![1.0_f64; 5000], Reduction::Sum).expect("start");
    let mut small = [1_u8];
    comm.all_reduce(&mut small, Reduction::Sum).expect("direct");
    assert!(handle.is_done(), "the blocking call was started after it");
    assert_eq!(usize::from(small[0]), comm.group_size());
    let n = comm.group_size() as f64;
    assert_same(&handle.finish().expect("started"), &vec![n; 5000], "started");
}

fn every_operation(comm: &Comm, _: Effort) {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let gathered = comm.start_all_gather((vec![me as u32; 3], vec![0; 3 * n])).expect("start");
    let transposed = comm.start_all_to_all((data::<u32>(me, 0, n), vec![0; n])).expect("start");
    let broadcast = comm.start_broadcast(vec![me as u16; 5], n - 1).expect("start");
    let part = comm.start_reduce_scatter((vec![1_u32; 2 * n], vec![0; 2]), Reduction::Sum);
    let root = comm.start_reduce(vec![1_u64; 4], 0, Reduction::Max).expect("start");
    let scattered = comm.start_scatter((data::<u8>(0, 0, n), vec![0; 1]), 0).expect("start");
    let at_root = comm.start_gather((vec![me as u32; 1], vec![0; n]), 0).expect("start");
    let barrier = comm.start_barrier().expect("start");
    let summed =
        comm.start_all_reduce_into((vec![1_i8; 3], vec![0; 3]), Reduction::Sum).expect("start");
    let exchanged = comm.start_all_to_all_v(vec![me as u64; n], vec![1; n]).expect("start");
    let copied = comm.start_copy((data::<f32>(me, 0, 9), vec![0.0; 9])).expect("start");
    let expected: Vec<u32> = (0..n as u32).flat_map(|position| [position; 3]).collect();
    assert_same(&gathered.finish().expect("all-gather").1, &expected, "all-gather");
    let expected: Vec<u32> = (0..n).flat_map(|source| data(source, me, 1)).collect();
    assert_same(&transposed.finish().expect("all-to-all").1, &expected, "all-to-all");
    assert_same(&broadcast.finish().expect("broadcast"), &[n as u16 - 1; 5], "broadcast");
    let part = part.expect("start").finish().expect("reduce-scatter").1;
    assert_same(&part, &[n as u32; 2], "reduce-scatter");
    assert_same(&root.finish().expect("reduce"), &[1; 4], "reduce");
    assert_same(&scattered.finish().expect("scatter").1, &data::<u8>(0, me, 1), "scatter");
    let at_root = at_root.finish().expect("gather").1;
    if me == 0 {
        assert_same(&at_root, &(0..n as u32).collect::<Vec<_>>(), "gather");
    }
    barrier.finish().expect("barrier");
    assert_same(&summed.finish().expect("all-reduce").1, &[n as i8; 3], "all-reduce");
    let (_, arrived, counts) = exchanged.finish().expect("all-to-all-v");
    assert_same(&arrived, &(0..n as u64).collect::<Vec<_>>(), "all-to-all-v");
    assert_eq!(counts, vec![1; n]);
    assert_same(&copied.finish().expect("copy").1, &data::<f32>(me, 0, 9), "copy");
}

fn deadline(comm: &Comm, _: Effort) {
    let n = comm.group_size();
    let handle = comm.start_all_reduce(vec![2_u32; 10], Reduction::Sum).expect("start");
    // A zero timeout either expires or finds the call complete.
    let result = match handle.wait(Duration::ZERO) {
        Ok(result) => result,
        Err(handle) => handle.finish(),
    };
    assert_same(&result.expect("all-reduce"), &[2 * n as u32; 10], "all-reduce");
}

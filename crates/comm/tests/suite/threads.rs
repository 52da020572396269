//! Threads of one process as ranks.

use crate::common::{run_checks, run_threads};
use lockstep_comm::Window;
use lockstep_conformance as conformance;
use lockstep_conformance::cases::some;

#[test]
fn groups_of_one_to_five_threads_pass_every_check() {
    for num_ranks in 1..=5 {
        run_threads(num_ranks, |comm| run_checks(&comm));
    }
}

#[test]
fn groups_of_six_to_sixteen_threads_pass_every_check() {
    for num_ranks in some(6..=16, 4) {
        run_threads(num_ranks, |comm| run_checks(&comm));
    }
}

#[test]
fn groups_of_24_or_32_threads_pass_the_checks_that_are_for_them() {
    for num_ranks in some([24, 32], 1) {
        run_threads(num_ranks, |comm| run_checks(&comm));
    }
}

#[test]
fn every_check_has_a_name_of_its_own() {
    let mut names: Vec<_> = conformance::checks().iter().map(|check| check.name).collect();
    let num_checks = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), num_checks);
    assert!(num_checks > 20);
}

#[test]
fn memory_of_a_dropped_open_window_stays_out_of_use() {
    const LEN: usize = 1000;
    run_threads(2, |comm| {
        let allocate = || comm.allocate::<u32>(LEN).expect("the arena has room");
        let open = || Window::open(&comm, allocate()).expect("open");
        let closed = open().close().expect("close");
        let closed_at = closed.as_ptr();
        drop(closed);
        let buffer = allocate();
        assert_eq!(buffer.as_ptr(), closed_at, "the memory of a closed window is free");
        let dropped_at = buffer.as_ptr_range();
        let window = Window::open(&comm, buffer).expect("open");
        // Rank 1 keeps its window, and puts after rank 0 has dropped its own.
        let kept = (comm.group_rank() == 1).then_some(window);
        let mut buffers: Vec<_> = (0..4).map(|_| allocate()).collect();
        for buffer in &mut buffers {
            let at = buffer.as_ptr_range();
            assert!(at.end <= dropped_at.start || dropped_at.end <= at.start, "{at:?}");
            buffer.fill(1);
        }
        comm.barrier().expect("barrier");
        if let Some(window) = kept {
            window.put(0, 0, &[9; LEN]).expect("put");
        }
        comm.barrier().expect("barrier");
        assert!(buffers.iter().all(|buffer| buffer[..] == [1; LEN]));
    });
}

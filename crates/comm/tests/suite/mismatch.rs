//! Different calls on different ranks: every rank returns an error that names both.

use std::sync::Mutex;
use std::time::Duration;

use crate::common::processes::{Ranks, own_comm};
use crate::common::{run_tcp, run_threads_within};
use lockstep_comm::Reduction;
use lockstep_config::Blame;
use lockstep_conformance::mismatch::MISMATCHES;

/// Deadline of a call.
const TIMEOUT: Duration = Duration::from_secs(3);

#[test]
fn threads_that_make_different_calls_report_both() {
    for mismatch in MISMATCHES {
        for num_ranks in [2, 3, 5] {
            run_threads_within(num_ranks, TIMEOUT, |comm| mismatch.check(&comm));
        }
    }
}

#[test]
fn ranks_over_tcp_that_make_different_calls_report_both() {
    for mismatch in MISMATCHES {
        for num_ranks in [2, 3] {
            run_tcp(num_ranks, 1, |comm| mismatch.check(&comm.within(TIMEOUT)));
        }
    }
}

#[test]
fn processes_that_make_different_calls_report_both() {
    let ranks = Ranks::start("mismatch::role_mismatch", "shm", 3);
    ranks.assert_success();
}

#[test]
fn processes_over_tcp_that_make_different_calls_report_both() {
    let ranks = Ranks::start("mismatch::role_mismatch", "tcp", 3);
    ranks.assert_success();
}

/// One process, as one rank of a new world for every case.
#[test]
fn role_mismatch() {
    for (index, mismatch) in MISMATCHES.iter().enumerate() {
        let Some(comm) = own_comm(index) else { return };
        mismatch.check(&comm.within(TIMEOUT));
    }
}

#[test]
fn a_missing_rank_is_named_with_the_call() {
    let given_up = std::sync::Barrier::new(3);
    let errors = Mutex::new(Vec::new());
    run_threads_within(3, Duration::from_millis(200), |comm| {
        // Rank 2 stays alive, and does not make the call.
        if comm.group_rank() != 2 {
            let mut data = [1.0_f32; 10];
            let error = comm.all_reduce(&mut data, Reduction::Sum).expect_err("2 does not come");
            errors.lock().expect("no thread panicked").push(error);
        }
        given_up.wait();
    });
    for error in errors.into_inner().expect("no thread panicked") {
        let text = error.to_string();
        assert!(text.contains("all-reduce of 10 f32"), "{text}");
        assert!(text.contains("waited 200 ms for rank 2"), "{text}");
        assert_eq!(error.blame(), Blame::Peer(2));
    }
}

#[test]
fn a_rank_that_has_left_is_named_with_the_call_before_the_deadline() {
    let errors = Mutex::new(Vec::new());
    run_threads_within(3, Duration::from_hours(1), |comm| {
        if comm.group_rank() == 2 {
            return;
        }
        let error = comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum).expect_err("2 has left");
        errors.lock().expect("no thread panicked").push(error);
    });
    for error in errors.into_inner().expect("no thread panicked") {
        let text = error.to_string();
        assert!(text.contains("rank 2 left during all-reduce of 10 f32"), "{text}");
        assert_eq!(error.blame(), Blame::Peer(2));
    }
}

#[test]
fn wrong_lengths_are_rejected_with_the_right_one() {
    run_threads_within(2, Duration::from_secs(5), |comm| {
        let error = comm.all_gather(&[1_u8; 3], &mut [0; 10]).expect_err("3 is not half of 10");
        let text = error.to_string();
        assert!(text.contains("the input has 3 elements and needs 5"), "{text}");
        assert_eq!(error.blame(), Blame::User);
        let error = comm.broadcast(&mut [0_u8], 7).expect_err("there is no rank 7");
        assert!(error.to_string().contains("there are 2 ranks"), "{error}");
    });
}

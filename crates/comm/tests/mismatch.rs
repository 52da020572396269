//! Different calls on different ranks: an error on every rank that names both.

mod common;

use std::sync::Mutex;
use std::time::Duration;

use common::run_threads_within;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::Blame;
use lockstep_schedule::Algorithm;

/// Rank 1 makes one call and the others another; every rank's error must name both.
fn assert_both_are_named(
    num_ranks: usize,
    others: impl Fn(&Comm) -> Result<(), CommError> + Sync,
    odd_one: impl Fn(&Comm) -> Result<(), CommError> + Sync,
    names: [&str; 2],
) {
    let errors = Mutex::new(Vec::new());
    run_threads_within(num_ranks, Duration::from_secs(5), |comm| {
        comm.barrier().expect("the group works before");
        let result = if comm.position() == 1 { odd_one(&comm) } else { others(&comm) };
        // A rank that nobody waited for may get away with this call, and fails in the next.
        let error = result.and_then(|()| comm.barrier()).expect_err("the calls differ");
        errors.lock().expect("no thread panicked").push((comm.position(), error.to_string()));
    });
    for (position, error) in errors.into_inner().expect("no thread panicked") {
        for name in names {
            assert!(error.contains(name), "rank {position} does not name `{name}`: {error}");
        }
    }
}

#[test]
fn another_operation_is_named() {
    let gather = |comm: &Comm| comm.all_gather(&[1_u8], &mut vec![0; comm.num_members()]);
    let reduce = |comm: &Comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum);
    for num_ranks in [2, 3] {
        assert_both_are_named(num_ranks, reduce, gather, ["all-reduce of 10 f32", "all-gather of"]);
    }
}

#[test]
fn another_length_is_named() {
    let of = |count: usize| {
        move |comm: &Comm| comm.all_reduce(&mut vec![1.0_f32; count], Reduction::Sum)
    };
    assert_both_are_named(2, of(10), of(11), ["all-reduce of 10 f32", "all-reduce of 11 f32"]);
    assert_both_are_named(4, of(1000), of(0), ["of 1000 f32", "of 0 f32"]);
}

#[test]
fn another_type_is_named() {
    let floats = |comm: &Comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum);
    let integers = |comm: &Comm| comm.all_reduce(&mut [1_i32; 10], Reduction::Sum);
    assert_both_are_named(2, floats, integers, ["10 f32, sum", "10 i32, sum"]);
}

#[test]
fn another_reduction_is_named() {
    let by = |reduction| move |comm: &Comm| comm.all_reduce(&mut [1_u8; 10], reduction);
    assert_both_are_named(2, by(Reduction::Max), by(Reduction::Min), ["u8, max", "u8, min"]);
}

#[test]
fn another_root_is_named() {
    let from = |root| move |comm: &Comm| comm.broadcast(&mut [1_u8; 10], root);
    assert_both_are_named(3, from(0), from(2), ["root 0", "root 2"]);
}

#[test]
fn a_different_call_over_messages_is_named() {
    let of = |count: usize| {
        move |comm: &Comm| {
            let ring = comm.using(Algorithm::RING);
            ring.all_reduce(&mut vec![1.0_f32; count], Reduction::Sum)
        }
    };
    for num_ranks in [2, 3] {
        assert_both_are_named(num_ranks, of(10), of(20), ["of 10 f32", "of 20 f32"]);
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_with_the_call() {
    let given_up = std::sync::Barrier::new(3);
    let errors = Mutex::new(Vec::new());
    run_threads_within(3, Duration::from_millis(200), |comm| {
        // Rank 2 is there all the time, and does not make the call.
        if comm.position() != 2 {
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
        assert!(matches!(error.blame(), Blame::Peer(_)));
    }
}

#[test]
fn a_rank_that_has_left_is_named_with_the_call_before_the_deadline() {
    let errors = Mutex::new(Vec::new());
    run_threads_within(3, Duration::from_hours(1), |comm| {
        if comm.position() == 2 {
            return;
        }
        let error = comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum).expect_err("2 has left");
        errors.lock().expect("no thread panicked").push(error);
    });
    for error in errors.into_inner().expect("no thread panicked") {
        let text = error.to_string();
        assert!(text.contains("rank 2 left during all-reduce of 10 f32"), "{text}");
        assert!(matches!(error.blame(), Blame::Peer(_)));
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_the_right_length() {
    run_threads_within(2, Duration::from_secs(5), |comm| {
        let error = comm.all_gather(&[1_u8; 3], &mut [0; 10]).expect_err("3 is not half of 10");
        let text = error.to_string();
        assert!(text.contains("the input has 3 elements and needs 5"), "{text}");
        assert_eq!(error.blame(), Blame::User);
        let error = comm.broadcast(&mut [0_u8], 7).expect_err("there is no rank 7");
        assert!(error.to_string().contains("there are 2 ranks"), "{error}");
    });
}

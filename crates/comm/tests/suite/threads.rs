//! Threads of one process as ranks.

use crate::common::{run_checks, run_threads};
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

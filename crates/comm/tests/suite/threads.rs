//! Threads of one process as ranks.

use crate::common::{run_checks, run_threads};
use lockstep_conformance as conformance;
use lockstep_conformance::cases::select_cases;
use lockstep_platform::real;

#[test]
fn groups_of_one_to_five_threads_pass_every_check() {
    for num_ranks in 1..=5 {
        run_threads(num_ranks, |comm| run_checks(&comm));
    }
}

#[test]
fn groups_of_six_to_sixteen_threads_pass_every_check() {
    // Each commit tries some of the sizes.
    for index in select_cases(&real(), 11, 4) {
        let num_ranks = 6 + index as usize;
        run_threads(num_ranks, |comm| run_checks(&comm));
    }
}

#[test]
fn groups_of_24_or_32_threads_pass_the_checks_that_are_for_them() {
    for index in select_cases(&real(), 2, 1) {
        let num_ranks = 24 + 8 * index as usize;
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

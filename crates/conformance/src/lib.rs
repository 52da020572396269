//! Conformance checks of collectives, for every transport.
//!
//! The checks run over threads, shared memory between processes, TCP, and mixtures of them. All
//! ranks of a group run every check together; a check panics on a wrong result, as a test does. The
//! cases follow the test suites of MPI libraries: counts that no group size divides, empty buffers,
//! every root, every type, in place and out of place.
//!
//! # Layout
//! - `reductions`, `data_movement`, `in_place`, `dtypes`: collectives
//! - `determinism`: determinism of reductions
//! - `point_to_point`, `one_sided`, `nonblocking`: messages, windows and nonblocking calls
//! - [`mismatch`]: different calls on different ranks
//! - [`cases`]: selection of cases for long test suites

pub mod cases;
mod data_movement;
mod determinism;
mod dtypes;
mod in_place;
pub mod mismatch;
mod nonblocking;
mod one_sided;
mod point_to_point;
mod reductions;

use lockstep_comm::{Comm, Element};
use lockstep_schedule::Op;
use lockstep_schedule::collective::algorithms;

/// Check of one guarantee.
pub struct Check {
    /// The guarantee as a sentence.
    pub name: &'static str,
    /// Largest group for which it is quick.
    pub max_group_size: usize,
    /// Runs the check on this rank of a group.
    pub run: fn(&Comm, Effort),
}

/// Extent of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Fewer lengths and roots in large groups; for every change.
    Quick,
    /// All cases; takes minutes.
    Thorough,
}

/// All checks.
pub fn checks() -> Vec<Check> {
    let parts = [
        reductions::CHECKS,
        data_movement::CHECKS,
        in_place::CHECKS,
        dtypes::CHECKS,
        determinism::CHECKS,
        point_to_point::CHECKS,
        one_sided::CHECKS,
        nonblocking::CHECKS,
    ];
    parts
        .into_iter()
        .flatten()
        .map(|&(name, max_group_size, run)| Check { name, max_group_size, run })
        .collect()
}

/// Runs every check, or with [`Effort::Quick`] those for this group size.
pub fn run_all(comm: &Comm, effort: Effort) {
    for check in checks() {
        if comm.group_size() <= check.max_group_size || effort == Effort::Thorough {
            (check.run)(comm, effort);
            comm.barrier().unwrap_or_else(|error| panic!("after `{}`: {error}", check.name));
        }
    }
}

/// Row of a table of checks: name, largest group size, function.
type Row = (&'static str, usize, fn(&Comm, Effort));

/// Length that no group size divides and that exceeds every buffer of the transports.
const LONG: usize = 1_000_003;

/// Tested lengths: zero, fewer than ranks, odd ones, more than a ring buffer holds.
const COUNTS: [usize; 9] = [0, 1, 4, 10, 64, 100, 1000, 10_000, LONG];

/// Lengths for this group size: large groups of threads share few cores. [`LONG`] has a check of
/// its own where it is not in the list.
fn counts(comm: &Comm, effort: Effort) -> &'static [usize] {
    match (comm.group_size(), effort) {
        (..=5, Effort::Thorough) => &COUNTS,
        (..=5, Effort::Quick) | (_, Effort::Thorough) => &COUNTS[..8],
        (6..=8, Effort::Quick) => &[0, 4, 10, 100, 1000],
        (9..=16, Effort::Quick) => &[0, 10, 100],
        (_, Effort::Quick) => &[1, 100],
    }
}

/// Tested roots: all in small groups, else first, middle and last.
fn roots(comm: &Comm, effort: Effort) -> Vec<usize> {
    let n = comm.group_size();
    if n <= 5 || effort == Effort::Thorough { (0..n).collect() } else { vec![0, n / 2, n - 1] }
}

/// Element `index` of the data of a rank: a small integer, whose reductions are exact in every
/// type.
fn value<T: Element>(rank: usize, index: usize) -> T {
    T::from_small((1 + (rank * 5 + index * 3 + index / 11) % 3) as u8)
}

/// `count` elements of the data of a rank, from element `start`.
fn data<T: Element>(rank: usize, start: usize, count: usize) -> Vec<T> {
    (start..start + count).map(|index| value(rank, index)).collect()
}

/// Runs a check with the automatic algorithm and with every algorithm that the group supports.
fn each_algorithm(comm: &Comm, op: Op, run: impl Fn(&Comm, &str)) {
    run(comm, "automatic");
    for &algorithm in algorithms(op) {
        if comm.offers(op, algorithm) {
            run(&comm.using(algorithm), &algorithm.to_string());
        }
    }
}

/// Panics with the index of the first difference.
#[track_caller]
fn assert_same<T: Element>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(index) = found.iter().zip(expected).position(|(a, b)| a != b) {
        let (found, expected) = (found[index], expected[index]);
        panic!("{what}: element {index} is {found:?}, not {expected:?}");
    }
}

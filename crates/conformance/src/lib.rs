//! What every transport must do, as a list of checks.
//!
//! The same list runs over threads, over shared memory between processes, over TCP and over
//! mixtures of them. Every member of a group runs every check with its own end, at the same time as
//! the others; a check panics with what it found, as a test does. The cases are those of the older
//! libraries: counts that no number of ranks divides, empty buffers, every root, every type, in
//! place and not.

mod background;
mod bits;
pub mod cases;
mod in_place;
mod messages;
pub mod mismatch;
mod moves;
mod one_sided;
mod sums;
mod types;

use lockstep_comm::{Comm, Element};
use lockstep_schedule::Op;
use lockstep_schedule::collective::algorithms;

/// One promise.
pub struct Check {
    /// The promise as a sentence.
    pub name: &'static str,
    /// The largest group for which it is quick.
    pub max_members: usize,
    /// Tries it with this member's end of a group.
    pub run: fn(&Comm, Effort),
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What can be had with every change: fewer lengths and roots in large groups.
    Quick,
    /// Everything; takes minutes.
    Thorough,
}

/// Every promise.
pub fn checks() -> Vec<Check> {
    let parts = [
        sums::CHECKS,
        moves::CHECKS,
        in_place::CHECKS,
        types::CHECKS,
        bits::CHECKS,
        messages::CHECKS,
        one_sided::CHECKS,
        background::CHECKS,
    ];
    parts
        .into_iter()
        .flatten()
        .map(|&(name, max_members, run)| Check { name, max_members, run })
        .collect()
}

/// Runs every check, or, to be quick, those that suit the size of the group.
pub fn run_all(comm: &Comm, effort: Effort) {
    for check in checks() {
        if comm.group_size() <= check.max_members || effort == Effort::Thorough {
            (check.run)(comm, effort);
            comm.barrier().unwrap_or_else(|error| panic!("after `{}`: {error}", check.name));
        }
    }
}

/// A row of a part's table: name, largest group, check.
type Row = (&'static str, usize, fn(&Comm, Effort));

/// A length that no number of ranks divides, and more than any buffer on the way holds.
const LONG: usize = 1_000_003;

/// Lengths that are tried: none, fewer than ranks, odd ones, more than a ring holds.
const COUNTS: [usize; 9] = [0, 1, 4, 10, 64, 100, 1000, 10_000, LONG];

/// The lengths for a group of a size: large groups of threads share few cores. The longest has a
/// check of its own where it is not in the list.
fn counts(comm: &Comm, effort: Effort) -> &'static [usize] {
    match (comm.group_size(), effort) {
        (..=5, Effort::Thorough) => &COUNTS,
        (..=5, Effort::Quick) | (_, Effort::Thorough) => &COUNTS[..8],
        (6..=8, Effort::Quick) => &[0, 4, 10, 100, 1000],
        (9..=16, Effort::Quick) => &[0, 10, 100],
        (_, Effort::Quick) => &[1, 100],
    }
}

/// The roots that are tried: all of them in small groups, else the ends and the middle.
fn roots(comm: &Comm, effort: Effort) -> Vec<usize> {
    let n = comm.group_size();
    if n <= 5 || effort == Effort::Thorough { (0..n).collect() } else { vec![0, n / 2, n - 1] }
}

/// Element `index` of the data of the member at `position`: small whole numbers, whose sums are
/// exact in every type that can hold them.
fn value<T: Element>(position: usize, index: usize) -> T {
    T::from_small((1 + (position * 5 + index * 3 + index / 11) % 3) as u8)
}

/// `count` elements of a member's data, from element `start` on.
fn data<T: Element>(position: usize, start: usize, count: usize) -> Vec<T> {
    (start..start + count).map(|index| value(position, index)).collect()
}

/// The same end, once for every algorithm that there is for this operation and this group, and once
/// for the automatic choice.
fn each_algorithm(comm: &Comm, op: Op, run: impl Fn(&Comm, &str)) {
    run(comm, "automatic");
    for &algorithm in algorithms(op) {
        if comm.offers(op, algorithm) {
            run(&comm.using(algorithm), &algorithm.to_string());
        }
    }
}

/// Fails with the place of the first difference.
#[track_caller]
fn assert_same<T: Element>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(index) = found.iter().zip(expected).position(|(a, b)| a != b) {
        let (found, expected) = (found[index], expected[index]);
        panic!("{what}: element {index} is {found:?}, not {expected:?}");
    }
}

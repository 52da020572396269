//! Rabenseifner's algorithm: what is exchanged halves while the distance doubles, and back.
//!
//! The rounds of a tree and the bytes of a ring: the best of both for a power of two of ranks.

use super::ClosedForm;

/// For a power of two of ranks.
pub fn all_reduce(num_ranks: usize) -> ClosedForm {
    assert!(num_ranks.is_power_of_two(), "halving ends well for powers of two only");
    let rounds = 2 * u64::from(num_ranks.ilog2());
    ClosedForm { rounds, parts: 2 * (num_ranks as u64 - 1), of: num_ranks as u64 }
}

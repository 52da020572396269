//! Rabenseifner's all-reduce in closed form (Rabenseifner 2004): recursive halving and doubling.
//!
//! The rounds of a tree and the bytes of a ring, for a power of two of ranks.

use super::ClosedForm;

/// All-reduce for a power of two of ranks.
pub fn all_reduce(num_ranks: usize) -> ClosedForm {
    assert!(num_ranks.is_power_of_two(), "halving needs a power of two of ranks");
    let rounds = 2 * u64::from(num_ranks.ilog2());
    ClosedForm { rounds, parts: 2 * (num_ranks as u64 - 1), of: num_ranks as u64 }
}

//! The butterfly: in round r everybody exchanges the whole vector with the rank 2^r away.
//!
//! Half the rounds of a tree and half its bytes, since both directions of every link are busy.

use super::ClosedForm;

/// For a power of two of ranks.
pub fn all_reduce(num_ranks: usize) -> ClosedForm {
    assert!(num_ranks.is_power_of_two(), "a butterfly has a power of two of wings");
    let rounds = u64::from(num_ranks.ilog2());
    ClosedForm { rounds, parts: rounds, of: 1 }
}

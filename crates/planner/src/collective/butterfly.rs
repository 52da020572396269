//! Butterfly all-reduce in closed form: recursive doubling (Thakur, Rabenseifner and Gropp 2005).
//!
//! In round r every rank exchanges the whole vector with the rank 2^r away: half the rounds and
//! bytes of a tree, since both directions of every link are busy.

use super::ClosedForm;

/// All-reduce for a power of two of ranks.
pub fn all_reduce(num_ranks: usize) -> ClosedForm {
    assert!(num_ranks.is_power_of_two(), "a butterfly needs a power of two of ranks");
    let rounds = u64::from(num_ranks.ilog2());
    ClosedForm { rounds, parts: rounds, of: 1 }
}

//! The ring: the vector is cut into n parts, and each travels once around to be added up and once
//! more to be handed out.
//!
//! Every link carries 2(n-1)/n of the vector, less than two of them however many ranks there are,
//! and no exact sum can do with half of that. What grows is the number of rounds.

use super::ClosedForm;

/// Both halves: 2(n-1) rounds of one part.
pub const fn all_reduce(num_ranks: usize) -> ClosedForm {
    let rounds = 2 * (num_ranks as u64 - 1);
    ClosedForm { rounds, parts: rounds, of: num_ranks as u64 }
}

/// Either half alone: a reduce-scatter or an all-gather.
pub const fn half(num_ranks: usize) -> ClosedForm {
    let rounds = num_ranks as u64 - 1;
    ClosedForm { rounds, parts: rounds, of: num_ranks as u64 }
}

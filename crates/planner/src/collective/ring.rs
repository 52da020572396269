//! Ring collectives in closed form (Patarasuk and Yuan 2009).
//!
//! The vector is split into n parts, each of which travels once around the ring for the
//! reduce-scatter and once for the all-gather. Every link carries 2(n-1)/n of the vector, less than
//! twice the vector however many ranks there are, which is optimal. The number of rounds grows with
//! n.

use super::ClosedForm;

/// All-reduce: 2(n-1) rounds of one part.
pub const fn all_reduce(num_ranks: usize) -> ClosedForm {
    let rounds = 2 * (num_ranks as u64 - 1);
    ClosedForm { rounds, parts: rounds, of: num_ranks as u64 }
}

/// Reduce-scatter or all-gather: n-1 rounds of one part.
pub const fn half(num_ranks: usize) -> ClosedForm {
    let rounds = num_ranks as u64 - 1;
    ClosedForm { rounds, parts: rounds, of: num_ranks as u64 }
}

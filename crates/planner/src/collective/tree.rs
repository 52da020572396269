//! Binomial tree collectives in closed form: the whole vector goes up ⌈log2 n⌉ levels and down
//! again.
//!
//! Few rounds, so it wins for short vectors; every level carries the whole vector, so it loses for
//! long ones.

use super::{ClosedForm, log2_up};

/// All-reduce: reduce and broadcast.
pub const fn all_reduce(num_ranks: usize) -> ClosedForm {
    let rounds = 2 * log2_up(num_ranks);
    ClosedForm { rounds, parts: rounds, of: 1 }
}

/// Reduce or broadcast.
pub const fn one_way(num_ranks: usize) -> ClosedForm {
    let rounds = log2_up(num_ranks);
    ClosedForm { rounds, parts: rounds, of: 1 }
}

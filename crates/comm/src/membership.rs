//! Membership of a rank in a group.

use lockstep_mesh::Rank;

/// A rank's membership in a group.
pub(crate) struct Membership {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) group_rank: usize,
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Number of vectors that this rank adds to a sum.
    pub(crate) num_inputs: usize,
}

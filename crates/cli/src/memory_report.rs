//! Memory of a rank by purpose, as commands print it.

use lockstep_planner::memory::RankMemory;
use serde::Serialize;

/// Memory of one rank. Field names are stable: scripts rely on them.
#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "names that scripts rely on carry their unit")]
pub(crate) struct Memory {
    pub(crate) weights_bytes: u64,
    pub(crate) gradients_bytes: u64,
    pub(crate) optimizer_bytes: u64,
    pub(crate) activations_bytes: u64,
    pub(crate) buffers_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl From<&RankMemory> for Memory {
    fn from(rank: &RankMemory) -> Self {
        Self {
            weights_bytes: rank.weights.0,
            gradients_bytes: rank.gradients.0,
            optimizer_bytes: rank.optimizer.0,
            activations_bytes: rank.activations.0,
            buffers_bytes: rank.buffers.0,
            total_bytes: rank.own().0,
        }
    }
}

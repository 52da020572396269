//! Memory of a rank by purpose, and of its process, as commands print it.

use lockstep_planner::memory::{ProcessMemory, RankMemory};
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
    /// Copy that is written in the background; 0 where the run does not save.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// Resident memory of a process by part. Field names are stable: scripts rely on them.
#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "names that scripts rely on carry their unit")]
pub(crate) struct ProcessReport {
    /// Total of its rank, or of all ranks where they are threads of one process.
    pub(crate) ranks_bytes: u64,
    /// Mapped pages of other processes, and scratch memory of calls.
    pub(crate) mapped_bytes: u64,
    /// Code, corpus and buffers of the process.
    pub(crate) overhead_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl From<ProcessMemory> for ProcessReport {
    fn from(process: ProcessMemory) -> Self {
        Self {
            ranks_bytes: process.ranks.0,
            mapped_bytes: process.mapped.0,
            overhead_bytes: process.overhead.0,
            total_bytes: process.total().0,
        }
    }
}

impl From<&RankMemory> for Memory {
    fn from(rank: &RankMemory) -> Self {
        Self {
            weights_bytes: rank.weights.0,
            gradients_bytes: rank.gradients.0,
            optimizer_bytes: rank.optimizer.0,
            activations_bytes: rank.activations.0,
            buffers_bytes: rank.buffers.0,
            checkpoint_bytes: rank.checkpoint.0,
            total_bytes: rank.allocated().0,
        }
    }
}

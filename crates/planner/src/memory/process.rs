//! Memory of a process besides its model.
//!
//! | part | size |
//! |---|---|
//! | code, libraries and the allocator's first pages | resident memory of the planning process |
//! | code that only training runs | [`TRAINING_CODE_BYTES`], a property of the program |
//! | the data of a worker | known once opened; mapped files belong to the system |
//! | the packing buffer of matmuls | one per worker's device |
//! | batches, call plans, thread stacks | [`WORKER_BYTES`] |
//! | flags and mailboxes of other workers | [`PEER_BYTES`] each |
//! | trial runs over links | [`PROBE_BYTES`], freed before a worker has data or a model |

use lockstep_config::units::Bytes;
use lockstep_schedule::TRIAL_BYTES;

/// Code and constants that a run uses and a plan does not: kernels, rendezvous, the loader. The
/// system maps files in pieces of 64 KiB, so it hardly depends on the recipe (0.3 MiB). For release
/// builds; other builds have more code.
pub const TRAINING_CODE_BYTES: Bytes = Bytes(31 << 18);

/// Small allocations of a worker: two batches, call plans, stacks, the step log.
pub const WORKER_BYTES: Bytes = Bytes(3 << 17);

/// Header, flags and mailboxes of another worker: two windows of 64 KiB.
pub const PEER_BYTES: Bytes = Bytes(2 << 16);

/// Packing buffer of matrix products, on one huge page.
pub const PACKING_BYTES: Bytes = Bytes(2 << 20);

/// The longest vector of the trial runs that select algorithms where workers exchange messages, and
/// as much scratch.
pub const PROBE_BYTES: Bytes = Bytes(2 * TRIAL_BYTES[TRIAL_BYTES.len() - 1] as u64);

/// Resident memory of a process by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessMemory {
    /// Memory that its ranks allocate.
    pub ranks: Bytes,
    /// Memory of calls: mapped pages of other processes, and scratch memory.
    pub mapped: Bytes,
    /// The process besides its ranks: code, data and buffers of workers.
    pub overhead: Bytes,
}

impl ProcessMemory {
    /// All parts.
    pub fn total(&self) -> Bytes {
        self.ranks + self.mapped + self.overhead
    }
}

/// Process before it has a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Process {
    /// Resident memory when the plan is made.
    pub start: Bytes,
    /// Data that a worker keeps in memory.
    pub text: Bytes,
}

impl Process {
    /// Memory of a process with `num_workers` workers, without their models, with `num_peers`
    /// workers in other processes.
    pub fn besides(self, num_workers: u64, num_peers: u64) -> Bytes {
        let each = self.text + PACKING_BYTES + WORKER_BYTES;
        self.start + TRAINING_CODE_BYTES + each * num_workers + PEER_BYTES * num_peers
    }

    /// Memory of a process while its workers measure their links, before they have data or a model.
    pub fn probing(self, num_workers: u64, num_peers: u64) -> Bytes {
        self.start + TRAINING_CODE_BYTES + PROBE_BYTES * num_workers + PEER_BYTES * num_peers
    }
}

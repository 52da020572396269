//! What a process of a run holds besides its model.
//!
//! | what | how large |
//! |---|---|
//! | code, libraries and the allocator's first pages | what a process has when it makes a plan |
//! | code that only training runs | [`TRAINING_CODE_BYTES`], a property of the program |
//! | the text of a worker | known once it was opened; files that are mapped belong to the system |
//! | the buffer that products pack into | one for each worker's device |
//! | batches, plans of calls, stacks of threads | [`WORKER_BYTES`] |
//! | flags and mailboxes of other workers | [`PEER_BYTES`] for each |

use lockstep_config::units::Bytes;

/// Code and constants that a run touches and a plan does not: kernels, the joining of workers, the
/// loader. The system maps files in pieces of 64 KiB, so it hardly depends on the recipe (0.3 MiB).
/// Of a release build; other builds have more code.
pub const TRAINING_CODE_BYTES: Bytes = Bytes(31 << 18);

/// What a worker holds of small things: two batches, plans of calls, stacks, the journal.
pub const WORKER_BYTES: Bytes = Bytes(3 << 17);

/// What a worker touches of another one's header, flags and mailboxes: two windows of 64 KiB.
pub const PEER_BYTES: Bytes = Bytes(2 << 16);

/// The buffer that matrix products pack into, on one large page.
pub const PACKING_BYTES: Bytes = Bytes(2 << 20);

/// A process before it has a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Process {
    /// What it holds when the plan is made.
    pub start: Bytes,
    /// The text that a worker keeps.
    pub text: Bytes,
}

impl Process {
    /// All that a process with `num_workers` workers in it holds but their models, when
    /// there are `num_peers` workers in other processes.
    pub fn besides(self, num_workers: u64, num_peers: u64) -> Bytes {
        let each = self.text + PACKING_BYTES + WORKER_BYTES;
        self.start + TRAINING_CODE_BYTES + each * num_workers + PEER_BYTES * num_peers
    }
}

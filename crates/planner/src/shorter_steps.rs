//! Steps of very many micro-batches, extrapolated from two shorter ones.
//!
//! Between the first and the last micro-batches of a leaf all are alike: each further cycle of them
//! makes the same calls, takes the same time and holds the same memory (or as much more, with a
//! schedule that keeps all activations). So a step of `a + n c` micro-batches per leaf has the
//! figures of one of `a`, and `n` times the difference to one of `a + c`. Calls and bytes are
//! exact; the time is that of a full pipeline, whose every cycle is equally long.

use lockstep_config::units::{Bytes, Seconds};
use lockstep_config::{Recipe, SyncMode};
use lockstep_mesh::Axis;
use lockstep_parallel::{Leaves, ReplicaPlan};

/// Micro-batches per leaf and pipeline rank of a cycle: enough that buffers which are used in turn,
/// and all stages of a pipeline, have had their turns.
const CYCLE: usize = 16;

/// Two steps that are short enough to walk, a cycle of micro-batches apart.
pub(crate) struct ShorterSteps {
    /// Recipe and plan of both, shorter first.
    pub(crate) steps: [(Recipe, ReplicaPlan); 2],
    /// Cycles from the shorter one to the whole step.
    num_cycles: u64,
}

impl ShorterSteps {
    /// Steps to walk instead of that of `plan`; none if it is short itself.
    pub(crate) fn of(recipe: &Recipe, plan: &ReplicaPlan) -> Option<Self> {
        let Leaves { num_leaves, microbatches_per_leaf } = plan.leaves;
        // Threads and clients divide the micro-batches among them.
        let num_parts = match recipe.sync.mode {
            SyncMode::Hogwild => recipe.sync.threads,
            SyncMode::Federated => recipe.federated.sampled,
            _ => 1,
        };
        let cycle = CYCLE * plan.mesh.degree(Axis::Pipeline) * num_parts;
        // Rows of an embedding are exchanged sparsely only where tokens are fewer than rows, which
        // the shorter steps must not seem to have.
        let least = cycle.max(recipe.model.vocab / plan.microbatch.rows() + 1);
        let first = least.next_multiple_of(cycle) + microbatches_per_leaf % cycle;
        let num_cycles = microbatches_per_leaf.checked_sub(first)? / cycle;
        let step = |microbatches_per_leaf: usize| {
            let mut recipe = recipe.clone();
            recipe.train.batch = recipe.train.microbatch_size * num_leaves * microbatches_per_leaf;
            let leaves = Leaves { num_leaves, microbatches_per_leaf };
            (recipe, ReplicaPlan { leaves, ..plan.clone() })
        };
        let steps = || [step(first), step(first + cycle)];
        (num_cycles > 1).then(|| Self { steps: steps(), num_cycles: num_cycles as u64 })
    }

    /// A recipe and plan with the buffers of these ones, and few micro-batches.
    pub(crate) fn shortest(recipe: &Recipe, plan: &ReplicaPlan) -> (Recipe, ReplicaPlan) {
        match Self::of(recipe, plan) {
            Some(Self { steps: [shortest, _], .. }) => shortest,
            None => (recipe.clone(), plan.clone()),
        }
    }

    /// Number of the whole step, from those of both shorter ones.
    pub(crate) fn number(&self, [short, long]: [u64; 2]) -> u64 {
        short + (long - short) * self.num_cycles
    }

    /// Bytes of the whole step.
    pub(crate) fn bytes(&self, both: [Bytes; 2]) -> Bytes {
        Bytes(self.number(both.map(|bytes| bytes.0)))
    }

    /// Time of the whole step.
    pub(crate) fn seconds(&self, [short, long]: [Seconds; 2]) -> Seconds {
        short + (long - short) * self.num_cycles as f64
    }
}

//! Traffic of a replica by axis.

use lockstep_comm::Counters;

/// Calls and traffic of a rank so far, by what they were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AxisCounters {
    /// Gradients and parameters, along the data axis.
    pub data: Counters,
    /// Activations and their gradients, along the pipeline axis.
    pub pipeline: Counters,
    /// Sums of shards, along the tensor axis.
    pub tensor: Counters,
    /// That of the sync strategy, of parameter servers and of host groups.
    pub strategy: Counters,
}

impl AxisCounters {
    /// Names of the axes, in the order of [`Self::all`].
    pub const NAMES: [&'static str; 4] = ["data", "pipeline", "tensor", "strategy"];

    /// Counters of every axis.
    pub fn all(&self) -> [&Counters; 4] {
        [&self.data, &self.pipeline, &self.tensor, &self.strategy]
    }
}

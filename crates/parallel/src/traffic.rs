//! Sums of traffic counters, and the traffic of a replica by axis.

use lockstep_comm::Traffic;

/// Traffic of a rank so far, by what it was for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AxisTraffic {
    /// Gradients and parameters, along the data axis.
    pub data: Traffic,
    /// Activations and their gradients, along the pipeline axis.
    pub pipeline: Traffic,
    /// Sums of shards, along the tensor axis.
    pub tensor: Traffic,
    /// That of the sync strategy, of parameter servers and of host groups.
    pub strategy: Traffic,
}

/// Sum of two traffic counts.
pub(crate) fn add_traffic(one: Traffic, other: Traffic) -> Traffic {
    Traffic {
        messages: one.messages + other.messages,
        sent_bytes: one.sent_bytes + other.sent_bytes,
        received_bytes: one.received_bytes + other.received_bytes,
        read_bytes: one.read_bytes + other.read_bytes,
        written_bytes: one.written_bytes + other.written_bytes,
    }
}

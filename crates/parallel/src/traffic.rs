//! Sums of traffic counters.

use lockstep_comm::Traffic;

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

//! Bytes that leave a node, counted from a schedule.
//!
//! Closed forms often state a lower bound of the traffic between nodes; the actual bytes depend on
//! the order of the ranks, so they are counted.

use lockstep_config::units::Bytes;
use lockstep_schedule::{Layout, Schedule, Step};

/// Bytes that all ranks together send to ranks of other nodes; rank i is on node `node_of(i)`.
pub fn bytes_between_nodes(
    schedule: &Schedule,
    layout: &Layout,
    element: Bytes,
    node_of: impl Fn(usize) -> usize,
) -> Bytes {
    let crossing = |(id, step): (_, &Step)| {
        let id: lockstep_schedule::StepId = id;
        match step {
            Step::Send { peer, chunks, .. } if node_of(*peer) != node_of(id.rank) => {
                element * layout.len(*chunks) as u64
            }
            _ => Bytes(0),
        }
    };
    schedule.steps().map(crossing).sum()
}

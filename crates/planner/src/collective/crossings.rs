//! Bytes that leave a node, counted from a schedule.
//!
//! Closed forms often say what "must" cross a network; it depends on the order of the ranks. So
//! the schedule is asked: who sends what to whom, and do the two share a node?

use lockstep_config::units::Bytes;
use lockstep_schedule::{Layout, Schedule, Step};

/// What all ranks together send to ranks of other nodes; rank i is on node `node_of(i)`.
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

//! Collective calls and messages of a step, as the planner counts them.

use super::TrafficCounts;
use crate::shorter_steps::ShorterSteps;
use lockstep_config::units::Bytes;
use lockstep_mesh::Mesh;
pub use lockstep_schedule::step::Lengths;
use lockstep_schedule::{Contributions, Layout, Op, Schedule};

/// Bytes of an element: parameters are sent as `f32`, and gradients unless they are rounded.
pub const ELEMENT: Bytes = Bytes(4);

/// Collective call of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Operation.
    pub op: Op,
    /// Bucket of the call; meaningless for tensor-parallel calls.
    pub bucket: usize,
    /// Lengths of the vector's parts.
    pub lengths: Lengths,
    /// Bytes of an element.
    pub element: Bytes,
    /// Number of calls per step.
    pub times: u64,
    /// Pool buffers that the call uses; empty where the bucket has its own buffer.
    pub turns: Vec<usize>,
    /// Whether sums must have the canonical order.
    pub is_canonical: bool,
}

/// Calls of one group in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCalls {
    /// Contributions of the group's ranks.
    pub contributions: Contributions,
    /// Calls in no particular order.
    pub list: Vec<Call>,
}

/// Messages that a pipeline rank, or a gossip rank, sends in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Receiving pipeline rank or rank.
    pub to: usize,
    /// Number of elements.
    pub len: usize,
    /// Number of messages per step.
    pub times: u64,
}

/// All calls of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCalls {
    /// Mesh of the workers.
    pub mesh: Mesh,
    /// Data-parallel calls, by pipeline rank and tensor-parallel rank.
    pub data: Vec<Vec<GroupCalls>>,
    /// Tensor-parallel calls, by pipeline rank and data-parallel rank.
    pub tensor: Vec<Vec<GroupCalls>>,
    /// Messages between pipeline ranks, by pipeline rank and data-parallel rank.
    pub messages: Vec<Vec<Vec<Message>>>,
    /// Calls of the strategy ([`super::StepKind`]), with the ranks that make them.
    pub after_step: Vec<(Vec<usize>, GroupCalls)>,
    /// Gossip messages after the step, by sending rank.
    pub neighbor_messages: Vec<Vec<Message>>,
    /// Pulls and pushes, by worker: a server sends on behalf of a worker. Updates of federated
    /// clients, by sender.
    pub server_messages: Vec<TrafficCounts>,
    /// Whether embedding rows are exchanged sparsely, so that traffic depends on the tokens.
    pub has_rows: bool,
    /// Whether the calls are exact, or an approximate upper bound.
    pub is_exact: bool,
}

impl StepCalls {
    /// Calls of a step of very many micro-batches, from those of both shorter ones.
    pub(super) fn extrapolated([mut short, long]: [Self; 2], by: &ShorterSteps) -> Self {
        let lists = short.data.iter_mut().flatten().zip(long.data.iter().flatten());
        let tensor = short.tensor.iter_mut().flatten().zip(long.tensor.iter().flatten());
        let after_step = short.after_step.iter_mut().zip(&long.after_step);
        let after_step = after_step.map(|((_, short), (_, long))| (short, long));
        for (short, long) in lists.chain(tensor).chain(after_step) {
            for (short, long) in short.list.iter_mut().zip(&long.list) {
                short.times = by.number([short.times, long.times]);
            }
        }
        let messages = short.messages.iter_mut().flatten().zip(long.messages.iter().flatten());
        for (short, long) in messages.flat_map(|(short, long)| short.iter_mut().zip(long)) {
            short.times = by.number([short.times, long.times]);
        }
        short
    }
}

impl Call {
    /// Single call on its own buffer.
    pub const fn once(op: Op, lengths: Lengths) -> Self {
        let turns = Vec::new();
        Self { op, bucket: 0, lengths, element: ELEMENT, times: 1, turns, is_canonical: true }
    }

    /// Elements of the whole vector.
    pub fn count(&self) -> usize {
        self.lengths.count()
    }

    /// Layout of the call's chunks.
    pub fn layout(&self, schedule: &Schedule) -> Layout {
        self.lengths.layout(schedule)
    }
}

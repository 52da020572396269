//! Two levels: sums inside each node over its fast links first, then between nodes.
//!
//! Inside a node of g ranks the vector is reduce-scattered, so that each rank holds a g-th of it;
//! ranks of the same place in their nodes all-reduce that share over the network; then nodes
//! gather. The slow network sees 2(m-1) rounds instead of 2(n-1), and where a node has as many
//! network cards as ranks, each carries a g-th only. With one card for the node the bytes on the
//! slow link are those of a ring that goes through one node after the other, and the gain is in
//! latency alone.

use super::{ClosedForm, ring};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::Link;

/// Nodes with equally many ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nodes {
    /// How many.
    pub num_nodes: usize,
    /// Ranks in each.
    pub ranks_per_node: usize,
    /// Network cards of each.
    pub cards_per_node: usize,
    /// Between ranks of a node.
    pub inside: Link,
    /// From one card to another.
    pub between: Link,
}

impl Nodes {
    /// Both levels, one after the other.
    pub fn all_reduce(&self, vector: Bytes) -> Seconds {
        self.inside(vector) + self.between(vector)
    }

    /// The two halves inside nodes.
    pub fn inside(&self, vector: Bytes) -> Seconds {
        ring::half(self.ranks_per_node).seconds(vector, self.inside) * 2.0
    }

    /// The sum of shares between nodes; ranks without a card of their own share one.
    pub fn between(&self, vector: Bytes) -> Seconds {
        let form = ring::all_reduce(self.num_nodes);
        let share = form.bytes(vector) / self.ranks_per_node as f64;
        let ranks_per_card = self.ranks_per_node.div_ceil(self.cards_per_node) as f64;
        self.between.latency * form.rounds as f64
            + Seconds(share * ranks_per_card / self.between.bandwidth.0)
    }

    /// As the engine's schedule does it where ranks of a node exchange messages too and every rank
    /// has a card of its own: on each level by halving and doubling where that works out, else each
    /// with each. The bytes are those of rings; the rounds may be fewer.
    pub fn all_reduce_as_scheduled(&self, vector: Bytes) -> Seconds {
        let share = Bytes(vector.0 / self.ranks_per_node as u64);
        let inside = exchange(self.ranks_per_node).seconds(vector, self.inside);
        let between = exchange(self.num_nodes).seconds(share, self.between);
        (inside + between) * 2.0
    }

    /// A ring over all ranks, in which the slow hop sets the pace.
    pub fn flat_ring(&self, vector: Bytes) -> Seconds {
        ring::all_reduce(self.num_nodes * self.ranks_per_node).seconds(vector, self.between)
    }
}

/// A reduce-scatter or an all-gather of one level.
const fn exchange(group_size: usize) -> ClosedForm {
    let n = group_size as u64;
    let rounds = if group_size.is_power_of_two() { group_size.ilog2() as u64 } else { n - 1 };
    ClosedForm { rounds, parts: n - 1, of: n }
}

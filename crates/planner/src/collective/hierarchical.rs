//! Two-level all-reduce in closed form: inside each node over its fast links, then between nodes.
//!
//! Inside a node of g ranks the vector is reduce-scattered, so that each rank holds a g-th of it;
//! ranks of equal index in their nodes all-reduce that share over the network; then nodes
//! all-gather. The network sees 2(m-1) rounds instead of 2(n-1), and with as many NICs as ranks per
//! node each NIC carries a g-th only. With one NIC per node the bytes on the network are those of a
//! ring through one node after the other, and only latency is saved.

use super::{ClosedForm, ring};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::Link;

/// Nodes with equal numbers of ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nodes {
    /// Number of nodes.
    pub num_nodes: usize,
    /// Ranks per node.
    pub ranks_per_node: usize,
    /// NICs per node.
    pub nics_per_node: usize,
    /// Link between ranks of a node.
    pub inside: Link,
    /// Link between NICs.
    pub between: Link,
}

impl Nodes {
    /// All-reduce over both levels.
    pub fn all_reduce(&self, vector: Bytes) -> Seconds {
        self.inside(vector) + self.between(vector)
    }

    /// Reduce-scatter and all-gather inside nodes.
    pub fn inside(&self, vector: Bytes) -> Seconds {
        ring::half(self.ranks_per_node).seconds(vector, self.inside) * 2.0
    }

    /// All-reduce of shares between nodes; ranks without a NIC of their own share one.
    pub fn between(&self, vector: Bytes) -> Seconds {
        let form = ring::all_reduce(self.num_nodes);
        let share = form.bytes(vector) / self.ranks_per_node as f64;
        let ranks_per_nic = self.ranks_per_node.div_ceil(self.nics_per_node) as f64;
        self.between.latency * form.rounds as f64
            + Seconds(share * ranks_per_nic / self.between.bandwidth.0)
    }

    /// All-reduce as scheduled by the engine, where ranks of a node exchange messages too and every
    /// rank has its own NIC: on each level by halving and doubling for powers of two, else
    /// pairwise. The bytes are those of rings; the rounds may be fewer.
    pub fn all_reduce_as_scheduled(&self, vector: Bytes) -> Seconds {
        let share = Bytes(vector.0 / self.ranks_per_node as u64);
        let inside = exchange(self.ranks_per_node).seconds(vector, self.inside);
        let between = exchange(self.num_nodes).seconds(share, self.between);
        (inside + between) * 2.0
    }

    /// Flat ring over all ranks, limited by its slowest hop.
    pub fn flat_ring(&self, vector: Bytes) -> Seconds {
        ring::all_reduce(self.num_nodes * self.ranks_per_node).seconds(vector, self.between)
    }
}

/// Reduce-scatter or all-gather of one level.
const fn exchange(group_size: usize) -> ClosedForm {
    let n = group_size as u64;
    let rounds = if group_size.is_power_of_two() { group_size.ilog2() as u64 } else { n - 1 };
    ClosedForm { rounds, parts: n - 1, of: n }
}

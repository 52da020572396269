//! NCCL's cost model with the constants of its tuner, for comparison with published clusters.
//!
//! A call takes its latency plus its bytes over the algorithm's bandwidth, which is the total of
//! its channels times a ratio of algorithm to bus bandwidth: n/(2(n-1)) for a ring all-reduce, a
//! half for a tree.

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// NCCL protocol: how data and flags travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// A flag with every four bytes (LL).
    Ll,
    /// A flag with every 120 bytes (LL128).
    Ll128,
    /// Separate flags (Simple).
    Simple,
}

/// Latencies of a protocol in microseconds: ring, tree.
struct Latencies {
    base: [f64; 2],
    inside: [f64; 2],
    between: [f64; 2],
}

/// Nodes connected by a network, with GPUs connected by NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Number of nodes.
    pub(crate) num_nodes: u64,
    /// GPUs per node.
    pub(crate) num_devices: u64,
}

impl Protocol {
    const fn latencies(self) -> Latencies {
        let (base, inside, between) = match self {
            Self::Ll => ([6.6, 6.8], [0.6, 0.6], [2.7, 5.0]),
            Self::Ll128 => ([14.0, 14.0], [1.9, 1.25], [4.0, 8.5]),
            Self::Simple => ([8.4, 8.4], [3.4, 4.0], [14.0, 14.0]),
        };
        Latencies { base, inside, between }
    }
}

impl Cluster {
    const fn num_ranks(self) -> u64 {
        self.num_nodes * self.num_devices
    }

    /// Latency of a ring all-reduce: every step is a hop, 2(nodes-1) of them between nodes.
    pub(crate) fn ring_latency(self, protocol: Protocol) -> Seconds {
        let Latencies { base, inside, between } = protocol.latencies();
        let num_steps = 2 * (self.num_ranks() - 1);
        let num_between = 2 * (self.num_nodes - 1);
        let hops = (num_steps - num_between) as f64 * inside[0] + num_between as f64 * between[0];
        Seconds((base[0] + hops) * 1e-6)
    }

    /// Latency of a tree all-reduce: through the GPUs of a node, then up and down a tree over
    /// nodes.
    pub(crate) fn tree_latency(self, protocol: Protocol) -> Seconds {
        let Latencies { base, inside, between } = protocol.latencies();
        let devices = (self.num_devices - 1) as f64 * inside[1];
        let nodes = (self.num_nodes as f64).log2() * between[1];
        Seconds((base[1] + 2.0 * (devices + nodes)) * 1e-6)
    }

    /// Ring all-reduce over channels of this total bandwidth.
    pub(crate) fn ring_all_reduce(
        self,
        protocol: Protocol,
        vector: Bytes,
        channels: BytesPerSecond,
    ) -> Seconds {
        let ratio = self.num_ranks() as f64 / (2 * (self.num_ranks() - 1)) as f64;
        self.ring_latency(protocol) + vector / BytesPerSecond(channels.0 * ratio)
    }

    /// Tree all-reduce over channels of this total bandwidth.
    pub(crate) fn tree_all_reduce(
        self,
        protocol: Protocol,
        vector: Bytes,
        channels: BytesPerSecond,
    ) -> Seconds {
        self.tree_latency(protocol) + vector / BytesPerSecond(channels.0 / 2.0)
    }
}

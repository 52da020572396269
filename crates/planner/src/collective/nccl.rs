//! NCCL's own model of its time, with the constants of its tuner, to compare published clusters by.
//!
//! A call takes its latency and what its bytes take at the algorithm's bandwidth, which is the sum
//! of its channels' and a ratio of the bytes that pass a link: n/(2(n-1)) for a ring's all-reduce,
//! a half for a tree's.

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// How data and the flags that announce it travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A flag with every four bytes.
    Ll,
    /// A flag with every 120 bytes.
    Ll128,
    /// Flags by themselves.
    Simple,
}

/// The latencies of a protocol, in microseconds: ring, tree.
struct Latencies {
    base: [f64; 2],
    inside: [f64; 2],
    between: [f64; 2],
}

/// Nodes that are joined by a network, of devices that are joined by NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cluster {
    /// Nodes.
    pub num_nodes: u64,
    /// Devices of each.
    pub num_devices: u64,
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

    /// The latency of a ring's all-reduce: every step is a hop, 2(nodes-1) of them between nodes.
    pub fn ring_latency(self, protocol: Protocol) -> Seconds {
        let Latencies { base, inside, between } = protocol.latencies();
        let num_steps = 2 * (self.num_ranks() - 1);
        let num_between = 2 * (self.num_nodes - 1);
        let hops = (num_steps - num_between) as f64 * inside[0] + num_between as f64 * between[0];
        Seconds((base[0] + hops) * 1e-6)
    }

    /// The latency of a tree's all-reduce: through the devices of a node, then up and down a tree
    /// over nodes.
    pub fn tree_latency(self, protocol: Protocol) -> Seconds {
        let Latencies { base, inside, between } = protocol.latencies();
        let devices = (self.num_devices - 1) as f64 * inside[1];
        let nodes = (self.num_nodes as f64).log2() * between[1];
        Seconds((base[1] + 2.0 * (devices + nodes)) * 1e-6)
    }

    /// A ring's all-reduce over channels that have this bandwidth together.
    pub fn ring_all_reduce(
        self,
        protocol: Protocol,
        vector: Bytes,
        channels: BytesPerSecond,
    ) -> Seconds {
        let ratio = self.num_ranks() as f64 / (2 * (self.num_ranks() - 1)) as f64;
        self.ring_latency(protocol) + vector / BytesPerSecond(channels.0 * ratio)
    }

    /// A tree's.
    pub fn tree_all_reduce(
        self,
        protocol: Protocol,
        vector: Bytes,
        channels: BytesPerSecond,
    ) -> Seconds {
        self.tree_latency(protocol) + vector / BytesPerSecond(channels.0 / 2.0)
    }
}

//! Collectives on the cluster's links.
//!
//! Ranks of a group sit in nodes: those of one node exchange over its links, those of several share
//! the cards of all their devices there. A ring passes every rank, so bytes go at the speed of the
//! slowest hop and latencies add up; a tree's latencies grow with the logarithm. For sums the
//! quicker of both is taken, as libraries do.

use crate::calibration::Calibration;
use crate::hardware::{Cluster, Topology};

/// A round over Ethernet, relative to one over InfiniBand.
const ETHERNET: f64 = 2.0;

/// Ranks that talk to each other, `stride` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// How many.
    pub ranks: u64,
    /// From one to the next in the numbering of devices.
    pub stride: u64,
}

/// Links of a cluster at the speed that its devices' type reaches.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    cluster: &'a Cluster,
    calibration: &'a Calibration,
}

impl<'a> Links<'a> {
    /// Of this cluster.
    pub const fn new(cluster: &'a Cluster, calibration: &'a Calibration) -> Self {
        Self { cluster, calibration }
    }

    /// Ranks of a group that share a node, and nodes that it spans.
    fn spread(&self, group: Group) -> (f64, f64) {
        let inside = (self.cluster.per_node / group.stride).clamp(1, group.ranks.max(1));
        (inside as f64, group.ranks.div_ceil(inside) as f64)
    }

    /// Bytes a second of one rank to the next where the group spans this many nodes.
    fn bandwidth(&self, inside: f64, nodes: f64) -> f64 {
        let link = self.cluster.link_gbps * 1e9 * self.calibration.link_share;
        if nodes <= 1.0 {
            return link;
        }
        let mut network = self.cluster.network.device_gbps * self.calibration.network_share;
        if let Topology::Racks {
            nodes_per_rack,
            oversubscription,
            racks_per_spine,
            spine_oversubscription,
        } = self.cluster.network.topology
        {
            let racks = nodes / nodes_per_rack as f64;
            if racks > 1.0 {
                network /= oversubscription;
            }
            if racks > racks_per_spine as f64 {
                network /= spine_oversubscription;
            }
        }
        link.min(network * 1e9 * inside)
    }

    /// Latency of rounds inside nodes and between them.
    fn latencies(&self) -> (f64, f64) {
        let ethernet = if self.cluster.network.is_ethernet { ETHERNET } else { 1.0 };
        let calibration = self.calibration;
        (calibration.link_latency_us * 1e-6, calibration.network_latency_us * 1e-6 * ethernet)
    }

    /// Latency of one pass around the ring, whose rounds are as slow as their slowest hop.
    fn around(&self, group: Group, nodes: f64) -> f64 {
        let (near, far) = self.latencies();
        (group.ranks - 1) as f64 * if nodes > 1.0 { far } else { near }
    }

    /// Latency of one pass through a tree of nodes, whose ranks stand in a chain.
    fn through(&self, inside: f64, nodes: f64) -> f64 {
        let (near, far) = self.latencies();
        (inside - 1.0) * near + nodes.log2().ceil() * 2.0 * far
    }

    /// What a collective takes however short it is.
    fn start(&self) -> f64 {
        1e-6 * self.calibration.collective_us
    }

    /// Half of an all-reduce: an all-gather or a reduce-scatter of `bytes` in all, for which
    /// libraries have rings alone.
    pub fn half(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (inside, nodes) = self.spread(group);
        let share = (group.ranks - 1) as f64 / group.ranks as f64;
        self.start() + self.around(group, nodes) + bytes * share / self.bandwidth(inside, nodes)
    }

    /// The sum of everybody's `bytes`, for everybody.
    pub fn all_reduce(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (inside, nodes) = self.spread(group);
        let share = (group.ranks - 1) as f64 / group.ranks as f64;
        let pass = self.around(group, nodes).min(self.through(inside, nodes));
        self.start() + 2.0 * (pass + bytes * share / self.bandwidth(inside, nodes))
    }

    /// Everybody's `bytes` in parts to everybody else. What leaves a node does so over one device's
    /// share of the cards.
    pub fn all_to_all(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (inside, nodes) = self.spread(group);
        let (near, far) = self.latencies();
        let hops = match self.cluster.network.topology {
            Topology::Torus { dims } => (nodes.powf(1.0 / dims as f64) / 4.0).max(1.0),
            _ => 1.0,
        };
        let away = bytes * (nodes - 1.0) / nodes * hops;
        let here = bytes * (group.ranks - 1) as f64 / group.ranks as f64;
        let start =
            near * (inside - 1.0) + if nodes > 1.0 { far * (nodes - 1.0).min(32.0) } else { 0.0 };
        let network = if nodes > 1.0 { away / self.bandwidth(1.0, nodes) } else { 0.0 };
        self.start() + start + network.max(here / self.bandwidth(1.0, 1.0))
    }

    /// A message to the device `stride` away.
    pub fn hop(&self, stride: u64, bytes: f64) -> f64 {
        let (near, far) = self.latencies();
        if stride < self.cluster.per_node {
            near + bytes / self.bandwidth(1.0, 1.0)
        } else {
            far + bytes / self.bandwidth(1.0, 2.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;

    #[test]
    fn rings_inside_a_node_are_quicker_than_rings_between_nodes() {
        let cluster = named("64xa100-80gb").expect("a cluster");
        let calibration = Calibration::of("a100").expect("it is there");
        let links = Links::new(&cluster, &calibration);
        let time = |ranks, stride| links.all_reduce(Group { ranks, stride }, 1e9);
        assert!(time(8, 1) < time(8, 8) / 4.0);
        // A group of whole nodes uses all their cards.
        assert!(time(64, 1) < time(8, 8) / 3.0);
        assert!(time(1, 1) <= 0.0);
    }

    #[test]
    fn an_oversubscribed_rack_slows_what_leaves_it() {
        let mut cluster = named("512xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let group = Group { ranks: 64, stride: 8 };
        let before = Links::new(&cluster, &calibration).all_reduce(group, 1e9);
        let tree = |racks_per_spine, spine_oversubscription| Topology::Racks {
            nodes_per_rack: 16,
            oversubscription: 4.0,
            racks_per_spine,
            spine_oversubscription,
        };
        let mut wired = |topology| {
            cluster.network.topology = topology;
            Links::new(&cluster, &calibration).all_reduce(group, 1e9)
        };
        let racks = wired(tree(4, 2.0));
        assert!(racks > 3.0 * before);
        // Its four racks are under one spine; with two under each, half of it is left between them.
        assert!(wired(tree(2, 2.0)) > 1.8 * racks);
    }
}

//! Collectives on the cluster's links.
//!
//! Ranks of a group sit in nodes: those of one node exchange over its links, those of several share
//! its cards, and perhaps a rack's uplinks, with all groups of their kind. A ring passes all ranks,
//! so bytes go at the speed of the fullest link and latencies add up; a tree's latencies grow with
//! the logarithm. For sums the quicker of both is taken, as libraries do.

use super::shared::{leaving_all_to_all, leaving_hop, leaving_ring};
use crate::calibration::Calibration;
use crate::hardware::{Cluster, Shared, Topology, Unit};

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

    /// Seconds of a byte from one device of a node to another.
    fn beside(&self) -> f64 {
        1.0 / (self.cluster.link_gbps * 1e9 * self.calibration.link_share)
    }

    /// Seconds of a byte of each of so many messages that share a unit's links.
    fn away(&self, messages: f64, unit: &Unit) -> f64 {
        messages / (unit.gbps * 1e9 * self.calibration.network_share)
    }

    /// Seconds of a byte that everybody passes to the next in its group's ring, and the links that
    /// are full then. A tree of two halves takes as much: what leaves a unit there is what goes up
    /// and comes down again.
    fn around_byte(&self, group: Group) -> (f64, Option<Shared>) {
        let beside = (self.beside(), None);
        self.cluster.units().fold(beside, |most, unit| {
            let leaving = leaving_ring(group, &unit, self.cluster.devices);
            let seconds = self.away(leaving as f64, &unit);
            if seconds > most.0 { (seconds, Some(unit.shared)) } else { most }
        })
    }

    /// The links that a group's sums fill; none are those inside a node.
    pub fn fullest(&self, group: Group) -> Option<Shared> {
        self.around_byte(group).1
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
        let (_, nodes) = self.spread(group);
        let share = (group.ranks - 1) as f64 / group.ranks as f64;
        self.start() + self.around(group, nodes) + bytes * share * self.around_byte(group).0
    }

    /// The sum of everybody's `bytes`, for everybody.
    pub fn all_reduce(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (inside, nodes) = self.spread(group);
        let share = (group.ranks - 1) as f64 / group.ranks as f64;
        let pass = self.around(group, nodes).min(self.through(inside, nodes));
        self.start() + 2.0 * (pass + bytes * share * self.around_byte(group).0)
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
        // Messages that leave a node also pass its links, to and from the card that they take.
        let here = bytes * (group.ranks - 1) as f64 / group.ranks as f64 * self.beside();
        let away = self.cluster.units().filter(|unit| unit.devices < self.cluster.devices);
        let away = away.map(|unit| {
            let leaving = leaving_all_to_all(group, &unit) * unit.devices as f64;
            hops * bytes * self.away(leaving, &unit)
        });
        let start =
            near * (inside - 1.0) + if nodes > 1.0 { far * (nodes - 1.0).min(32.0) } else { 0.0 };
        self.start() + start + away.fold(here, f64::max)
    }

    /// A message to the device `stride` away.
    pub fn hop(&self, stride: u64, bytes: f64) -> f64 {
        let (near, far) = self.latencies();
        if stride < self.cluster.per_node {
            return near + bytes * self.beside();
        }
        let away = self
            .cluster
            .units()
            .map(|unit| self.away(leaving_hop(stride, &unit, self.cluster.devices) as f64, &unit));
        far + bytes * away.fold(self.beside(), f64::max)
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
    fn an_oversubscribed_rack_slows_what_leaves_it_and_rings_along_racks_hardly_do() {
        let mut cluster = named("512xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let tree = |racks_per_spine, spine_oversubscription| Topology::Racks {
            nodes_per_rack: 16,
            oversubscription: 4.0,
            racks_per_spine,
            spine_oversubscription,
        };
        let mut wired = |topology, group, links| {
            cluster.network.topology = topology;
            let cluster = Links::new(&cluster, &calibration);
            assert_eq!(cluster.fullest(group), links);
            cluster.all_reduce(group, 1e9)
        };
        // A rack has 128 devices. Where ranks are as far from each other, every message leaves one.
        let far = Group { ranks: 4, stride: 128 };
        let full = wired(Topology::Full, far, Some(Shared::Cards));
        let racks = wired(tree(4, 2.0), far, Some(Shared::Rack));
        assert!(racks > 3.5 * full, "{racks} {full}");
        // With two racks under a spine, half of that is left where every message leaves those.
        let farther = Group { ranks: 2, stride: 256 };
        let racks = wired(tree(4, 2.0), farther, Some(Shared::Rack));
        assert!(wired(tree(2, 2.0), farther, Some(Shared::Spine)) > 1.8 * racks);
        // Rings from node to node leave a rack eight at a time, over a quarter of 128 cards.
        let along = Group { ranks: 64, stride: 8 };
        let full = wired(Topology::Full, along, Some(Shared::Cards));
        let racks = wired(tree(4, 2.0), along, Some(Shared::Cards));
        assert!((racks / full - 1.0).abs() < 1e-9, "{racks} {full}");
    }

    #[test]
    fn messages_of_experts_pay_for_what_leaves_their_rack() {
        let mut cluster = named("512xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let group = Group { ranks: 32, stride: 8 };
        let full = Links::new(&cluster, &calibration).all_to_all(group, 1e9);
        cluster.network.topology = Topology::Racks {
            nodes_per_rack: 16,
            oversubscription: 4.0,
            racks_per_spine: 4,
            spine_oversubscription: 1.0,
        };
        let racks = Links::new(&cluster, &calibration).all_to_all(group, 1e9);
        // Of 31 peers 16 are in the other rack, at a quarter of the speed.
        let expected = 4.0 * 16.0 / 31.0;
        assert!((racks / full / expected - 1.0).abs() < 0.05, "{racks} {full}");
    }
}

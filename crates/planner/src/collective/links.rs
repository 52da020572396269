//! Cost of collectives on the cluster's links.
//!
//! Ranks of one node exchange over its links; ranks of several nodes share the NICs, and perhaps a
//! rack's uplinks, with all groups of the same axis. A ring visits all ranks: bytes move at the
//! speed of the bottleneck link and latencies add. A tree's latency grows with the logarithm of the
//! nodes. An all-reduce takes the faster of both, as NCCL does.

use super::contention::{leaving_all_to_all, leaving_hop, leaving_ring};
use super::group::Group;
use super::{all_to_all, ring};
use crate::calibration::Calibration;
use crate::hardware::{Cluster, LinkDomain, Topology};

/// Latency of a round over Ethernet, relative to InfiniBand.
const ETHERNET: f64 = 2.0;

/// Links of a cluster at the achieved speed of its device type.
#[derive(Debug, Clone, Copy)]
pub struct Links<'a> {
    cluster: &'a Cluster,
    calibration: &'a Calibration,
}

impl<'a> Links<'a> {
    /// Links of this cluster.
    pub const fn new(cluster: &'a Cluster, calibration: &'a Calibration) -> Self {
        Self { cluster, calibration }
    }

    /// Ranks of a group per node, and nodes that the group spans.
    fn placement(&self, group: Group) -> (f64, f64) {
        let inside = (self.cluster.per_node / group.stride).clamp(1, group.ranks.max(1));
        (inside as f64, group.ranks.div_ceil(inside) as f64)
    }

    /// Seconds per byte between two devices of a node.
    fn intra_byte_seconds(&self) -> f64 {
        1.0 / (self.cluster.link_gbps * 1e9 * self.calibration.link_share)
    }

    /// Seconds per byte for each of `messages` messages that share a domain's links.
    fn inter_byte_seconds(&self, messages: f64, domain: &LinkDomain) -> f64 {
        messages / (domain.gbps * 1e9 * self.calibration.network_share)
    }

    /// Seconds per byte that every rank passes to its neighbour in the ring. A double tree takes as
    /// long: the same bytes leave each domain, up and down.
    fn ring_byte_seconds(&self, group: Group) -> f64 {
        let inter_byte_seconds = self.cluster.link_domains().map(|domain| {
            let leaving = leaving_ring(group, &domain, self.cluster.devices);
            self.inter_byte_seconds(leaving as f64, &domain)
        });
        inter_byte_seconds.fold(self.intra_byte_seconds(), f64::max)
    }

    /// Latency of a round inside a node and between nodes.
    fn latencies(&self) -> (f64, f64) {
        let ethernet = if self.cluster.network.is_ethernet { ETHERNET } else { 1.0 };
        let calibration = self.calibration;
        (calibration.link_latency_us * 1e-6, calibration.network_latency_us * 1e-6 * ethernet)
    }

    /// Latency of one pass around the ring, whose rounds are as slow as their slowest hop.
    fn ring_latency(&self, group: Group, nodes: f64) -> f64 {
        let (intra, inter) = self.latencies();
        ring::half(group.ranks as usize).rounds as f64 * if nodes > 1.0 { inter } else { intra }
    }

    /// Time of the bytes of one pass around the ring.
    fn ring_transfer(&self, group: Group, bytes: f64) -> f64 {
        bytes * ring::half(group.ranks as usize).share() * self.ring_byte_seconds(group)
    }

    /// Latency of one pass through a tree of nodes, with the ranks of a node in a chain.
    fn tree_latency(&self, inside: f64, nodes: f64) -> f64 {
        let (intra, inter) = self.latencies();
        (inside - 1.0) * intra + nodes.log2().ceil() * 2.0 * inter
    }

    /// Minimum time of a collective.
    fn startup(&self) -> f64 {
        1e-6 * self.calibration.collective_us
    }

    /// All-gather or reduce-scatter of `bytes` in total, always as a ring.
    pub fn all_gather(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (_, nodes) = self.placement(group);
        self.startup() + self.ring_latency(group, nodes) + self.ring_transfer(group, bytes)
    }

    /// All-reduce of `bytes` per rank.
    pub fn all_reduce(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (inside, nodes) = self.placement(group);
        let pass = self.ring_latency(group, nodes).min(self.tree_latency(inside, nodes));
        self.startup() + 2.0 * (pass + self.ring_transfer(group, bytes))
    }

    /// All-to-all of `bytes` per rank. Traffic between nodes uses one device's share of the NICs.
    pub fn all_to_all(&self, group: Group, bytes: f64) -> f64 {
        if group.ranks <= 1 {
            return 0.0;
        }
        let (inside, nodes) = self.placement(group);
        let (intra, inter) = self.latencies();
        let hops = match self.cluster.network.topology {
            Topology::Torus { dims } => (nodes.powf(1.0 / dims as f64) / 4.0).max(1.0),
            _ => 1.0,
        };
        // Messages between nodes also pass the node's links, to and from the NIC.
        let form = all_to_all::even(group.ranks as usize);
        let intra_seconds = bytes * form.parts as f64 / form.of as f64 * self.intra_byte_seconds();
        let inter_byte_seconds =
            self.cluster.link_domains().filter(|domain| domain.devices < self.cluster.devices);
        let inter_byte_seconds = inter_byte_seconds.map(|domain| {
            let leaving = leaving_all_to_all(group, &domain) * domain.devices as f64;
            hops * bytes * self.inter_byte_seconds(leaving, &domain)
        });
        let startup = intra * (inside - 1.0)
            + if nodes > 1.0 { inter * (nodes - 1.0).min(32.0) } else { 0.0 };
        self.startup() + startup + inter_byte_seconds.fold(intra_seconds, f64::max)
    }

    /// Message to the device `stride` ranks away.
    pub fn hop(&self, stride: u64, bytes: f64) -> f64 {
        let (intra, inter) = self.latencies();
        if stride < self.cluster.per_node {
            return intra + bytes * self.intra_byte_seconds();
        }
        let inter_byte_seconds = self.cluster.link_domains().map(|domain| {
            self.inter_byte_seconds(
                leaving_hop(stride, &domain, self.cluster.devices) as f64,
                &domain,
            )
        });
        inter + bytes * inter_byte_seconds.fold(self.intra_byte_seconds(), f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
    use lockstep_schedule::collective::{GroupSpec, build};
    use lockstep_schedule::{Algorithm, Costs, Layout, Link, Op, price};

    #[test]
    fn rings_inside_a_node_are_faster_than_rings_between_nodes() {
        let cluster = named("64xa100-80gb").expect("a cluster");
        let calibration = Calibration::of("a100").expect("it is there");
        let links = Links::new(&cluster, &calibration);
        let time = |ranks, stride| links.all_reduce(Group { ranks, stride }, 1e9);
        assert!(time(8, 1) < time(8, 8) / 4.0);
        // A group of whole nodes uses all their NICs.
        assert!(time(64, 1) < time(8, 8) / 3.0);
        assert!(time(1, 1) <= 0.0);
    }

    #[test]
    fn an_oversubscribed_rack_slows_groups_across_racks_but_not_rings_along_nodes() {
        let mut cluster = named("512xh100-80gb").expect("a cluster");
        let calibration = Calibration::of("h100").expect("it is there");
        let tree = |racks_per_spine, spine_oversubscription| Topology::Racks {
            nodes_per_rack: 16,
            oversubscription: 4.0,
            racks_per_spine,
            spine_oversubscription,
        };
        let mut wired = |topology, group| {
            cluster.network.topology = topology;
            let cluster = Links::new(&cluster, &calibration);
            cluster.all_reduce(group, 1e9)
        };
        // A rack has 128 devices. With ranks that far apart every message leaves its rack.
        let inter = Group { ranks: 4, stride: 128 };
        let full = wired(Topology::Full, inter);
        let racks = wired(tree(4, 2.0), inter);
        assert!(racks > 3.5 * full, "{racks} {full}");
        // With two racks under a spine of half the uplinks, every message leaves those too.
        let farther = Group { ranks: 2, stride: 256 };
        let racks = wired(tree(4, 2.0), farther);
        assert!(wired(tree(2, 2.0), farther) > 1.8 * racks);
        // Rings from node to node leave a rack eight at a time, over a quarter of 128 NICs.
        let along = Group { ranks: 64, stride: 8 };
        let full = wired(Topology::Full, along);
        let racks = wired(tree(4, 2.0), along);
        assert!((racks / full - 1.0).abs() < 1e-9, "{racks} {full}");
    }

    #[test]
    fn all_to_all_pays_for_traffic_between_racks() {
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

    #[test]
    fn collectives_inside_a_node_cost_as_much_as_their_schedules() {
        let cluster = named("64xa100-80gb").expect("a cluster");
        let calibration = Calibration::of("a100").expect("it is there");
        let links = Links::new(&cluster, &calibration);
        let link = Link {
            latency: Seconds(calibration.link_latency_us * 1e-6),
            bandwidth: BytesPerSecond(cluster.link_gbps * 1e9 * calibration.link_share),
        };
        let costs = Costs::plain(link, BytesPerSecond(f64::INFINITY));
        // Of these every group lies inside a node.
        for ranks in [2, 4, 8] {
            let (group, count) = (Group { ranks, stride: 1 }, 1024 * ranks as usize);
            let scheduled = |op, algorithm, count: usize| {
                let schedule = build(op, algorithm, &GroupSpec::new(ranks as usize));
                let schedule = schedule.expect("it is for this");
                price(&schedule, &Layout::even(&schedule, count), Bytes(4), &costs, None).0
            };
            let bytes = 4.0 * count as f64;
            for (closed, scheduled) in [
                (links.all_gather(group, bytes), scheduled(Op::AllGather, Algorithm::RING, count)),
                (links.all_reduce(group, bytes), scheduled(Op::AllReduce, Algorithm::RING, count)),
                (
                    links.all_to_all(group, bytes),
                    scheduled(Op::AllToAll, Algorithm::Pairwise, count * ranks as usize),
                ),
            ] {
                let closed = closed - links.startup();
                assert!((closed / scheduled - 1.0).abs() < 1e-9, "{ranks}: {closed} {scheduled}");
            }
        }
    }
}

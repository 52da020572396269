//! Clusters: nodes of devices and the network between them.

use super::device::{DEVICES, Device};
use super::device_name;

/// Network topology between nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Topology {
    /// Full bisection bandwidth: a fat tree or rails without oversubscription.
    Full,
    /// Oversubscribed tree: racks of nodes under leaf switches, racks under spines. Traffic leaving
    /// a rack shares 1/`oversubscription` of its nodes' bandwidth; traffic leaving a spine's racks
    /// is reduced further by `spine_oversubscription`. Rail-optimized networks are such a tree:
    /// nodes whose GPUs of equal index share a switch form a rack, since messages change rails
    /// inside a node.
    Racks {
        /// Nodes of a rack.
        nodes_per_rack: u64,
        /// Ratio of the nodes' bandwidth to the rack's uplinks.
        oversubscription: f64,
        /// Racks under one spine.
        racks_per_spine: u64,
        /// Ratio of the racks' bandwidth to the spine's uplinks.
        spine_oversubscription: f64,
    },
    /// Torus: only neighbours are linked, so distant messages pass many links.
    Torus {
        /// Number of dimensions.
        dims: u64,
    },
}

/// Network between nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Bandwidth of a device's share of its node's NICs, GB/s.
    pub device_gbps: f64,
    /// Topology.
    pub topology: Topology,
    /// Whether the network is Ethernet, whose messages have a higher latency.
    pub is_ethernet: bool,
}

/// Consecutive devices that share links to all others: those of a node its NICs, those of a rack
/// and of a spine's racks their uplinks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkDomain {
    /// Number of devices.
    pub devices: u64,
    /// Bandwidth of the links in each direction, GB/s.
    pub gbps: f64,
}

/// A cluster of equal devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Name of the cluster.
    pub name: String,
    /// Type of its devices.
    pub device: Device,
    /// Number of devices.
    pub devices: u64,
    /// Devices per node.
    pub per_node: u64,
    /// Bandwidth between devices of a node in each direction, GB/s.
    pub link_gbps: f64,
    /// Network between nodes.
    pub network: Network,
    /// Bandwidth between a device and its host in each direction, GB/s.
    pub host_gbps: f64,
    /// A device's share of its host's memory bandwidth, GB/s.
    pub host_memory_gbps: f64,
    /// Memory of a node's host, GB (powers of two, as of devices).
    pub host_memory_gb: f64,
    /// A device's share of the bandwidth of its node's NVMe drives, GB/s.
    pub nvme_gbps: f64,
    /// Storage write bandwidth for checkpoints, GB/s for all nodes together.
    pub storage_gbps: f64,
    /// Price of a device hour in dollars.
    pub dollars_per_device_hour: f64,
    /// Price of a kilowatt-hour in dollars.
    pub dollars_per_kwh: f64,
    /// Watts of a device with its share of node, network and cooling.
    pub watts_per_device: f64,
    /// Failures per node and day.
    pub failures_per_node_day: f64,
}

/// Power of node, network and cooling, as a multiple of the device's.
const OVERHEAD: f64 = 1.5;
/// Failures per device and day. Llama 3 (2024) reports 419 unexpected interruptions on 2,048 nodes
/// of eight GPUs in 54 days, most of them GPU failures.
const FAILURES: f64 = 3.8e-3 / 8.0;
/// Host memory of a node, GB, and a device's share of its NVMe bandwidth, GB/s: the DGX-2 nodes of
/// ZeRO-Offload and ZeRO-Infinity (1.5 TB, 25 GB/s for 16 GPUs).
const HOST_MEMORY: f64 = 1536.0;
const NVME: f64 = 25.0 / 16.0;
/// Storage bandwidth per device, GB/s.
const STORAGE: f64 = 0.25;

impl Cluster {
    /// Cluster of this many devices in their usual nodes, on a network of their usual speed.
    pub fn of(device: Device, devices: u64) -> Self {
        Self {
            name: format!("{devices} {}", device.name),
            device,
            devices,
            per_node: device.per_node,
            link_gbps: device.link_gbps,
            network: Network {
                device_gbps: device.network_gbps,
                topology: Topology::Full,
                is_ethernet: false,
            },
            host_gbps: 25.0,
            host_memory_gbps: 40.0,
            host_memory_gb: HOST_MEMORY,
            nvme_gbps: NVME,
            storage_gbps: STORAGE * devices.next_multiple_of(device.per_node) as f64,
            dollars_per_device_hour: device.dollars_per_hour,
            dollars_per_kwh: 0.1,
            watts_per_device: device.watts * OVERHEAD,
            failures_per_node_day: 0.0,
        }
        .in_nodes_of(device.per_node)
    }

    /// Sets the devices per node; a node fails as often as its devices together.
    pub(crate) fn in_nodes_of(self, per_node: u64) -> Self {
        Self { per_node, failures_per_node_day: FAILURES * per_node as f64, ..self }
    }

    /// Domains of devices that share links, smallest first.
    pub fn link_domains(&self) -> impl Iterator<Item = LinkDomain> {
        let domain = |devices: u64, short: f64| {
            let gbps = devices as f64 * self.network.device_gbps / short;
            LinkDomain { devices, gbps }
        };
        let mut link_domains = [Some(domain(self.per_node, 1.0)), None, None];
        if let Topology::Racks {
            nodes_per_rack,
            oversubscription,
            racks_per_spine,
            spine_oversubscription,
        } = self.network.topology
        {
            let rack = self.per_node.saturating_mul(nodes_per_rack);
            let spine = rack.saturating_mul(racks_per_spine);
            link_domains[1] = Some(domain(rack, oversubscription));
            link_domains[2] = Some(domain(spine, oversubscription * spine_oversubscription));
        }
        link_domains.into_iter().flatten()
    }

    /// Memory of a node's host in bytes.
    pub fn host_memory_bytes(&self) -> f64 {
        self.host_memory_gb * f64::from(1_u32 << 30)
    }

    /// Number of nodes; the last may be partly filled.
    pub const fn nodes(&self) -> u64 {
        self.devices.div_ceil(self.per_node)
    }
}

/// Cluster of a name such as `1024xa100-80gb` or `8 x H100`: a number of devices of a type.
pub fn named(name: &str) -> Option<Cluster> {
    let (count, device) = split(name)?;
    let devices: u64 = count.parse().ok().filter(|count| *count > 0)?;
    let device = device_name::find(device).ok()?;
    Some(Cluster { name: format!("{devices}x{}", device.name), ..Cluster::of(device, devices) })
}

/// The number and the device of a cluster's name, whether or not they are known.
pub fn split(name: &str) -> Option<(&str, &str)> {
    let (count, device) = name.split_once(['x', 'X', '×', '*'])?;
    Some((count.trim(), device.trim()))
}

/// Names of all devices, for messages.
pub fn names() -> String {
    DEVICES.iter().map(|device| device.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_number_and_a_device() {
        let cluster = named("1024xa100-80gb").expect("a cluster");
        assert_eq!((cluster.devices, cluster.nodes(), cluster.per_node), (1024, 128, 8));
        assert_eq!(named("0xa100-80gb"), None);
        assert_eq!(named("8xb52"), None);
        for name in ["256xh100", "256xH100", "256 x h100-sxm", "256X H100", "256*h100-80gb"] {
            let cluster = named(name).expect(name);
            assert_eq!((cluster.name.as_str(), cluster.devices), ("256xh100-80gb", 256), "{name}");
        }
        assert_eq!(named("8xmi300x").expect("a cluster").device.name, "mi300x-192gb");
        assert_eq!(named("8xxeon").expect("a cluster").device.name, "xeon-8480");
        assert_eq!(named("8xv100"), None, "of 16 or 32 GB");
    }

    #[test]
    fn a_device_fails_as_often_in_a_large_node_as_in_a_small_one() {
        let failures = |name| {
            let cluster = named(name).expect("a cluster");
            cluster.failures_per_node_day * cluster.nodes() as f64
        };
        assert!((failures("1152xgb200-186gb") / failures("1152xb200-180gb") - 1.0).abs() < 1e-9);
        // A node with one device missing has the storage bandwidth of a full one.
        let storage = |name| named(name).expect("a cluster").storage_gbps;
        assert!((storage("71xgb200-186gb") - storage("72xb200-180gb")).abs() < 1e-9);
    }
}

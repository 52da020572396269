//! Nodes of devices, and the network between them.

use super::device::{DEVICES, Device};

/// How nodes are wired.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Topology {
    /// Every pair of nodes at full speed: a fat tree or rails with as many links upwards as down.
    Full,
    /// A tree: racks of nodes under their switches, and racks under spines. What leaves a rack
    /// shares 1/`oversubscription` of its nodes' bandwidth, and what leaves a spine's racks as
    /// much less again as spines are short of. Rails are such a tree: nodes whose first devices
    /// share one switch, and so on, are a rack, since messages change rails inside a node.
    Racks {
        /// Nodes of a rack.
        nodes_per_rack: u64,
        /// How many times more the nodes could send than the rack's uplinks carry.
        oversubscription: f64,
        /// Racks under one spine.
        racks_per_spine: u64,
        /// How many times more its racks could send than the spine's uplinks carry.
        spine_oversubscription: f64,
    },
    /// A torus: neighbours only, so what goes far passes many links.
    Torus {
        /// How many dimensions.
        dims: u64,
    },
}

/// Between nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Bandwidth of each device's share of its node's cards, GB/s.
    pub device_gbps: f64,
    /// How nodes are wired.
    pub topology: Topology,
    /// Whether it is Ethernet, whose messages start more slowly.
    pub is_ethernet: bool,
}

/// Links that consecutive devices share on their way to all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// A node's network cards.
    Cards,
    /// A rack's uplinks.
    Rack,
    /// The uplinks of a spine's racks.
    Spine,
}

/// Consecutive devices and the links that they share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Which links.
    pub shared: Shared,
    /// How many devices.
    pub devices: u64,
    /// What the links carry in each direction, GB/s.
    pub gbps: f64,
}

/// A cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// What people call it.
    pub name: String,
    /// Its devices, all of one type.
    pub device: Device,
    /// How many there are.
    pub devices: u64,
    /// How many of them sit in a node.
    pub per_node: u64,
    /// Bandwidth between devices of a node in each direction, GB/s.
    pub link_gbps: f64,
    /// Between nodes.
    pub network: Network,
    /// Bandwidth between a device and its host in each direction, GB/s.
    pub host_gbps: f64,
    /// A device's share of its host's memory bandwidth, GB/s.
    pub host_memory_gbps: f64,
    /// What storage takes of a checkpoint, GB/s for all nodes together.
    pub storage_gbps: f64,
    /// An hour of one device, dollars.
    pub dollars_per_device_hour: f64,
    /// A kilowatt-hour, dollars.
    pub dollars_per_kwh: f64,
    /// Watts of a device with its share of node, network and cooling.
    pub watts_per_device: f64,
    /// Failures of a node in a day.
    pub failures_per_node_day: f64,
}

/// Watts of everything around a device, as a multiple of its own.
const OVERHEAD: f64 = 1.5;
/// Failures of a device in a day, with its share of the node: Llama 3's herd had 419 unexpected
/// interruptions on 2,048 nodes of eight in 54 days, most of them of devices.
const FAILURES: f64 = 3.8e-3 / 8.0;
/// What storage takes for each device, GB/s.
const STORAGE: f64 = 0.25;

impl Cluster {
    /// So many devices of a type in their usual nodes, on a network at their usual speed.
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
            storage_gbps: STORAGE * devices.next_multiple_of(device.per_node) as f64,
            dollars_per_device_hour: device.dollars_per_hour,
            dollars_per_kwh: 0.1,
            watts_per_device: device.watts * OVERHEAD,
            failures_per_node_day: 0.0,
        }
        .in_nodes_of(device.per_node)
    }

    /// The same in nodes of so many devices, which fail as often as their devices together.
    pub(crate) fn in_nodes_of(self, per_node: u64) -> Self {
        Self { per_node, failures_per_node_day: FAILURES * per_node as f64, ..self }
    }

    /// Units whose devices share links, from the smallest on.
    pub fn units(&self) -> impl Iterator<Item = Unit> {
        let unit = |shared, devices: u64, short: f64| {
            let gbps = devices as f64 * self.network.device_gbps / short;
            Unit { shared, devices, gbps }
        };
        let mut units = [Some(unit(Shared::Cards, self.per_node, 1.0)), None, None];
        if let Topology::Racks {
            nodes_per_rack,
            oversubscription,
            racks_per_spine,
            spine_oversubscription,
        } = self.network.topology
        {
            let rack = self.per_node.saturating_mul(nodes_per_rack);
            let spine = rack.saturating_mul(racks_per_spine);
            units[1] = Some(unit(Shared::Rack, rack, oversubscription));
            units[2] = Some(unit(Shared::Spine, spine, oversubscription * spine_oversubscription));
        }
        units.into_iter().flatten()
    }

    /// Nodes, the last of them perhaps not full.
    pub const fn nodes(&self) -> u64 {
        self.devices.div_ceil(self.per_node)
    }
}

/// `1024xa100-80gb`: a number of devices of a named type.
pub fn named(name: &str) -> Option<Cluster> {
    let (count, device) = name.split_once('x')?;
    let devices: u64 = count.parse().ok().filter(|count| *count > 0)?;
    Some(Cluster { name: name.to_owned(), ..Cluster::of(Device::named(device)?, devices) })
}

/// The devices that [`named`] knows, for messages.
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
    }

    #[test]
    fn a_device_fails_as_often_in_a_large_node_as_in_a_small_one() {
        let failures = |name| {
            let cluster = named(name).expect("a cluster");
            cluster.failures_per_node_day * cluster.nodes() as f64
        };
        assert!((failures("1152xgb200-186gb") / failures("1152xb200-180gb") - 1.0).abs() < 1e-9);
        // A large node of which one device is missing stores no less for that.
        let storage = |name| named(name).expect("a cluster").storage_gbps;
        assert!((storage("71xgb200-186gb") - storage("72xb200-180gb")).abs() < 1e-9);
    }
}

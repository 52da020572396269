//! A cluster as a TOML file.
//!
//! ```toml
//! device = "a100-80gb"        # a preset; keys below replace what it says
//! devices = 1024
//! per_node = 8
//! link_gbps = 300             # GB/s of a device to its neighbours, each direction
//! network_gbps = 25           # GB/s of a device's share of network cards, or
//! nics_per_node = 8           # how many cards a node has, and
//! nic_gbps = 25               # GB/s of each
//! network = "infiniband"      # or "ethernet"
//! topology = "full"           # or "racks", "torus"
//! nodes_per_rack = 16
//! oversubscription = 2.0      # of a rack's uplinks
//! racks_per_spine = 8
//! spine_oversubscription = 4.0
//! torus_dims = 3
//! host_gbps = 25              # GB/s of a device to its host, each direction
//! host_memory_gbps = 40       # GB/s of a device's share of the host's memory
//! storage_gbps = 100
//! dollars_per_device_hour = 2.0
//! dollars_per_kwh = 0.1
//! watts_per_device = 600
//! failures_per_node_day = 0.0038
//! ```

use super::cluster::{Cluster, Topology, names};
use super::device::Device;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    device: String,
    devices: i64,
    per_node: Option<i64>,
    link_gbps: Option<f64>,
    network_gbps: Option<f64>,
    nics_per_node: Option<i64>,
    nic_gbps: Option<f64>,
    network: Option<String>,
    topology: Option<String>,
    nodes_per_rack: Option<i64>,
    oversubscription: Option<f64>,
    racks_per_spine: Option<i64>,
    spine_oversubscription: Option<f64>,
    torus_dims: Option<i64>,
    host_gbps: Option<f64>,
    host_memory_gbps: Option<f64>,
    memory_gb: Option<f64>,
    peak_tflops: Option<f64>,
    memory_gbps: Option<f64>,
    storage_gbps: Option<f64>,
    dollars_per_device_hour: Option<f64>,
    dollars_per_kwh: Option<f64>,
    watts_per_device: Option<f64>,
    failures_per_node_day: Option<f64>,
}

/// Reads a cluster, or says everything that is wrong with it, each with what would work.
pub fn parse(name: &str, text: &str) -> Result<Cluster, Vec<String>> {
    let raw: Raw = toml::from_str(text).map_err(|error| {
        let line = error.message().replace('\n', " ");
        vec![format!("{name}: {line}; `lockstep plan --help` shows a cluster file")]
    })?;
    let mut wrong = Vec::new();
    let device = Device::named(&raw.device);
    if device.is_none() {
        wrong.push(format!(
            "{name}: device = {:?} is not known; try one of {}",
            raw.device,
            names()
        ));
    }
    let mut at_least_one = |key: &str, value: Option<i64>, usual: u64| match value {
        Some(value) if value < 1 => {
            wrong.push(format!("{name}: {key} = {value} must be at least 1; try {usual}"));
            usual
        }
        Some(value) => value as u64,
        None => usual,
    };
    let device = device.unwrap_or(super::DEVICES[0]);
    let devices = at_least_one("devices", Some(raw.devices), 8);
    let per_node = at_least_one("per_node", raw.per_node, device.per_node);
    let nodes_per_rack = at_least_one("nodes_per_rack", raw.nodes_per_rack, 16);
    let racks_per_spine = at_least_one("racks_per_spine", raw.racks_per_spine, u64::from(u32::MAX));
    let dims = at_least_one("torus_dims", raw.torus_dims, 3);
    let nics = at_least_one("nics_per_node", raw.nics_per_node, per_node);
    let mut positive =
        |key: &str, value: Option<f64>, usual: f64| positive(name, &mut wrong, (key, value), usual);
    let mut cluster = Cluster::of(device, devices);
    name.clone_into(&mut cluster.name);
    cluster.per_node = per_node;
    cluster.device.memory_gb = positive("memory_gb", raw.memory_gb, device.memory_gb);
    cluster.device.peak_tflops = positive("peak_tflops", raw.peak_tflops, device.peak_tflops);
    cluster.device.memory_gbps = positive("memory_gbps", raw.memory_gbps, device.memory_gbps);
    cluster.link_gbps = positive("link_gbps", raw.link_gbps, device.link_gbps);
    let network = positive("network_gbps", raw.network_gbps, device.network_gbps);
    let cards = positive("nic_gbps", raw.nic_gbps, network) * nics as f64 / per_node as f64;
    let has_cards = raw.nics_per_node.is_some() || raw.nic_gbps.is_some();
    let oversubscription = positive("oversubscription", raw.oversubscription, 1.0);
    let spine_oversubscription =
        positive("spine_oversubscription", raw.spine_oversubscription, 1.0);
    cluster.host_gbps = positive("host_gbps", raw.host_gbps, cluster.host_gbps);
    cluster.host_memory_gbps =
        positive("host_memory_gbps", raw.host_memory_gbps, cluster.host_memory_gbps);
    cluster.storage_gbps = positive("storage_gbps", raw.storage_gbps, cluster.storage_gbps);
    let dollars = cluster.dollars_per_device_hour;
    cluster.dollars_per_device_hour =
        positive("dollars_per_device_hour", raw.dollars_per_device_hour, dollars);
    cluster.dollars_per_kwh = positive("dollars_per_kwh", raw.dollars_per_kwh, 0.1);
    let watts = cluster.watts_per_device;
    cluster.watts_per_device = positive("watts_per_device", raw.watts_per_device, watts);
    let failures = cluster.failures_per_node_day;
    cluster.failures_per_node_day =
        positive("failures_per_node_day", raw.failures_per_node_day, failures);
    cluster.network.device_gbps = if has_cards { cards } else { network };
    network_kind(name, &raw, &mut cluster, &mut wrong);
    let racks = Topology::Racks {
        nodes_per_rack,
        oversubscription,
        racks_per_spine,
        spine_oversubscription,
    };
    cluster.network.topology = topology(name, &raw, racks, dims, &mut wrong);
    if wrong.is_empty() { Ok(cluster) } else { Err(wrong) }
}

/// A number above zero, or the usual one.
fn positive(
    name: &str,
    wrong: &mut Vec<String>,
    (key, value): (&str, Option<f64>),
    usual: f64,
) -> f64 {
    match value {
        Some(value) if !(value > 0.0 && value.is_finite()) => {
            wrong.push(format!("{name}: {key} = {value} must be above zero; try {usual}"));
            usual
        }
        Some(value) => value,
        None => usual,
    }
}

/// Ethernet or InfiniBand.
fn network_kind(name: &str, raw: &Raw, cluster: &mut Cluster, wrong: &mut Vec<String>) {
    cluster.network.is_ethernet = match raw.network.as_deref() {
        None | Some("infiniband") => false,
        Some("ethernet") => true,
        Some(other) => {
            wrong.push(format!("{name}: network = {other:?}; try \"infiniband\" or \"ethernet\""));
            false
        }
    };
}

/// How nodes are wired, by name.
fn topology(
    name: &str,
    raw: &Raw,
    racks: Topology,
    dims: u64,
    wrong: &mut Vec<String>,
) -> Topology {
    match raw.topology.as_deref() {
        None | Some("full" | "fat-tree" | "rails") => Topology::Full,
        Some("racks" | "tree") => racks,
        Some("torus") => Topology::Torus { dims },
        Some(other) => {
            let some = "\"full\", \"fat-tree\", \"rails\", \"racks\", \"tree\" or \"torus\"";
            wrong.push(format!("{name}: topology = {other:?}; try {some}"));
            Topology::Full
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_what_the_preset_says() {
        let text = "device = \"h100-80gb\"\ndevices = 64\nnetwork_gbps = 12.5\n\
                    topology = \"racks\"\n\
                    nodes_per_rack = 4\noversubscription = 3.0\n";
        let cluster = parse("mine", text).expect("a cluster");
        assert_eq!((cluster.devices, cluster.nodes()), (64, 8));
        assert!((cluster.network.device_gbps - 12.5).abs() < 1e-12);
        let racks = Topology::Racks {
            nodes_per_rack: 4,
            oversubscription: 3.0,
            racks_per_spine: u64::from(u32::MAX),
            spine_oversubscription: 1.0,
        };
        assert_eq!(cluster.network.topology, racks);
        // Four cards of 25 GB/s for eight devices are 12.5 for each.
        let cards = "device = \"h100-80gb\"\ndevices = 64\nnics_per_node = 4\nnic_gbps = 25.0\n";
        let cluster = parse("mine", cards).expect("a cluster");
        assert!((cluster.network.device_gbps - 12.5).abs() < 1e-12);
    }

    #[test]
    fn every_mistake_is_told_at_once_with_a_way_out() {
        let text = "device = \"abacus\"\ndevices = 0\nnetwork_gbps = -3.0\ntopology = \"heap\"\n";
        let wrong = parse("mine", text).expect_err("four mistakes");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("try ")), "{wrong:?}");
    }
}

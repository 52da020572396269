//! A cluster as a TOML file.
//!
//! ```toml
//! device = "a100-80gb"        # a preset; keys below replace what it says
//! devices = 1024
//! per_node = 8
//! link_gbps = 300             # GB/s of a device to its neighbours, each direction
//! network_gbps = 25           # GB/s of a device's share of the node's NICs, or
//! nics_per_node = 8           # NICs per node, and
//! nic_gbps = 25               # GB/s of each
//! network = "infiniband"      # or "ethernet"
//! topology = "full"           # or "tree", "fat-tree", "rails", "torus"
//! nodes_per_rack = 16         # of trees; of rails: nodes that share their switches
//! oversubscription = 2.0      # of a rack's uplinks
//! racks_per_spine = 8
//! spine_oversubscription = 4.0
//! torus_dims = 3
//! host_gbps = 25              # GB/s of a device to its host, each direction
//! host_memory_gbps = 40       # GB/s of a device's share of the host's memory
//! host_memory_gb = 1536       # memory of a node's host
//! nvme_gbps = 1.5             # GB/s of a device's share of the node's NVMe drives
//! storage_gbps = 100
//! dollars_per_device_hour = 2.0
//! dollars_per_kwh = 0.1
//! watts_per_device = 600
//! failures_per_node_day = 0.0038
//! ```

use super::cluster::{Cluster, Topology, names};
use super::device::Device;
use super::device_name;
use lockstep_config::nearest;
use toml::{Table, Value};

/// Upper bound of every number in the file.
const MAX_VALUE: f64 = 1e9;
/// Keys of oversubscribed trees.
const TREE: [&str; 4] =
    ["nodes_per_rack", "oversubscription", "racks_per_spine", "spine_oversubscription"];

/// Parses a cluster, or reports every error, each with a value that would work.
pub fn parse(name: &str, text: &str) -> Result<Cluster, Vec<String>> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = 1 + text.get(..at).unwrap_or(text).matches('\n').count();
        let what = error.message().replace('\n', " ");
        vec![format!("{name}, line {line}: {what}; `lockstep plan --help` shows a cluster file")]
    })?;
    let mut file = File { name, table: &table, keys: Vec::new(), errors: Vec::new() };
    let device = file.device();
    let devices = file.whole("devices", None, 8);
    let per_node = file.whole("per_node", Some(device.per_node), device.per_node);
    let mut cluster = Cluster::of(device, devices).in_nodes_of(per_node);
    name.clone_into(&mut cluster.name);
    for (key, value) in [
        ("memory_gb", &mut cluster.device.memory_gb),
        ("peak_tflops", &mut cluster.device.peak_tflops),
        ("memory_gbps", &mut cluster.device.memory_gbps),
        ("link_gbps", &mut cluster.link_gbps),
        ("host_gbps", &mut cluster.host_gbps),
        ("host_memory_gbps", &mut cluster.host_memory_gbps),
        ("host_memory_gb", &mut cluster.host_memory_gb),
        ("nvme_gbps", &mut cluster.nvme_gbps),
        ("storage_gbps", &mut cluster.storage_gbps),
        ("dollars_per_device_hour", &mut cluster.dollars_per_device_hour),
        ("dollars_per_kwh", &mut cluster.dollars_per_kwh),
        ("watts_per_device", &mut cluster.watts_per_device),
        ("failures_per_node_day", &mut cluster.failures_per_node_day),
    ] {
        *value = file.positive(key, *value);
    }
    cluster.network.device_gbps = file.network_share(cluster.per_node, device.network_gbps);
    let networks = ["infiniband", "ethernet"];
    cluster.network.is_ethernet = file.choice("network", &networks) == Some("ethernet");
    cluster.network.topology = file.topology();
    let errors = [file.unknown_keys(), file.errors].concat();
    if errors.is_empty() { Ok(cluster) } else { Err(errors) }
}

/// A file being parsed, and its errors so far.
struct File<'a> {
    name: &'a str,
    table: &'a Table,
    /// Keys that have been read.
    keys: Vec<&'static str>,
    errors: Vec<String>,
}

impl<'a> File<'a> {
    fn error(&mut self, line: &str) {
        self.errors.push(format!("{}: {line}", self.name));
    }

    /// Value of a key.
    fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.keys.push(key);
        self.table.get(key)
    }

    /// Errors of keys that were not read.
    fn unknown_keys(&self) -> Vec<String> {
        let known = || self.keys.iter().copied();
        let unknown = self.table.keys().filter(|key| known().all(|known| known != *key));
        let error = |key: &String| {
            // A key with an extra prefix (`devices_per_node`) is closer than one of similar
            // spelling.
            let same = known().find(|known| key.ends_with(&format!("_{known}")));
            let fix = same.or_else(|| nearest(key, known())).map_or_else(
                || "try without it; `lockstep plan --help` shows a cluster file".to_owned(),
                |suggestion| format!("try {suggestion}"),
            );
            format!("{}: unknown cluster key {key}; {fix}", self.name)
        };
        unknown.map(error).collect()
    }

    /// Device preset of the file.
    fn device(&mut self) -> Device {
        let given = self.get("device");
        let choice = given.and_then(Value::as_str);
        match choice.map(device_name::find) {
            Some(Ok(device)) => return device,
            Some(Err(error)) => self.error(&format!("device = {error}")),
            None => {
                let is =
                    given.map_or("is missing".to_owned(), |value| format!("= {value} is not text"));
                self.error(&format!("device {is}; try one of {}", names()));
            }
        }
        super::DEVICES[0]
    }

    /// Positive integer: the value of the key, the default, or a placeholder after an error.
    fn whole(&mut self, key: &'static str, default: Option<u64>, example: u64) -> u64 {
        match (self.get(key), default) {
            (None, Some(default)) => default,
            (None, None) => {
                self.error(&format!("{key} is missing; try {key} = {example}"));
                example
            }
            (Some(Value::Integer(value)), _) if *value >= 1 => value.unsigned_abs(),
            (Some(value), _) => {
                let what = "must be a whole number of at least 1";
                self.error(&format!("{key} = {value} {what}; try {example}"));
                example
            }
        }
    }

    /// Positive number, or the default.
    fn positive(&mut self, key: &'static str, default: f64) -> f64 {
        let value = match self.get(key) {
            None => return default,
            Some(Value::Integer(value)) => *value as f64,
            Some(Value::Float(value)) => *value,
            Some(_) => f64::NAN,
        };
        // Hardware that people own may cost nothing.
        let is_price = key.starts_with("dollars");
        if (value > 0.0 && value < MAX_VALUE) || (is_price && value == 0.0) {
            return value;
        }
        let value = &self.table[key];
        let least = if is_price { "of at least" } else { "above" };
        self.error(&format!(
            "{key} = {value} must be a number {least} zero, below {MAX_VALUE}; try {default}"
        ));
        default
    }

    /// Oversubscription ratio, at least 1.
    fn oversubscription(&mut self, key: &'static str) -> f64 {
        let times = self.positive(key, 1.0);
        if times < 1.0 {
            self.error(&format!("{key} = {times} must be at least 1; try 1"));
        }
        times.max(1.0)
    }

    /// One of several names, if the key is present.
    fn choice(&mut self, key: &'static str, choices: &[&'static str]) -> Option<&'static str> {
        let value = self.get(key)?;
        let found = value.as_str().and_then(|text| choices.iter().find(|choice| **choice == text));
        if found.is_none() {
            let all: Vec<String> = choices.iter().map(|choice| format!("\"{choice}\"")).collect();
            self.error(&format!("{key} = {value}; try one of {}", all.join(", ")));
        }
        found.copied()
    }

    /// Network bandwidth per device, given directly or by the node's NICs.
    fn network_share(&mut self, per_node: u64, default: f64) -> f64 {
        let share = self.positive("network_gbps", default);
        let nics = self.whole("nics_per_node", Some(per_node), per_node);
        let each = self.positive("nic_gbps", share);
        let has_nics = ["nics_per_node", "nic_gbps"].iter().any(|key| self.has(key));
        if has_nics && self.has("network_gbps") {
            self.error(
                "network_gbps is a device's share of what nics_per_node and nic_gbps say; \
                 try one or the other",
            );
        }
        if has_nics { each * nics as f64 / per_node as f64 } else { share }
    }

    fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Topology of the network. Fat trees and rails are trees that may be oversubscribed; a full
    /// topology is not.
    fn topology(&mut self) -> Topology {
        let tree = Topology::Racks {
            nodes_per_rack: self.whole("nodes_per_rack", Some(16), 16),
            oversubscription: self.oversubscription("oversubscription"),
            racks_per_spine: self.whole("racks_per_spine", Some(u64::from(u32::MAX)), 8),
            spine_oversubscription: self.oversubscription("spine_oversubscription"),
        };
        let dims = self.whole("torus_dims", Some(3), 3);
        let choices = ["full", "fat-tree", "rails", "racks", "tree", "torus"];
        let choice = self.choice("topology", &choices);
        if choice.is_none() && self.has("topology") {
            return Topology::Full;
        }
        let idle = |keys: &[&'a str], file: &Self| -> Vec<&'a str> {
            keys.iter().copied().filter(|key| file.has(key)).collect()
        };
        let (topology, idle) = match choice {
            Some("racks" | "tree" | "fat-tree" | "rails") => (tree, idle(&["torus_dims"], self)),
            Some("torus") => (Topology::Torus { dims }, idle(&TREE, self)),
            _ => (Topology::Full, idle(&[&TREE[..], &["torus_dims"]].concat(), self)),
        };
        let is_tree = matches!(topology, Topology::Racks { .. });
        if is_tree && self.has("spine_oversubscription") && !self.has("racks_per_spine") {
            self.error(
                "spine_oversubscription has no effect without racks_per_spine; try \
                 racks_per_spine = 8 beside it",
            );
        }
        for key in idle {
            let (is, try_this) =
                (choice.unwrap_or("full"), if key == "torus_dims" { "torus" } else { "tree" });
            self.error(&format!(
                "{key} has no effect with topology = \"{is}\"; try topology = \"{try_this}\""
            ));
        }
        topology
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
        // Four NICs of 25 GB/s for eight devices are 12.5 for each.
        let nics = "device = \"h100-80gb\"\ndevices = 64\nnics_per_node = 4\nnic_gbps = 25.0\n";
        let cluster = parse("mine", nics).expect("a cluster");
        assert!((cluster.network.device_gbps - 12.5).abs() < 1e-12);
    }

    #[test]
    fn fat_trees_and_rails_may_be_oversubscribed() {
        for topology in ["tree", "fat-tree", "rails"] {
            let text = format!(
                "device = \"h100-80gb\"\ndevices = 512\ntopology = \"{topology}\"\n\
                 nodes_per_rack = 32\noversubscription = 3\n"
            );
            let cluster = parse("mine", &text).expect("a cluster");
            let domains: Vec<(u64, f64)> =
                cluster.link_domains().map(|u| (u.devices, u.gbps)).collect();
            // A rack of 256 devices with 50 GB/s of NICs each has a third of that as uplinks.
            assert_eq!(domains[0], (8, 400.0));
            assert_eq!(domains[1].0, 256);
            assert!((domains[1].1 - 256.0 * 50.0 / 3.0).abs() < 1e-9, "{domains:?}");
        }
    }

    #[test]
    fn all_errors_are_reported_together_with_a_fix() {
        let text = "device = \"abacus\"\ndevices = 0\nnetwork_gbps = -3.0\ntopology = \"heap\"\n";
        let errors = parse("mine", text).expect_err("four mistakes");
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert!(errors.iter().all(|line| line.contains("try ")), "{errors:?}");
        let text = "devices = 2.5\nnetwork_gpbs = 3\nlink_gbps = \"fast\"\nwheels = 4\n\
                    oversubscription = 2.0\nnic_gbps = 25\nnetwork_gbps = 12\n";
        let errors = parse("mine", text).expect_err("seven mistakes");
        assert_eq!(errors.len(), 7, "{errors:?}");
        assert!(errors.iter().all(|line| line.contains("try ")), "{errors:?}");
        assert!(errors.iter().any(|line| line.contains("try network_gbps")), "{errors:?}");
        assert!(errors.iter().any(|line| line.contains("topology = \"tree\"")), "{errors:?}");
        let text = "device = \"h100-80gb\"\ndevices = 64\ntopology = \"tree\"\n\
                    devices_per_node = 4\noversubscription = 0.5\nspine_oversubscription = 2\n";
        let errors = parse("mine", text).expect_err("three mistakes");
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors.iter().any(|line| line.ends_with("try per_node")), "{errors:?}");
        let text = "device = \"h100-80gb\"\ndevices = 64\ntopology = \"tre\"\nracks_per_spine = 4";
        assert_eq!(parse("mine", text).map_err(|errors| errors.len()), Err(1));
        let errors = parse("mine", "devices = 4\nnetwork = = 3\n").expect_err("no table");
        assert!(errors[0].starts_with("mine, line 2: "), "{errors:?}");
    }
}

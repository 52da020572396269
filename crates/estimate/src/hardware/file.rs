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
//! topology = "full"           # or "tree", "fat-tree", "rails", "torus"
//! nodes_per_rack = 16         # of trees; of rails: nodes that share their switches
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
use lockstep_config::nearest;
use toml::{Table, Value};

/// Every key that a cluster file may have.
const KEYS: [&str; 24] = [
    "device",
    "devices",
    "per_node",
    "link_gbps",
    "network_gbps",
    "nics_per_node",
    "nic_gbps",
    "network",
    "topology",
    "nodes_per_rack",
    "oversubscription",
    "racks_per_spine",
    "spine_oversubscription",
    "torus_dims",
    "host_gbps",
    "host_memory_gbps",
    "memory_gb",
    "peak_tflops",
    "memory_gbps",
    "storage_gbps",
    "dollars_per_device_hour",
    "dollars_per_kwh",
    "watts_per_device",
    "failures_per_node_day",
];
/// No number of a cluster is as large.
const MOST: f64 = 1e9;
/// Keys of trees of switches.
const TREE: [&str; 4] =
    ["nodes_per_rack", "oversubscription", "racks_per_spine", "spine_oversubscription"];

/// Reads a cluster, or says everything that is wrong with it, each with what would work.
pub fn parse(name: &str, text: &str) -> Result<Cluster, Vec<String>> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = 1 + text.get(..at).unwrap_or(text).matches('\n').count();
        let what = error.message().replace('\n', " ");
        vec![format!("{name}, line {line}: {what}; `lockstep plan --help` shows a cluster file")]
    })?;
    let mut file = File { name, table: &table, wrong: Vec::new() };
    file.only_known_keys();
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
        ("storage_gbps", &mut cluster.storage_gbps),
        ("dollars_per_device_hour", &mut cluster.dollars_per_device_hour),
        ("dollars_per_kwh", &mut cluster.dollars_per_kwh),
        ("watts_per_device", &mut cluster.watts_per_device),
        ("failures_per_node_day", &mut cluster.failures_per_node_day),
    ] {
        *value = file.positive(key, *value);
    }
    cluster.network.device_gbps = file.network_share(cluster.per_node, device.network_gbps);
    let kinds = ["infiniband", "ethernet"];
    cluster.network.is_ethernet = file.word("network", &kinds) == Some("ethernet");
    cluster.network.topology = file.topology();
    if file.wrong.is_empty() { Ok(cluster) } else { Err(file.wrong) }
}

/// A file that is being read, and what was wrong with it so far.
struct File<'a> {
    name: &'a str,
    table: &'a Table,
    wrong: Vec<String>,
}

impl<'a> File<'a> {
    fn refuse(&mut self, line: &str) {
        self.wrong.push(format!("{}: {line}", self.name));
    }

    fn only_known_keys(&mut self) {
        for key in self.table.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            // A longer name of the same thing is nearer than one with as many letters.
            let same = KEYS.into_iter().find(|known| key.ends_with(&format!("_{known}")));
            let fix = same.or_else(|| nearest(key, KEYS)).map_or_else(
                || "try without it; `lockstep plan --help` shows a cluster file".to_owned(),
                |near| format!("try {near}"),
            );
            self.refuse(&format!("{key} is no key of a cluster; {fix}"));
        }
    }

    /// The preset that the file begins with.
    fn device(&mut self) -> Device {
        let given = self.table.get("device");
        let word = given.and_then(Value::as_str);
        if let Some(device) = word.and_then(Device::named) {
            return device;
        }
        let is = given.map_or("is missing".to_owned(), |value| format!("= {value} is not known"));
        self.refuse(&format!("device {is}; try one of {}", names()));
        super::DEVICES[0]
    }

    /// A number from one on: the given one, the usual one, or one to go on with.
    fn whole(&mut self, key: &str, usual: Option<u64>, example: u64) -> u64 {
        match (self.table.get(key), usual) {
            (None, Some(usual)) => usual,
            (None, None) => {
                self.refuse(&format!("{key} is missing; try {key} = {example}"));
                example
            }
            (Some(Value::Integer(value)), _) if *value >= 1 => value.unsigned_abs(),
            (Some(value), _) => {
                let what = "must be a whole number of at least 1";
                self.refuse(&format!("{key} = {value} {what}; try {example}"));
                example
            }
        }
    }

    /// A number above zero, or the usual one.
    fn positive(&mut self, key: &str, usual: f64) -> f64 {
        let value = match self.table.get(key) {
            None => return usual,
            Some(Value::Integer(value)) => *value as f64,
            Some(Value::Float(value)) => *value,
            Some(_) => f64::NAN,
        };
        // What people own themselves has no price.
        let is_price = key.starts_with("dollars");
        if (value > 0.0 && value < MOST) || (is_price && value == 0.0) {
            return value;
        }
        let value = &self.table[key];
        let least = if is_price { "of at least" } else { "above" };
        self.refuse(&format!(
            "{key} = {value} must be a number {least} zero, below {MOST}; try {usual}"
        ));
        usual
    }

    /// How many times more could be sent than links carry: not less than once.
    fn short(&mut self, key: &str) -> f64 {
        let times = self.positive(key, 1.0);
        if times < 1.0 {
            self.refuse(&format!("{key} = {times} must be at least 1; try 1"));
        }
        times.max(1.0)
    }

    /// One of a few words, if there is one.
    fn word(&mut self, key: &str, words: &[&'static str]) -> Option<&'static str> {
        let value = self.table.get(key)?;
        let found = value.as_str().and_then(|text| words.iter().find(|word| **word == text));
        if found.is_none() {
            let all: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            self.refuse(&format!("{key} = {value}; try one of {}", all.join(", ")));
        }
        found.copied()
    }

    /// A device's share of network cards, given as such or by cards.
    fn network_share(&mut self, per_node: u64, usual: f64) -> f64 {
        let share = self.positive("network_gbps", usual);
        let nics = self.whole("nics_per_node", Some(per_node), per_node);
        let each = self.positive("nic_gbps", share);
        let has_cards = ["nics_per_node", "nic_gbps"].iter().any(|key| self.has(key));
        if has_cards && self.has("network_gbps") {
            self.refuse(
                "network_gbps is a device's share of what nics_per_node and nic_gbps say; \
                 try one or the other",
            );
        }
        if has_cards { each * nics as f64 / per_node as f64 } else { share }
    }

    fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// How nodes are wired. Fat trees and rails are trees that may be short of uplinks; a cluster
    /// whose nodes all reach each other at full speed has none.
    fn topology(&mut self) -> Topology {
        let tree = Topology::Racks {
            nodes_per_rack: self.whole("nodes_per_rack", Some(16), 16),
            oversubscription: self.short("oversubscription"),
            racks_per_spine: self.whole("racks_per_spine", Some(u64::from(u32::MAX)), 8),
            spine_oversubscription: self.short("spine_oversubscription"),
        };
        let dims = self.whole("torus_dims", Some(3), 3);
        let words = ["full", "fat-tree", "rails", "racks", "tree", "torus"];
        let word = self.word("topology", &words);
        if word.is_none() && self.has("topology") {
            return Topology::Full;
        }
        let idle = |keys: &[&'a str], file: &Self| -> Vec<&'a str> {
            keys.iter().copied().filter(|key| file.has(key)).collect()
        };
        let (topology, idle) = match word {
            Some("racks" | "tree" | "fat-tree" | "rails") => (tree, idle(&["torus_dims"], self)),
            Some("torus") => (Topology::Torus { dims }, idle(&TREE, self)),
            _ => (Topology::Full, idle(&[&TREE[..], &["torus_dims"]].concat(), self)),
        };
        let is_tree = matches!(topology, Topology::Racks { .. });
        if is_tree && self.has("spine_oversubscription") && !self.has("racks_per_spine") {
            self.refuse(
                "spine_oversubscription says nothing without racks_per_spine; try \
                 racks_per_spine = 8 beside it",
            );
        }
        for key in idle {
            let (is, try_this) =
                (word.unwrap_or("full"), if key == "torus_dims" { "torus" } else { "tree" });
            self.refuse(&format!(
                "{key} says nothing of topology = \"{is}\"; try topology = \"{try_this}\""
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
        // Four cards of 25 GB/s for eight devices are 12.5 for each.
        let cards = "device = \"h100-80gb\"\ndevices = 64\nnics_per_node = 4\nnic_gbps = 25.0\n";
        let cluster = parse("mine", cards).expect("a cluster");
        assert!((cluster.network.device_gbps - 12.5).abs() < 1e-12);
    }

    #[test]
    fn fat_trees_and_rails_may_be_short_of_uplinks() {
        for topology in ["tree", "fat-tree", "rails"] {
            let text = format!(
                "device = \"h100-80gb\"\ndevices = 512\ntopology = \"{topology}\"\n\
                 nodes_per_rack = 32\noversubscription = 3\n"
            );
            let cluster = parse("mine", &text).expect("a cluster");
            let units: Vec<(u64, f64)> = cluster.units().map(|u| (u.devices, u.gbps)).collect();
            // A rack of 256 devices, each with 50 GB/s of cards, shares a third of it upwards.
            assert_eq!(units[0], (8, 400.0));
            assert_eq!(units[1].0, 256);
            assert!((units[1].1 - 256.0 * 50.0 / 3.0).abs() < 1e-9, "{units:?}");
        }
    }

    #[test]
    fn every_mistake_is_told_at_once_with_a_way_out() {
        let text = "device = \"abacus\"\ndevices = 0\nnetwork_gbps = -3.0\ntopology = \"heap\"\n";
        let wrong = parse("mine", text).expect_err("four mistakes");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("try ")), "{wrong:?}");
        let text = "devices = 2.5\nnetwork_gpbs = 3\nlink_gbps = \"fast\"\nwheels = 4\n\
                    oversubscription = 2.0\nnic_gbps = 25\nnetwork_gbps = 12\n";
        let wrong = parse("mine", text).expect_err("seven mistakes");
        assert_eq!(wrong.len(), 7, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("try ")), "{wrong:?}");
        assert!(wrong.iter().any(|line| line.contains("try network_gbps")), "{wrong:?}");
        assert!(wrong.iter().any(|line| line.contains("topology = \"tree\"")), "{wrong:?}");
        let text = "device = \"h100-80gb\"\ndevices = 64\ntopology = \"tree\"\n\
                    devices_per_node = 4\noversubscription = 0.5\nspine_oversubscription = 2\n";
        let wrong = parse("mine", text).expect_err("three mistakes");
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong.iter().any(|line| line.ends_with("try per_node")), "{wrong:?}");
        let text = "device = \"h100-80gb\"\ndevices = 64\ntopology = \"tre\"\nracks_per_spine = 4";
        assert_eq!(parse("mine", text).map_err(|wrong| wrong.len()), Err(1));
        let wrong = parse("mine", "devices = 4\nnetwork = = 3\n").expect_err("no table");
        assert!(wrong[0].starts_with("mine, line 2: "), "{wrong:?}");
    }
}

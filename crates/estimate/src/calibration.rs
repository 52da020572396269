//! What a type of device reaches of its peaks, in a handful of constants.
//!
//! Each has a meaning that could be measured by itself; here they are fitted together, to published
//! runs of the type (`lockstep plan validate --fit`), and kept as one TOML file for each type.

use serde::{Deserialize, Serialize};

/// The files that come with the program.
const FILES: [&str; 7] = [
    include_str!("../calibrations/v100.toml"),
    include_str!("../calibrations/a100.toml"),
    include_str!("../calibrations/h100.toml"),
    include_str!("../calibrations/b200.toml"),
    include_str!("../calibrations/mi300x.toml"),
    include_str!("../calibrations/tpu.toml"),
    include_str!("../calibrations/cpu.toml"),
];

/// Constants of a type of device, its host and its usual links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The type.
    pub name: String,
    /// What they were fitted to.
    pub source: String,
    /// Watts that devices may take at the speed that the constants are of; 0 if it makes no
    /// difference.
    #[serde(default)]
    pub watts: f64,
    /// Share of the peak that a large product reaches.
    pub matrix_share: f64,
    /// Inner length at which a product reaches half of that.
    pub matrix_depth: f64,
    /// Speed of the products of many experts at once, relative to one product of their size.
    #[serde(default = "whole")]
    pub grouped_share: f64,
    /// Share of the peak that forward of fused attention reaches if there is plenty of it, causal
    /// pairs counted.
    pub attention_share: f64,
    /// Share of memory bandwidth that passes over memory reach.
    pub memory_share: f64,
    /// Microseconds that a kernel takes of the device however little it does: filling and emptying
    /// its units, and the gap before it.
    #[serde(default)]
    pub kernel_us: f64,
    /// The same of a collective: starting its channels and meeting the others.
    #[serde(default)]
    pub collective_us: f64,
    /// Microseconds of the host to start one kernel.
    pub launch_us: f64,
    /// The same for a collective.
    pub collective_launch_us: f64,
    /// Microseconds of the host for every microbatch: data, loss, bookkeeping.
    pub microbatch_us: f64,
    /// Microseconds that a handover between stages waits for the slowest host of a stage, for one
    /// holder of slices. Delays of hosts have heavy tails, so the wait grows with the square of
    /// the holders.
    pub skew_us: f64,
    /// Microseconds that a message between holders of slices waits for the host of each other one,
    /// where programs do that ([`crate::layout::Habits::waits_in_stages`]).
    #[serde(default)]
    pub stage_wait_us: f64,
    /// Milliseconds of every step that depend on nothing.
    pub step_ms: f64,
    /// Microseconds of a round between devices of a node.
    pub link_latency_us: f64,
    /// Share of the link's bandwidth that collectives reach.
    pub link_share: f64,
    /// Microseconds of a round between nodes.
    pub network_latency_us: f64,
    /// Share of the network's bandwidth that collectives reach.
    pub network_share: f64,
    /// Share of backward's tensor-parallel communication that weight gradients hide.
    pub tensor_hidden: f64,
    /// Share of a backward pass that gradients can travel beside.
    pub data_hidden: f64,
    /// Bytes that an update moves for each parameter that a device updates.
    pub optimizer_bytes: f64,
    /// Memory of context and libraries, GB (2³⁰).
    pub reserve_gb: f64,
}

const fn whole() -> f64 {
    1.0
}

impl Calibration {
    /// The calibration of a type of device.
    pub fn of(name: &str) -> Option<Self> {
        FILES.iter().filter_map(|text| Self::parse(text).ok()).find(|known| known.name == name)
    }

    /// All that come with the program.
    pub fn all() -> Vec<Self> {
        FILES.iter().filter_map(|text| Self::parse(text).ok()).collect()
    }

    /// What is usual for devices of which nothing else is known.
    pub fn usual() -> Self {
        Self {
            name: "usual".into(),
            source: "what is usual".into(),
            watts: 0.0,
            matrix_share: 0.7,
            matrix_depth: 150.0,
            grouped_share: 0.9,
            attention_share: 0.35,
            memory_share: 0.85,
            kernel_us: 6.0,
            collective_us: 35.0,
            launch_us: 30.0,
            collective_launch_us: 50.0,
            microbatch_us: 2000.0,
            skew_us: 10.0,
            stage_wait_us: 0.0,
            step_ms: 5.0,
            link_latency_us: 2.7,
            link_share: 0.77,
            network_latency_us: 12.0,
            network_share: 0.94,
            tensor_hidden: 0.2,
            data_hidden: 0.9,
            optimizer_bytes: 50.0,
            reserve_gb: 4.0,
        }
    }

    /// Types of which something is known before any run.
    pub const KNOWN_BEFORE: [&str; 4] = ["a100", "b200", "h100", "v100"];

    /// What is known of a type before any run of it: what data sheets say, and measurements of
    /// single products, kernels and messages.
    ///
    /// Products and attention: A100 and B200 by measured shapes (905 of them); H100 by its measured
    /// ceiling and by what is published of its attention, with as much less in long runs as between
    /// those two. Passes over memory and messages: measured on an A100's node, and on a B200's (by
    /// those who published these shapes, in the same files); H100 lies between them. Networks: what
    /// cards of 200 and 400 Gb/s were measured to carry. Hosts' times are of the speed of the cores
    /// that come with a type.
    pub fn before(name: &str) -> Self {
        let [matrix_share, grouped_share, attention_share, launch_us] = match name {
            "a100" => [0.79, 0.97, 0.62, 40.0],
            "h100" => [0.62, 0.8, 0.4, 30.0],
            "b200" => [0.51, 0.68, 0.5, 25.0],
            "v100" => [0.79, 0.97, 0.5, 40.0],
            _ => {
                let usual = Self::usual();
                let [grouped, attention] = [usual.grouped_share, usual.attention_share];
                [usual.matrix_share, grouped, attention, usual.launch_us]
            }
        };
        let [memory_share, link_share, link_latency_us, collective_us] = match name {
            "h100" => [0.77, 0.74, 4.5, 30.0],
            "b200" => [0.69, 0.7, 7.0, 24.0],
            _ => {
                let usual = Self::usual();
                [usual.memory_share, usual.link_share, usual.link_latency_us, usual.collective_us]
            }
        };
        let (watts, stage_wait_us) = if name == "h100" { (700.0, 250.0) } else { (0.0, 0.0) };
        Self {
            name: name.to_owned(),
            watts,
            matrix_share,
            grouped_share,
            attention_share,
            launch_us,
            memory_share,
            link_share,
            link_latency_us,
            collective_us,
            stage_wait_us,
            reserve_gb: Self::of(name).map_or(Self::usual().reserve_gb, |known| known.reserve_gb),
            ..Self::usual()
        }
    }

    /// Reads a file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut read: Self =
            toml::from_str(text).map_err(|error| error.message().replace('\n', " "))?;
        for (name, value, least, most) in read.constants() {
            if !(least..=most).contains(value) {
                return Err(format!("{name} = {value} must be from {least} to {most}"));
            }
        }
        Ok(read)
    }

    /// As a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a table of numbers")
    }

    /// The constants that a fit may move, by name, with the bounds of physics.
    pub fn constants(&mut self) -> [(&'static str, &mut f64, f64, f64); 19] {
        [
            ("matrix_share", &mut self.matrix_share, 0.3, 0.98),
            ("matrix_depth", &mut self.matrix_depth, 5.0, 2000.0),
            ("attention_share", &mut self.attention_share, 0.15, 0.8),
            ("memory_share", &mut self.memory_share, 0.3, 0.98),
            ("kernel_us", &mut self.kernel_us, 0.0, 20.0),
            ("collective_us", &mut self.collective_us, 0.0, 100.0),
            ("launch_us", &mut self.launch_us, 1.0, 200.0),
            ("collective_launch_us", &mut self.collective_launch_us, 1.0, 2000.0),
            ("microbatch_us", &mut self.microbatch_us, 1.0, 20_000.0),
            ("skew_us", &mut self.skew_us, 0.1, 20.0),
            ("stage_wait_us", &mut self.stage_wait_us, 0.0, 1000.0),
            ("step_ms", &mut self.step_ms, 0.1, 200.0),
            ("link_latency_us", &mut self.link_latency_us, 0.5, 60.0),
            ("link_share", &mut self.link_share, 0.2, 0.95),
            ("network_latency_us", &mut self.network_latency_us, 3.0, 200.0),
            ("network_share", &mut self.network_share, 0.1, 0.95),
            ("tensor_hidden", &mut self.tensor_hidden, 0.0001, 1.0),
            ("data_hidden", &mut self.data_hidden, 0.0001, 1.0),
            ("optimizer_bytes", &mut self.optimizer_bytes, 20.0, 80.0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_within_the_bounds_of_physics() {
        assert_eq!(Calibration::all().len(), FILES.len());
        for mut calibration in Calibration::all() {
            let name = calibration.name.clone();
            for (constant, value, low, high) in calibration.constants() {
                assert!((low..=high).contains(value), "{name}: {constant} = {value}");
            }
        }
    }

    #[test]
    fn a_file_survives_being_written() {
        let calibration = Calibration::of("a100").expect("it is there");
        assert_eq!(Calibration::parse(&calibration.to_toml()), Ok(calibration));
    }
}

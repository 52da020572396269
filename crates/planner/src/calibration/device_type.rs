//! Calibration: the share of its peaks that a device type achieves, in a few constants.
//!
//! Each constant has a meaning that could be measured alone; here they are fitted together to
//! published runs of the type (`lockstep plan validate --fit`) and stored as one TOML file per
//! type.

use serde::{Deserialize, Serialize};

/// Built-in calibrations.
const FILES: [&str; 8] = [
    include_str!("../../calibrations/v100.toml"),
    include_str!("../../calibrations/a100.toml"),
    include_str!("../../calibrations/h100.toml"),
    include_str!("../../calibrations/b200.toml"),
    include_str!("../../calibrations/ada.toml"),
    include_str!("../../calibrations/mi300x.toml"),
    include_str!("../../calibrations/tpu.toml"),
    include_str!("../../calibrations/cpu.toml"),
];

/// Constants for device types without published runs.
const TYPICAL: &str = include_str!("../../calibrations/typical.toml");

/// Constants of a device type, its host and its usual links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Device type.
    pub name: String,
    /// Published runs that the constants were fitted to.
    pub source: String,
    /// Power limit at which the constants hold, in watts; 0 if power makes no difference.
    #[serde(default)]
    pub watts: f64,
    /// Share of the peak that a large matmul achieves.
    pub matrix_share: f64,
    /// Inner dimension at which a matmul achieves half of that.
    pub matrix_depth: f64,
    /// Speed of a grouped matmul over many experts, relative to one matmul of their total size.
    #[serde(default = "one")]
    pub grouped_share: f64,
    /// Share of the peak that a large forward pass of fused attention achieves, counting causal
    /// pairs.
    pub attention_share: f64,
    /// Share of the memory bandwidth that elementwise kernels achieve.
    pub memory_share: f64,
    /// Minimum microseconds of a kernel on the device: filling and draining the multiprocessors,
    /// and the gap before it.
    #[serde(default)]
    pub kernel_us: f64,
    /// Minimum microseconds of a collective on the device: starting its channels and synchronizing
    /// the ranks.
    #[serde(default)]
    pub collective_us: f64,
    /// Host microseconds to launch a kernel.
    pub launch_us: f64,
    /// Host microseconds to launch a collective.
    pub collective_launch_us: f64,
    /// Host microseconds per micro-batch: data, loss, bookkeeping.
    pub microbatch_us: f64,
    /// Microseconds that a transfer between stages waits for the slowest host of a stage, with TP1.
    /// Host delays have heavy tails, so the wait grows with the square of the tensor-parallel
    /// degree.
    pub skew_us: f64,
    /// Microseconds that a tensor-parallel collective waits for the host of each other rank, in
    /// frameworks that synchronize hosts ([`crate::framework::Framework::syncs_hosts_in_stages`]).
    #[serde(default)]
    pub stage_wait_us: f64,
    /// Fixed milliseconds per step.
    pub step_ms: f64,
    /// Microseconds per round between devices of a node.
    pub link_latency_us: f64,
    /// Share of the intra-node bandwidth that collectives achieve.
    pub link_share: f64,
    /// Microseconds per round between nodes.
    pub network_latency_us: f64,
    /// Share of the network bandwidth that collectives achieve.
    pub network_share: f64,
    /// Share of backward's tensor-parallel communication hidden behind weight gradients.
    pub tensor_hidden: f64,
    /// Share of the backward pass that gradient exchange can overlap with.
    pub data_hidden: f64,
    /// Memory traffic of the optimizer step, in bytes per updated parameter.
    pub optimizer_bytes: f64,
    /// Memory of the device context and libraries, GiB.
    pub reserve_gb: f64,
}

const fn one() -> f64 {
    1.0
}

impl Calibration {
    /// Memory of libraries on a device.
    pub fn library_bytes(&self) -> f64 {
        self.reserve_gb * f64::from(1_u32 << 30)
    }

    /// Built-in calibration of a device type.
    pub fn of(name: &str) -> Option<Self> {
        FILES.iter().filter_map(|text| Self::parse(text).ok()).find(|known| known.name == name)
    }

    /// All built-in calibrations.
    pub fn all() -> Vec<Self> {
        FILES.iter().filter_map(|text| Self::parse(text).ok()).collect()
    }

    /// Constants for device types without published runs.
    pub fn typical() -> Self {
        Self::parse(TYPICAL).expect("the file is part of the program")
    }

    /// Device types with a measured prior.
    pub const WITH_PRIOR: [&str; 4] = ["a100", "b200", "h100", "v100"];

    /// Constants of a type before any fit, from data sheets and measurements of single matmuls,
    /// kernels and messages.
    ///
    /// Matmuls and attention: measured shapes on A100 and B200 (905 of them); for H100 its measured
    /// ceiling and published attention rates, scaled down as the other two are in long runs. Memory
    /// traffic and messages: measured on nodes of A100 and B200 (published by SimuMax with those
    /// shapes); H100 lies between them. Networks: measured bandwidth of NICs of 200 and 400 Gb/s.
    /// Host times follow the speed of the CPU cores that come with a type.
    pub fn prior(name: &str) -> Self {
        let typical = Self::typical();
        let [matrix_share, grouped_share, attention_share, launch_us] = match name {
            "a100" => [0.79, 0.97, 0.62, 40.0],
            "h100" => [0.62, 0.8, 0.4, 30.0],
            "b200" => [0.51, 0.68, 0.5, 25.0],
            "v100" => [0.79, 0.97, 0.5, 40.0],
            _ => {
                let [grouped, attention] = [typical.grouped_share, typical.attention_share];
                [typical.matrix_share, grouped, attention, typical.launch_us]
            }
        };
        let [memory_share, link_share, link_latency_us, collective_us] = match name {
            "h100" => [0.77, 0.74, 4.5, 30.0],
            "b200" => [0.69, 0.7, 7.0, 24.0],
            _ => {
                let [latency, startup] = [typical.link_latency_us, typical.collective_us];
                [typical.memory_share, typical.link_share, latency, startup]
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
            reserve_gb: Self::of(name).map_or(typical.reserve_gb, |known| known.reserve_gb),
            ..typical
        }
    }

    /// Parses a calibration file.
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

    /// Renders a calibration file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a table of numbers")
    }

    /// Constants that the fit may change, by name, with their physical bounds.
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
    fn every_file_is_read_and_within_physical_bounds() {
        assert_eq!(Calibration::all().len(), FILES.len());
        for mut calibration in Calibration::all() {
            let name = calibration.name.clone();
            for (constant, value, low, high) in calibration.constants() {
                assert!((low..=high).contains(value), "{name}: {constant} = {value}");
            }
        }
    }

    #[test]
    fn a_rendered_file_parses_to_the_same_calibration() {
        let calibration = Calibration::of("a100").expect("it is there");
        assert_eq!(Calibration::parse(&calibration.to_toml()), Ok(calibration));
    }
}

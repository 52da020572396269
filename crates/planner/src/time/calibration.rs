//! What was measured of a machine: a few numbers in a file.
//!
//! A step is arithmetic and much else. Arithmetic has a speed, which depends on the model's width
//! far more than on anything else: narrow products leave a processor waiting for memory. So it is
//! measured for some widths, and between them it is read off a line over the logarithm. The rest
//! does not depend on how many tokens a lane has, and so weighs most where lanes are short:
//!
//! | what | for each | because |
//! |---|---|---|
//! | `block_seconds` | block of a lane | kernels start, threads meet |
//! | `lane_seconds_per_param` | lane and parameter | weights are read, gradients written |
//! | `leaf_seconds_per_param` | leaf and parameter | a sum is cleared, and added to its sibling |
//! | `update_seconds_per_param` | parameter | norm and optimizer |
//! | `step_overhead_seconds` | step | a batch, a record |
//!
//! Besides: by how much calls between workers are slower or faster than the engine assumes.

use lockstep_config::units::{BytesPerSecond, FlopsPerSecond, Seconds};
use lockstep_schedule::{Costs, Link};
use serde::{Deserialize, Serialize};

/// The measured speed of training models of one width.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// `model.width`.
    pub width: usize,
    /// Of all cores together.
    pub flops_per_second: f64,
}

/// A machine, as it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Of this format.
    pub version: u32,
    /// The machine's name.
    pub host: String,
    /// Cores that were used.
    pub cores: usize,
    /// The instruction set.
    pub kernels: String,
    /// Best that fused multiply-adds reach on all cores.
    pub peak_flops_per_second: f64,
    /// By ascending width: the speed of arithmetic alone.
    pub points: Vec<Point>,
    /// What a block of a lane takes besides, forward and backward, with all threads.
    pub block_seconds: f64,
    /// The same with one thread, which waits for nobody.
    pub block_seconds_alone: f64,
    /// What a lane costs a parameter besides; of all cores together.
    pub lane_seconds_per_param: f64,
    /// What a leaf costs a parameter; of all cores together.
    pub leaf_seconds_per_param: f64,
    /// What an update costs a parameter; of all cores together.
    pub update_seconds_per_param: f64,
    /// What a step takes whatever is in it.
    pub step_overhead_seconds: f64,
    /// Measured over assumed time of short calls.
    pub latency_factor: f64,
    /// Measured over assumed time of long calls.
    pub transfer_factor: f64,
}

/// The format that this code reads and writes.
pub const VERSION: u32 = 2;

impl Calibration {
    /// The speed of a model of this width, on all cores.
    pub fn rate(&self, width: usize) -> FlopsPerSecond {
        let log = |width: usize| (width.max(1) as f64).log2();
        let after = self.points.partition_point(|point| point.width < width);
        let (below, above) = match (after.checked_sub(1), self.points.get(after)) {
            (Some(below), Some(above)) => (self.points[below], *above),
            (None, Some(only)) => (*only, *only),
            (Some(only), None) => (self.points[only], self.points[only]),
            (None, None) => return FlopsPerSecond(f64::NAN),
        };
        let span = log(above.width) - log(below.width);
        let share = if span > 0.0 { (log(width) - log(below.width)) / span } else { 0.0 };
        let (low, high) = (below.flops_per_second, above.flops_per_second);
        FlopsPerSecond(low + share * (high - low))
    }

    /// The best that the machine could do.
    pub const fn peak(&self) -> FlopsPerSecond {
        FlopsPerSecond(self.peak_flops_per_second)
    }

    /// What a block of a lane takes besides its arithmetic on so many threads.
    pub const fn block(&self, threads: usize) -> Seconds {
        Seconds(if threads == 1 { self.block_seconds_alone } else { self.block_seconds })
    }

    /// What calls cost here, where `assumed` is what the engine goes by. Links that workers have
    /// measured are what they are.
    pub fn costs(&self, assumed: &Costs) -> Costs {
        if assumed.port.is_some() {
            return assumed.clone();
        }
        let slower = |link: Link| Link {
            latency: link.latency * self.latency_factor,
            bandwidth: BytesPerSecond(link.bandwidth.0 / self.transfer_factor),
        };
        Costs {
            messages: slower(assumed.messages),
            memory: assumed.memory.map(slower),
            local: BytesPerSecond(assumed.local.0 / self.transfer_factor),
            ..assumed.clone()
        }
    }

    /// Whether it was made on this machine, by a version that measured the same.
    pub fn is_of(&self, host: &str, cores: usize) -> bool {
        self.version == VERSION && self.cores == cores && self.host == host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Calibration {
        let point = |width, flops_per_second| Point { width, flops_per_second };
        Calibration {
            version: VERSION,
            host: "here".to_owned(),
            cores: 2,
            kernels: "avx512".to_owned(),
            peak_flops_per_second: 100.0,
            points: vec![point(64, 10.0), point(256, 30.0)],
            block_seconds: 2.0,
            block_seconds_alone: 1.0,
            lane_seconds_per_param: 0.0,
            leaf_seconds_per_param: 0.0,
            update_seconds_per_param: 0.0,
            step_overhead_seconds: 0.0,
            latency_factor: 1.0,
            transfer_factor: 2.0,
        }
    }

    #[test]
    fn speed_lies_on_a_line_between_the_widths_that_were_measured() {
        let machine = machine();
        assert_eq!(machine.rate(64), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(128), FlopsPerSecond(20.0));
        assert_eq!(machine.rate(16), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(4096), FlopsPerSecond(30.0));
        assert!(machine.is_of("here", 2) && !machine.is_of("here", 4));
    }

    #[test]
    fn links_that_were_measured_are_taken_as_they_are() {
        let assumed = Costs::of_one_host(false);
        let slower = machine().costs(&assumed);
        let half = BytesPerSecond(assumed.messages.bandwidth.0 / 2.0);
        assert_eq!(slower.messages.bandwidth, half);
        let measured = Costs { port: Some(BytesPerSecond(1e9)), ..assumed };
        assert_eq!(machine().costs(&measured), measured);
    }
}

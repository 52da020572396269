//! What was measured of a machine: a few numbers in a file.
//!
//! The speed of a step depends on the model's width far more than on anything else: narrow products
//! leave a processor waiting for memory. So it is measured for some widths, and between them it is
//! read off a line over the logarithm. Besides: what an update costs a parameter, and by how much
//! calls between workers are slower or faster than the engine assumes.

use lockstep_config::units::{BytesPerSecond, FlopsPerSecond};
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
    /// By ascending width.
    pub points: Vec<Point>,
    /// Of all cores together.
    pub update_seconds_per_param: f64,
    /// What a step takes whatever is in it.
    pub step_overhead_seconds: f64,
    /// Measured over assumed time of short calls.
    pub latency_factor: f64,
    /// Measured over assumed time of long calls.
    pub transfer_factor: f64,
}

/// The format that this code reads and writes.
pub const VERSION: u32 = 1;

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

    /// What calls cost here, where `assumed` is what the engine goes by.
    pub fn costs(&self, assumed: &Costs) -> Costs {
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

    #[test]
    fn speed_lies_on_a_line_between_the_widths_that_were_measured() {
        let point = |width, flops_per_second| Point { width, flops_per_second };
        let machine = Calibration {
            version: VERSION,
            host: "here".to_owned(),
            cores: 2,
            kernels: "avx512".to_owned(),
            peak_flops_per_second: 100.0,
            points: vec![point(64, 10.0), point(256, 30.0)],
            update_seconds_per_param: 0.0,
            step_overhead_seconds: 0.0,
            latency_factor: 1.0,
            transfer_factor: 2.0,
        };
        assert_eq!(machine.rate(64), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(128), FlopsPerSecond(20.0));
        assert_eq!(machine.rate(16), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(4096), FlopsPerSecond(30.0));
        assert!(machine.is_of("here", 2) && !machine.is_of("here", 4));
    }
}

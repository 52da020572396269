//! MachineCalibration of a machine: a few measured numbers in a file.
//!
//! Matmuls have a rate, which depends mostly on the model's width: narrow matmuls wait for memory.
//! It is measured for some widths and interpolated in their logarithm. Attention scores have their
//! own cost: each takes an exponential, so that twice as many heads of half the width take longer,
//! although the matmuls have equal FLOPs. The remaining costs do not depend on the tokens of a
//! micro-batch, and so weigh most where micro-batches are short:
//!
//! | constant | per | reason |
//! |---|---|---|
//! | `block_seconds` | block of a micro-batch | kernels start, threads synchronize |
//! | `microbatch_seconds_per_param` | micro-batch and parameter | weights read, gradients written |
//! | `sums` | leaf and parameter | a sum is cleared, and added to its sibling |
//! | `update_seconds_per_param` | parameter | norm and optimizer |
//! | `step_overhead_seconds` | step | a batch, a log record |
//!
//! Costs per parameter are lower where all parameters fit into a cache. `sums` is measured for
//! vectors of several lengths and gives the difference; `serial_sums` is the cost on one thread, as
//! strategies combine weights of several workers. `compressors` has the cost of each method of
//! gradient compression.
//!
//! Two factors correct the engine's assumed cost of calls between workers.
//!
//! The first two rows, matmuls and scores depend on the number format of matmuls, and are measured
//! in each ([`Format`]); everything else is `f32`. A file has all measurements ([`Machine`]); a
//! forecast needs those of one format ([`MachineCalibration`]).

use lockstep_config::Dtype;
use lockstep_config::units::{BytesPerSecond, FlopsPerSecond, Seconds};
use lockstep_schedule::{Costs, Link};
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// Measured training rate of models of one width.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// `model.width`.
    pub width: usize,
    /// FLOP/s of all cores together.
    pub flops_per_second: f64,
}

/// Measured time of clearing a vector and adding it to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SumPoint {
    /// Elements of each vector.
    pub len: usize,
    /// Seconds per element, of all cores together.
    pub seconds_per_element: f64,
}

/// Measured time of a method of gradient compression, on one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompressorTime {
    /// `compress.method`.
    pub method: String,
    /// Seconds per element to compress gradients and to add one message to the sum.
    pub seconds_per_element: f64,
    /// Seconds per element to add another worker's message to the sum.
    pub decode_seconds_per_element: f64,
}

/// Measurements of a machine, as in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the file format.
    pub version: u32,
    /// Host name.
    pub host: String,
    /// Cores that were used.
    pub cores: usize,
    /// Instruction set, or the accelerator.
    pub kernels: String,
    /// Name of the accelerator that was measured; `None` for the cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Measurements by number format of matmuls.
    pub formats: Vec<Format>,
    /// Sums by ascending length.
    pub sums: Vec<SumPoint>,
    /// Sums by ascending length on one thread.
    pub serial_sums: Vec<SumPoint>,
    /// Methods of gradient compression.
    pub compressors: Vec<CompressorTime>,
    /// Optimizer step per parameter, of all cores together.
    pub update_seconds_per_param: f64,
    /// Fixed cost per step.
    pub step_overhead_seconds: f64,
    /// Measured over assumed time of short calls.
    pub latency_factor: f64,
    /// Measured over assumed time of long calls.
    pub transfer_factor: f64,
}

/// Measurements with matmuls in one number format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Format {
    /// `precision.compute`.
    pub compute: String,
    /// Highest FLOP/s in this format on all cores.
    pub peak_flops_per_second: f64,
    /// Matmul rates by ascending width.
    pub points: Vec<Point>,
    /// Cost of an attention score besides its matmuls, forward and backward, of all cores together.
    pub score_seconds: f64,
    /// Fixed cost of a block per micro-batch, forward and backward, with all threads.
    pub block_seconds: f64,
    /// Fixed cost of a block per micro-batch with one thread, without synchronization.
    pub block_seconds_alone: f64,
    /// Cost of a micro-batch per parameter of a model that exceeds all caches, of all cores
    /// together.
    pub microbatch_seconds_per_param: f64,
}

/// A machine whose matmuls are in one number format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineCalibration<'a> {
    machine: &'a Machine,
    /// Measurements that depend on the format.
    pub format: &'a Format,
}

impl Deref for MachineCalibration<'_> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        self.machine
    }
}

/// Version of the file format that this code reads and writes.
pub const VERSION: u32 = 5;

impl Machine {
    /// MachineCalibration in one number format, if measured.
    pub fn with(&self, compute: Dtype) -> Option<MachineCalibration<'_>> {
        let format = self.formats.iter().find(|format| format.compute == compute.name())?;
        Some(MachineCalibration { machine: self, format })
    }

    /// Whether the measurements are of this machine.
    pub fn is_of(&self, host: &str, cores: usize) -> bool {
        self.cores == cores && self.host == host
    }
}

impl MachineCalibration<'_> {
    /// Matmul rate of a model of this width, on all cores.
    pub fn rate(&self, width: usize) -> FlopsPerSecond {
        let points = self.format.points.iter().map(|point| (point.width, point.flops_per_second));
        FlopsPerSecond(between(points, width))
    }

    /// Cost of a leaf of this many parameters, on all cores.
    pub fn leaf(&self, num_params: usize) -> Seconds {
        Seconds(self.sum_seconds(num_params) * num_params as f64)
    }

    /// Cost of a micro-batch for this many parameters, on all cores: zero where the shortest sum
    /// costs as much, since the block's cost includes it.
    pub fn passing(&self, num_params: usize) -> Seconds {
        let [Some(least), Some(most)] = [self.sums.first(), self.sums.last()] else {
            return Seconds(0.0);
        };
        let [least, most] = [least, most].map(|point| point.seconds_per_element);
        let is_flat = most <= least;
        let more = (self.sum_seconds(num_params) - least) / (most - least);
        let share = if is_flat { 1.0 } else { more.clamp(0.0, 1.0) };
        Seconds(self.format.microbatch_seconds_per_param * share * num_params as f64)
    }

    fn sum_seconds(&self, len: usize) -> f64 {
        let points = self.sums.iter().map(|point| (point.len, point.seconds_per_element));
        between(points, len)
    }

    /// Time in which one thread reads or writes this many elements: a sum clears a vector, reads
    /// two and writes one.
    pub fn serial_pass(&self, len: usize) -> Seconds {
        let points = self.serial_sums.iter().map(|point| (point.len, point.seconds_per_element));
        Seconds(if len == 0 { 0.0 } else { between(points, len) * len as f64 / 4.0 })
    }

    /// Time of a method of gradient compression, if it was measured.
    pub fn compressor(&self, method: &str) -> Option<&CompressorTime> {
        self.compressors.iter().find(|time| time.method == method)
    }

    /// Peak FLOP/s of the machine.
    pub const fn peak(&self) -> FlopsPerSecond {
        FlopsPerSecond(self.format.peak_flops_per_second)
    }

    /// Cost of a block of a micro-batch besides its FLOPs on this many threads.
    pub const fn block(&self, threads: usize) -> Seconds {
        let Format { block_seconds, block_seconds_alone, .. } = *self.format;
        Seconds(if threads == 1 { block_seconds_alone } else { block_seconds })
    }

    /// Costs of calls on this machine, where `assumed` are the engine's defaults. Measured links
    /// stay as they are.
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
}

/// Linear interpolation in the logarithm, constant beyond the ends.
fn between(points: impl Iterator<Item = (usize, f64)>, at: usize) -> f64 {
    let log = |place: usize| (place.max(1) as f64).log2();
    let mut below: Option<(usize, f64)> = None;
    for (place, value) in points {
        if place >= at {
            let Some((before, from)) = below else { return value };
            let share = (log(at) - log(before)) / (log(place) - log(before));
            return from + share * (value - from);
        }
        below = Some((place, value));
    }
    below.map_or(f64::NAN, |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let point = |width, flops_per_second| Point { width, flops_per_second };
        let format = |compute: &str, faster: f64| Format {
            compute: compute.to_owned(),
            peak_flops_per_second: 100.0,
            points: vec![point(64, faster * 10.0), point(256, faster * 30.0)],
            block_seconds: 2.0,
            block_seconds_alone: 1.0,
            score_seconds: 0.0,
            microbatch_seconds_per_param: 4.0,
        };
        Machine {
            version: VERSION,
            host: "here".to_owned(),
            cores: 2,
            kernels: "avx512".to_owned(),
            accelerator: None,
            formats: vec![format("f32", 1.0), format("bf16", 4.0)],
            sums: [(1 << 10, 1.0), (1 << 20, 3.0)]
                .map(|(len, seconds_per_element)| SumPoint { len, seconds_per_element })
                .to_vec(),
            serial_sums: vec![SumPoint { len: 1, seconds_per_element: 8.0 }],
            compressors: Vec::new(),
            update_seconds_per_param: 0.0,
            step_overhead_seconds: 0.0,
            latency_factor: 1.0,
            transfer_factor: 2.0,
        }
    }

    #[test]
    fn an_unmeasured_format_has_no_calibration() {
        let machine = machine();
        assert!(machine.is_of("here", 2) && !machine.is_of("here", 4));
        let bf16 = machine.with(Dtype::Bf16).expect("it was measured");
        assert_eq!(bf16.rate(128), FlopsPerSecond(80.0));
        assert_eq!(bf16.block(1), Seconds(1.0));
        assert_eq!(machine.with(Dtype::F16), None);
    }

    #[test]
    fn rates_interpolate_between_measured_widths() {
        let machine = machine();
        let machine = machine.with(Dtype::F32).expect("it was measured");
        assert_eq!(machine.rate(64), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(128), FlopsPerSecond(20.0));
        assert_eq!(machine.rate(16), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(4096), FlopsPerSecond(30.0));
    }

    #[test]
    fn cached_parameters_cost_less() {
        let machine = machine();
        let machine = machine.with(Dtype::F32).expect("it was measured");
        assert_eq!(machine.leaf(1 << 10), Seconds(1024.0));
        assert_eq!(machine.leaf(1 << 15), Seconds(2.0 * f64::from(1 << 15)));
        assert_eq!(machine.passing(1 << 8), Seconds(0.0));
        assert_eq!(machine.passing(1 << 15), Seconds(2.0 * f64::from(1 << 15)));
        assert_eq!(machine.passing(1 << 22), Seconds(4.0 * f64::from(1 << 22)));
        assert_eq!([0, 5].map(|len| machine.serial_pass(len)), [Seconds(0.0), Seconds(10.0)]);
    }

    #[test]
    fn measured_links_are_not_corrected() {
        let assumed = Costs::of_one_host(false);
        let machine = machine();
        let machine = machine.with(Dtype::F32).expect("it was measured");
        let slower = machine.costs(&assumed);
        let half = BytesPerSecond(assumed.messages.bandwidth.0 / 2.0);
        assert_eq!(slower.messages.bandwidth, half);
        let measured = Costs { port: Some(BytesPerSecond(1e9)), ..assumed };
        assert_eq!(machine.costs(&measured), measured);
    }
}

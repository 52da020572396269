//! What was measured of a machine: a few numbers in a file.
//!
//! A step is arithmetic and much else. Products have a speed, which depends on the model's width
//! far more than on anything else: narrow products leave a processor waiting for memory. So it is
//! measured for some widths, and between them it is read off a line over the logarithm. Scores of
//! attention have a price of their own: each takes an exponential, so that twice as many heads of
//! half the length take longer, although the products have as many operations. The rest does not
//! depend on how many tokens a micro-batch has, and so weighs most where micro-batches are short:
//!
//! | what | for each | because |
//! |---|---|---|
//! | `block_seconds` | block of a micro-batch | kernels start, threads meet |
//! | `microbatch_seconds_per_param` | micro-batch and parameter | weights are read, gradients written |
//! | `sums` | leaf and parameter | a sum is cleared, and added to its sibling |
//! | `update_seconds_per_param` | parameter | norm and optimizer |
//! | `step_overhead_seconds` | step | a batch, a record |
//!
//! What passes by a parameter costs less where all of them fit into a cache. `sums` has been
//! measured for vectors of several lengths and says how much less.
//!
//! Besides: by how much calls between workers are slower or faster than the engine assumes.
//!
//! The first two rows, products and scores depend on the number format that products multiply in,
//! and are measured in each ([`Format`]); everything else is `f32` in all of them. A file has all
//! that was measured ([`Machine`]); what a forecast needs of it is that of one format
//! ([`Calibration`]).

use lockstep_config::Dtype;
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

/// The measured time of clearing a vector and adding it to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SumPoint {
    /// Elements of each.
    pub len: usize,
    /// For an element; of all cores together.
    pub seconds_per_element: f64,
}

/// A machine, as it was measured: what the file has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Of this format of file.
    pub version: u32,
    /// The machine's name.
    pub host: String,
    /// Cores that were used.
    pub cores: usize,
    /// The instruction set.
    pub kernels: String,
    /// What depends on the number format of products.
    pub formats: Vec<Format>,
    /// By ascending length.
    pub sums: Vec<SumPoint>,
    /// What an update costs a parameter; of all cores together.
    pub update_seconds_per_param: f64,
    /// What a step takes whatever is in it.
    pub step_overhead_seconds: f64,
    /// Measured over assumed time of short calls.
    pub latency_factor: f64,
    /// Measured over assumed time of long calls.
    pub transfer_factor: f64,
}

/// What was measured with products in one number format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Format {
    /// `precision.compute`.
    pub compute: String,
    /// Best that the units for it reach on all cores.
    pub peak_flops_per_second: f64,
    /// By ascending width: the speed of products alone.
    pub points: Vec<Point>,
    /// What a score of attention takes besides its products, forward and backward; of all cores
    /// together.
    pub score_seconds: f64,
    /// What a block of a micro-batch takes besides, forward and backward, with all threads.
    pub block_seconds: f64,
    /// The same with one thread, which waits for nobody.
    pub block_seconds_alone: f64,
    /// What a micro-batch costs a parameter of a model that fits into no cache besides; of all cores
    /// together.
    pub microbatch_seconds_per_param: f64,
}

/// A machine with products in one number format.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Cores that were used.
    pub cores: usize,
    /// What depends on the format.
    pub format: Format,
    /// By ascending length.
    pub sums: Vec<SumPoint>,
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
pub const VERSION: u32 = 4;

impl Machine {
    /// The machine with products in one number format, if it was measured in that.
    pub fn with(&self, compute: Dtype) -> Option<Calibration> {
        let format = self.formats.iter().find(|format| format.compute == compute.name())?;
        Some(Calibration {
            cores: self.cores,
            format: format.clone(),
            sums: self.sums.clone(),
            update_seconds_per_param: self.update_seconds_per_param,
            step_overhead_seconds: self.step_overhead_seconds,
            latency_factor: self.latency_factor,
            transfer_factor: self.transfer_factor,
        })
    }

    /// Whether it is this machine.
    pub fn is_of(&self, host: &str, cores: usize) -> bool {
        self.cores == cores && self.host == host
    }
}

impl Calibration {
    /// The speed of a model of this width, on all cores.
    pub fn rate(&self, width: usize) -> FlopsPerSecond {
        let points = self.format.points.iter().map(|point| (point.width, point.flops_per_second));
        FlopsPerSecond(between(points, width))
    }

    /// What a leaf of so many parameters takes, on all cores.
    pub fn leaf(&self, num_params: usize) -> Seconds {
        Seconds(self.sum_seconds(num_params) * num_params as f64)
    }

    /// What a micro-batch costs so many parameters besides, on all cores: nothing where the shortest sum
    /// costs as much, since that is part of a block's price.
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

    /// The best that the machine could do.
    pub const fn peak(&self) -> FlopsPerSecond {
        FlopsPerSecond(self.format.peak_flops_per_second)
    }

    /// What a block of a micro-batch takes besides its arithmetic on so many threads.
    pub const fn block(&self, threads: usize) -> Seconds {
        let Format { block_seconds, block_seconds_alone, .. } = self.format;
        Seconds(if threads == 1 { block_seconds_alone } else { block_seconds })
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
}

/// The value at `at` on lines between points, over the logarithm; that of the nearest point outside
/// of them.
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
            formats: vec![format("f32", 1.0), format("bf16", 4.0)],
            sums: [(1 << 10, 1.0), (1 << 20, 3.0)]
                .map(|(len, seconds_per_element)| SumPoint { len, seconds_per_element })
                .to_vec(),
            update_seconds_per_param: 0.0,
            step_overhead_seconds: 0.0,
            latency_factor: 1.0,
            transfer_factor: 2.0,
        }
    }

    fn in_f32() -> Calibration {
        machine().with(Dtype::F32).expect("it was measured")
    }

    #[test]
    fn a_format_that_was_not_measured_is_not_guessed() {
        let machine = machine();
        assert!(machine.is_of("here", 2) && !machine.is_of("here", 4));
        let bf16 = machine.with(Dtype::Bf16).expect("it was measured");
        assert_eq!(bf16.rate(128), FlopsPerSecond(80.0));
        assert_eq!(bf16.block(1), Seconds(1.0));
        assert_eq!(machine.with(Dtype::F16), None);
    }

    #[test]
    fn speed_lies_on_a_line_between_the_widths_that_were_measured() {
        let machine = in_f32();
        assert_eq!(machine.rate(64), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(128), FlopsPerSecond(20.0));
        assert_eq!(machine.rate(16), FlopsPerSecond(10.0));
        assert_eq!(machine.rate(4096), FlopsPerSecond(30.0));
    }

    #[test]
    fn what_fits_into_a_cache_passes_for_less() {
        let machine = in_f32();
        assert_eq!(machine.leaf(1 << 10), Seconds(1024.0));
        assert_eq!(machine.leaf(1 << 15), Seconds(2.0 * f64::from(1 << 15)));
        assert_eq!(machine.passing(1 << 8), Seconds(0.0));
        assert_eq!(machine.passing(1 << 15), Seconds(2.0 * f64::from(1 << 15)));
        assert_eq!(machine.passing(1 << 22), Seconds(4.0 * f64::from(1 << 22)));
    }

    #[test]
    fn links_that_were_measured_are_taken_as_they_are() {
        let assumed = Costs::of_one_host(false);
        let slower = in_f32().costs(&assumed);
        let half = BytesPerSecond(assumed.messages.bandwidth.0 / 2.0);
        assert_eq!(slower.messages.bandwidth, half);
        let measured = Costs { port: Some(BytesPerSecond(1e9)), ..assumed };
        assert_eq!(in_f32().costs(&measured), measured);
    }
}
